"""The report: right numbers in right cells, whatever the files hold, on a page that needs nothing else."""

import base64
import copy
import os
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.commands import Cli, refused
from tests.evaluate import results

from dadlm.errors import DataError
from dadlm.evaluate.report import report
from dadlm.evaluate.report.document import number
from dadlm.evaluate.report.subjects import known_as

EVIL = '<script>alert(1)</script>|**x** `y` "z" [a](b)'


class Page(HTMLParser):
    """What a browser would find: elements, text, and tables as rows of texts, a bold one after a star."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.captions: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "table":
            self.tables.append([])
            self.captions.append("")
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        elif tag == "strong":
            self.handle_data("*")

    def handle_data(self, data: str) -> None:
        self.text += data
        inside = self.tags[-1][0] if self.tags else ""
        if self.tables and not self.tables[-1]:
            self.captions[-1] += data
        elif inside in ("td", "th", "strong", "small") and self.tables[-1][-1]:
            self.tables[-1][-1][-1] += data.rstrip("\n")

    def rows(self, caption: str) -> dict[str, list[str]]:
        """The rows of the one table with this in its caption, by their first cell."""
        (table,) = [table for table, told in zip(self.tables, self.captions, strict=True) if caption in told]
        return {row[0]: [cell.strip() for cell in row[1:]] for row in table}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return results.write_all(tmp_path_factory.mktemp("runs") / "evaluation")


@pytest.fixture(scope="module")
def everything(folder: Path) -> dict[str, Any]:
    return report([folder], folder.parent / "report")


@pytest.fixture(scope="module")
def page(everything: dict[str, Any]) -> Page:
    return Page(Path(everything["page"]).read_text(encoding="utf-8"))


def make(tmp_path: Path, *some: Any) -> tuple[Page, str]:
    """The page and the Markdown of these results."""
    for at, result in enumerate(some):
        results.write(tmp_path / "runs" / str(at) / "x.json", result)
    made = report([tmp_path / "runs"], tmp_path / "report")
    assert not made["skipped"]
    return Page(Path(made["page"]).read_text("utf-8")), Path(made["markdown"]).read_text("utf-8")


# Numbers


def test_reconstruction_has_the_papers_form(page: Page) -> None:
    rows = page.rows("Table 1.")
    assert list(rows)[2:] == ["MDLM", "BD3LM 16", "BD3LM 8", "DA-DLM 16", "DA-DLM 8"]
    assert rows["DA-DLM 16"] == ["DA-DLM", "16", "*4.254 [4.233, 4.275]", "4.411", "0.157", "3.30", "2.92"]
    assert rows["BD3LM 16"] == ["BD3LM", "16", "4.425 [4.404, 4.446]", "4.425", "0.000", "3.46", "3.11"]
    assert rows["MDLM"][-2:] == ["3.47", "3.15"]
    assert page.rows("Paired")["DA-DLM 8 − BD3LM 8"] == [
        *("−0.171 [−0.177, −0.165]", "the same", "−0.15", "−0.20")
    ]


def test_perplexity_tells_bounds_from_exact_values(page: Page) -> None:
    rows = page.rows("Perplexity")
    assert rows["AR"][0] == "exact" and rows["AR"][3] == "–"
    assert rows["DA-DLM 16"][0] == "upper bound"
    assert rows["DA-DLM 16"][2:5] == [
        *("4.410 [4.395, 4.425]", "4.414 [4.393, 4.435]", "1.470 [1.465, 1.475]")
    ]


def test_one_pass_stands_beside_ar_in_a_table_of_its_own(tmp_path: Path) -> None:
    places = [3.83 + 0.2 * place for place in range(16)]
    once = {"passes": 1, "is_bound": False, "nll_by_time": None, "by_place": places}
    edges = {"by_chains": {"16": 4.52, "32": 4.46, "64": 4.43}}
    made = [results.perplexity("ar", None), results.perplexity() | edges, results.perplexity("bd3lm") | once]
    page, _ = make(tmp_path, *made)
    bounds, rows = page.rows("Perplexity ↓ on"), page.rows("Exact likelihood")
    assert {"AR", "DA-DLM 16"} < set(bounds) and "BD3LM 16" not in bounds
    assert {"AR", "BD3LM 16"} < set(rows) and "DA-DLM 16" not in rows
    assert rows["BD3LM 16"][2:8] == ["3.83", "4.03", "4.23", "4.43", "5.23", "6.83"]
    assert rows["AR"][2:8] == ["–"] * 6
    assert "4.520 with 16, 4.460 with 32, 4.430 with 64 of them" in page.text


def test_generation_stands_beside_the_paper_by_block_size(page: Page) -> None:
    rows = page.rows("block size 16")
    assert rows["FH, k=2, r=0.5"] == [
        *("1.54", "1.54", "1.27", "1.44"),
        *("0.547 [0.527, 0.567]", "0.608", "*0.761 [0.741, 0.781]", "0.846"),
    ]
    assert "*" not in "".join(rows["T=4"]), "the intervals overlap"
    assert page.rows("block size 8")["T=2"][-1] == "0.010"
    assert "AR, for reference: MAUVE 0.962 [0.942, 0.982] (paper 0.981)" in page.text
    last = page.rows("Further measures")["DA-DLM 8"]  # the last of that model
    assert last[0] == "T=2" and last[-1] == "29.40"


def test_bd3lm_300k_has_the_papers_own_table(tmp_path: Path) -> None:
    page, _ = make(tmp_path, results.generation((16,), names={"bd3lm": "BD3LM-300K"}))
    assert page.rows("block size 16")["T=16, k=3, r=0.5"][5] == "0.098"


def test_judge_stands_beside_the_papers_of_its_block_size(page: Page) -> None:
    rows = page.rows("Win rate of DA-DLM 16")
    assert list(rows)[2:4] == ["FH", "FH, k=2, r=0.5"]
    assert rows["FH"] == ["52.26 [46.70, 57.76]", "500", "162", "148", "190", "52.39 [50.31, 54.47]"]
    assert rows["T=8"][0].startswith("*71.94")
    assert rows["all"][0] == rows["all"][-1] == "–" and rows["all"][1] == "7,500"


def test_the_papers_rates_are_turned_round_for_bd3lm(tmp_path: Path) -> None:
    result = results.judge("BD3LM", "DA-DLM", 8)
    result |= {"model_a": result["model_b"], "model_b": result["model_a"]}
    page, _ = make(tmp_path, result)
    assert page.rows("Win rate of BD3LM")["T=8"][-1] == "28.30 [26.38, 30.30]"


@pytest.mark.parametrize(
    "other",
    [None, results.model("ar"), results.model("bd3lm", 4), results.model("dadlm", 8)],
    ids=["unknown", "another family", "another block size", "the same family"],
)
def test_judge_of_other_models_has_no_paper_beside_it(other: dict | None, tmp_path: Path) -> None:
    page, _ = make(tmp_path, results.judge("one", "other", 8) | {"model_b": other})
    assert len(page.rows("Win rate of one")["T=8"]) == 5 and "Not in the paper" in page.text


def test_summarisation_has_the_papers_rows_below_ours(page: Page) -> None:
    (table,) = [rows for rows, told in zip(page.tables, page.captions, strict=True) if "news.jsonl" in told]
    names = [row[0].strip() for row in table[2:]]
    at = names.index("DA-DLM 16, conf 0.9 + infill (2, 0.5)")
    assert names[at + 1 : at + 3] == ["paper, XSum", "paper, CNN/DailyMail"] and names[-1] == "Lead sentence"
    assert [cell.strip() for cell in table[2 + at + 2]][1:6] == ["38.53", "16.72", "26.10", "27.12", "2.56"]
    assert names[0] == "AR, greedy"


def test_latency_has_ratios_and_memory(page: Page) -> None:
    assert page.rows("Latency")["DA-DLM 16"] == [
        *("16", "29.28 [28.68, 31.18]", "29.60", "1.210", "1.073"),
        *("611", "1,325", "644", "2,459", "702", "3,890"),
    ]


def test_what_was_not_measured_is_a_dash(tmp_path: Path) -> None:
    generation, latency = results.generation((4,)), results.latency()
    for row in generation["rows"]:
        row |= {"mauve": None, "judge_perplexity": None, "adjusted_tpf": None}
    generation |= {"embedder": None, "judge_lm": None, "data": results.DATA | {"source": None}}
    latency["rows"][0]["memory_mib"] = dict.fromkeys(("start", "end", "peak"))
    page, _ = make(tmp_path, generation, latency)
    assert page.rows("block size 4")["T=4"] == ["1.46 raw", "1.46", "1.46 raw", "1.39"]
    assert page.rows("Latency")["BD3LM 16"][5::2] == ["–", "–", "–"]
    assert "rows of unknown origin" in page.text and "None" not in page.text


def test_a_number_that_rounds_to_zero_has_no_sign() -> None:
    assert (number(-0.0004, 3), number(-1234.567), number(None)) == ("0.000", "−1,234.57", "–")


# What is said of them


def beside(text: str) -> list[str]:
    """What the Markdown says of each table beside the paper's."""
    return re.findall(r"^- \*\*Beside the paper:\*\* (.*)\.$", text, re.M)


def test_the_papers_own_setting_differs_in_nothing_but_the_data(tmp_path: Path) -> None:
    """Which no name can prove."""
    result = results.generation((16,))
    result |= {"samples": 5000, "new_tokens": 960, "embedder": "gpt2-large"}
    result["data"] = results.DATA | {"source": "hf:Skylion007/openwebtext"}
    for model in result["models"]:
        model |= {"context": 1024, "parameters": 172_000_000}
        model |= {"candidates": 4, "expand_at": 0} if model["family"] == "dadlm" else {}
    device = {"batch_size": 32, "device": "cuda (NVIDIA A800-SXM4-80GB)"}
    result["latency"] = {"BD3LM 16": {"ms_median": 24.2, "FH": {"ms_median": 24.2, **device}}}
    _, text = make(tmp_path / "same", result)
    data = "data: hf:Skylion007/openwebtext (2,000 rows of 256 tokens) (paper: OpenWebText)"
    assert beside(text) == [data]
    result["models"][-1] |= {"candidates": 8, "expand_at": 9}
    _, text = make(tmp_path / "other", result)
    assert beside(text) == [f"{data}; candidates: 8 (paper: 4); expand\\_at: 9 (paper: 0)"]


def papers_summary(family: str = "dadlm", infill: bool = False) -> dict[str, Any]:
    result = results.summarisation(family, infill)
    result["data"] = {"source": "xsum/test.jsonl", "pairs": 11_334}
    result |= {"document_tokens": 768, "summary_tokens": 256}
    result["model"] |= {"context": 1024, "parameters": 172_000_000}
    return result


@pytest.mark.parametrize("infill", [False, True])
@pytest.mark.parametrize("family", ["ar", "bd3lm", "dadlm"])
def test_the_papers_own_summaries(family: str, infill: bool, tmp_path: Path) -> None:
    page, text = make(tmp_path, papers_summary(family, infill and family != "ar"))
    assert "paper, XSum" in page.rows("Summarisation")
    assert beside(text) == ["data: xsum/test.jsonl (11,334 pairs) (paper: XSum)"]
    other = papers_summary(family) | {"document_tokens": 32, "summary_tokens": 992}
    other["model"]["context"] = 256
    _, text = make(tmp_path / "other", other)
    told = "context: 256 (paper: 1,024); document tokens: 32 (paper: 768); summary tokens: 992 (paper: 256)"
    assert beside(text)[0].endswith(f"(paper: XSum); {told}")


@pytest.mark.parametrize(
    ("setting", "value", "told"),
    [
        ("threshold", 0.3, "threshold of conf 0.3: 0.3 (paper: 0.9)"),
        ("infill", [8, 0.0], "infill of conf 0.9 + infill (8, 0): \\[8, 0.0\\] (paper: \\[2, 0.5\\])"),
        ("sampler", "random", "sampler of random: random (paper: confidence)"),
        ("transition_weight", 0.0, "transition\\_weight of conf 0.9: 0.0 (paper: 0.5)"),
        ("temperature", 0.5, "temperature of conf 0.9: 0.5 (paper: 1.0)"),
        ("path", "sample", "path of conf 0.9: sample (paper: viterbi)"),
    ],
)
def test_other_decoding_has_no_paper_beside_it(setting: str, value: Any, told: str, tmp_path: Path) -> None:
    result = papers_summary()
    result["settings"][setting] = value
    page, text = make(tmp_path, result)
    assert "paper, XSum" not in page.text
    assert beside(text) == [f"data: xsum/test.jsonl (11,334 pairs) (paper: XSum); {told}"]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        *(("data/owt-valid.txt", "OpenWebText"), ("hf:Skylion007/openwebtext", "OpenWebText")),
        *(("Open_Web.Text", "OpenWebText"), ("lm1b", "LM1B"), ("XSum.jsonl", "XSum")),
        *(("cnn_dailymail/test", "CNN/DailyMail"), ("CNN-DM.jsonl", "CNN/DailyMail")),
        *(("data/growth.txt", None), ("showtimes.jsonl", None), ("cnn-vs-rnn/test.jsonl", None)),
        *(("openwebtext2", None), ("", None), (None, None)),
    ],
)
def test_data_sets_are_known_by_whole_words(source: str | None, name: str | None) -> None:
    assert known_as(source, ("OpenWebText", "LM1B", "XSum", "CNN/DailyMail")) == name


def test_another_decoding_is_not_the_papers(tmp_path: Path) -> None:
    result = results.generation((16,))
    for row in result["rows"]:
        row["configuration"] += " top_p 1"
    page, _ = make(tmp_path, result)
    rows = page.rows("block size 16")
    assert "paper" not in str(rows) and len(rows["FH top_p 1"]) == 4
    assert "0.981" not in page.text and "decoded by AR top_p 1" in page.text


def test_the_judge_is_told_of_by_configuration(page: Page, tmp_path: Path) -> None:
    """Pooled pairs would be the same prompts over and over."""
    assert (
        "Judge (a-judge-model), DA-DLM 16 against BD3LM 16: of 15 configurations the interval lies above 50% "
        "in 14, below in 0." in page.text
    )
    result = results.judge()
    result["rows"] = [result["rows"][4] | {"prompts": 400}]
    del result["source"]
    page, _ = make(tmp_path, result)
    assert "T=16: wins 65.48% [60.03, 70.56] of 310 decided pairs" in page.text
    assert "up to 100 pairs repeat the prompt" in page.text and "data unknown (paper: Open" in page.text


@pytest.mark.parametrize(
    ("difference", "told"),
    [((-0.02, -0.01), "better"), ((0.01, 0.02), "worse"), ((-0.01, 0.02), "no difference that the interval")],
)
def test_bold_and_verdict_follow_the_interval(
    difference: tuple[float, float], told: str, tmp_path: Path
) -> None:
    result = results.reconstruction()
    result["difference"] = {"mean": sum(difference) / 2, "low": difference[0], "high": difference[1]}
    page, _ = make(tmp_path, result)
    rows = page.rows("Table 1.")
    bold = {name for name, cells in rows.items() if "*" in "".join(cells)}
    assert bold == {"better": {"DA-DLM 16"}, "worse": {"BD3LM 16"}}.get(told, set())
    assert f": {told}" in page.text


def test_few_documents_are_told_however_many_rows(tmp_path: Path) -> None:
    few = [results.reconstruction() | {"groups": 3}, results.perplexity() | {"groups": 3}]
    assert make(tmp_path / "few", *few)[0].text.count("Only 3 documents") == 2
    many = [result | {"groups": 300} for result in few]
    assert "Only" not in make(tmp_path / "many", *many)[0].text


def test_one_name_twice_is_shown_with_the_folder(tmp_path: Path) -> None:
    other = results.reconstruction(value=4.3)
    other["model"]["weights"] = "others"
    page, _ = make(tmp_path, results.reconstruction(), other)
    names = [name for name in page.rows("Table 1.") if name.startswith("DA-DLM 16")]
    assert names == [f"DA-DLM 16 ({tmp_path / 'runs' / at})" for at in "01"]
    assert list(page.rows("Paired"))[2].startswith("DA-DLM 16 − BD3LM 16 (")
    once = [results.reconstruction(), results.reconstruction("bd3lm", 16, 4.425, None)]
    page, _ = make(tmp_path / "once", *once)
    assert list(page.rows("Table 1."))[2:] == ["BD3LM 16", "DA-DLM 16"]
    assert "[4.404, 4.446]" in page.rows("Table 1.")["BD3LM 16"][2], "the file that knows the interval wins"
    once[1]["data"] = results.DATA | {"source": "novels.txt", "fingerprint": "f"}
    assert len(make(tmp_path / "other", *once)[0].tables) == 3, "another text is another table"


# Files


def test_strange_files_are_named(tmp_path: Path) -> None:
    results.write(tmp_path / "good.json", results.latency())
    results.write(tmp_path / "list.json", [1])
    results.write(tmp_path / "later.json", {"kind": "telepathy"})
    results.write(tmp_path / "short.json", {"kind": "latency", "device": "cpu"})
    (tmp_path / "nan.json").write_text('{"kind": "latency", "x": NaN}')
    (tmp_path / "latin.json").write_bytes(b'{"kind": "\xe9"}')
    (tmp_path / ".half.json").write_text('{"kind"')
    (tmp_path / "folder.json").mkdir()
    os.mkfifo(tmp_path / "pipe.json")
    told = {Path(one["file"]).name: one["why"] for one in report([tmp_path], tmp_path / "out")["skipped"]}
    named = {"list.json", "later.json", "short.json", "nan.json", "latin.json", "folder.json", "pipe.json"}
    assert told.keys() == named
    assert "no regular file" in told["pipe.json"]
    assert told["later.json"] == "unknown kind 'telepathy'"
    assert told["short.json"] == "not a latency that can be shown (KeyError: 'batch_size')"


def test_what_is_too_large_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results.write(tmp_path / "runs" / "good.json", results.generation((4,)))
    large = results.write(tmp_path / "runs" / "large.json", results.latency() | {"padding": "x" * 200_000})
    (tmp_path / "runs" / "pareto.svg").write_text("<svg>" + " " * 1000)
    monkeypatch.setattr(import_module("dadlm.evaluate.report"), "LARGEST", 200_000)
    monkeypatch.setattr(import_module("dadlm.evaluate.report.generation"), "_LARGEST", 1000)
    made = report([tmp_path / "runs"], tmp_path)
    [skipped] = made["skipped"]
    assert skipped["file"] == str(large) and "too large" in skipped["why"]
    assert "<img" not in Path(made["page"]).read_text()


def test_a_file_is_read_once(folder: Path, everything: dict[str, Any], tmp_path: Path) -> None:
    assert len(everything["results"]) == 15
    again = report([folder / "latency", folder / "latency" / ".." / "latency" / "latency.json"], tmp_path)
    assert len(again["results"]) == 1


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to every value in a result; of a list, to the first two."""
    if path:
        yield path
    inside = (
        value.items() if isinstance(value, dict) else enumerate(value[:2] if isinstance(value, list) else ())
    )
    for name, part in inside:
        yield from places(part, (*path, name))


@pytest.mark.parametrize(
    "kind", ["reconstruction", "perplexity", "generation", "judge", "summarisation", "latency"]
)
def test_no_damage_to_a_result_stops_the_report(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each field gone, or of each other type: the file is refused with a reason, or shown."""

    def cannot_draw(*_: object) -> None:
        raise DataError("not here")

    monkeypatch.setattr(import_module("dadlm.evaluate.report.generation"), "draw_pareto", cannot_draw)
    whole = getattr(results, kind)()
    whole["rows"] = whole.get("rows", [])[:3]
    if kind == "generation":
        whole |= {"reference": dict(whole["rows"][0]), "notes": ["a note"]}
    results.write(tmp_path / "runs" / "whole.json", whole)
    for *path, last in places(whole):
        for damage in (None, "text", -1, 2.5, [], {}, "gone"):
            result = copy.deepcopy(whole)
            place = result
            for name in path:
                place = place[name]
            place[last] = damage
            if damage == "gone" and isinstance(place, dict):
                del place[last]
            results.write(tmp_path / "runs" / f"{'-'.join(map(str, path))}-{last}-{damage}.json", result)
    made = report([tmp_path / "runs"], tmp_path)
    assert "whole.json" in {Path(one["file"]).name for one in made["results"]}
    assert len(made["skipped"]) > 50 and all(one["why"] for one in made["skipped"])


def test_a_judge_that_decides_nothing_has_no_rate(tmp_path: Path) -> None:
    result = results.judge()
    for row in (result, *result["rows"]):
        row |= {"wins_a": 0, "wins_b": 0, "ties": 500, "win_rate": {"mean": 0.5, "low": 0.0, "high": 1.0}}
    page, text = make(tmp_path, result)
    assert page.rows("Win rate")["FH"][0] == page.rows("Win rate")["all"][0] == "–"
    assert "In short" not in text


def test_a_name_that_is_not_unicode(tmp_path: Path) -> None:
    page, _ = make(tmp_path, results.latency("half a \ud800 pair"))
    assert "half a ? pair" in page.text


# The page


def test_every_text_is_escaped(tmp_path: Path) -> None:
    generation, judge = results.generation((16,), names={"dadlm": EVIL}), results.judge(EVIL)
    generation |= {"embedder": EVIL, "judge_lm": EVIL, "notes": [EVIL]}
    generation["data"] = results.DATA | {"source": EVIL}
    latency = results.latency()
    generation["rows"][-1]["configuration"] = EVIL
    judge |= {"judge": EVIL, "b": EVIL}
    judge["rows"][0]["configuration"] = EVIL
    latency |= {"device": EVIL, "command": EVIL}
    summary, reconstruction = results.summarisation(), results.reconstruction()
    summary["settings"]["sampler"] = EVIL
    reconstruction["model"]["name"] = EVIL
    page, text = make(tmp_path, generation, judge, latency, summary, reconstruction)
    assert "script" not in {tag for tag, _ in page.tags}
    assert page.text.count(EVIL) > 10
    # In Markdown, code may hold it as it is: nothing is read as HTML or markup there.
    outside = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", re.sub(r"\\.", "", text))
    assert "<" not in outside and "**x**" not in outside and "](" not in outside
    for table in re.findall(r"(?:^\|.*\n)+", text, re.M):
        bars = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(bars) == 1, table


def test_nothing_points_outside(page: Page) -> None:
    ids = {attrs["id"] for _, attrs in page.tags if "id" in attrs}
    assert len(ids) == sum("id" in attrs for _, attrs in page.tags)
    for tag, attrs in page.tags:
        for name in ("href", "src", "srcset", "action", "data", "poster"):
            where = attrs.get(name)
            if where is not None:
                inside = where.startswith("data:") or (where[0] == "#" and where[1:] in ids)
                assert inside, (tag, where[:80])
    policy = {"http-equiv": "Content-Security-Policy"}
    assert any(policy.items() <= attrs.items() for _, attrs in page.tags)
    assert "--ground" in page.text and "url(" not in page.text and "@import" not in page.text  # its style


def test_tables_can_be_read_aloud(page: Page) -> None:
    assert len(page.captions) == len(page.tables) >= 9 and all(page.captions)
    scopes = [attrs.get("scope") for tag, attrs in page.tags if tag == "th"]
    assert set(scopes) == {"col", "colgroup", "row"}
    assert all(attrs.get("alt") for tag, attrs in page.tags if tag == "img")
    assert ("html", {"lang": "en"}) in page.tags
    for table in page.tables:
        width = {len(row) for row in table[2 if len(table[0]) != len(table[-1]) else 0 :]}
        assert len(width) == 1


def test_the_figure_beside_a_result_is_taken(tmp_path: Path) -> None:
    svg = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"></svg>'
    results.write(tmp_path / "runs" / "generation.json", results.generation((4,)))
    (tmp_path / "runs" / "pareto.svg").write_text(svg)
    made = report([tmp_path / "runs"], tmp_path)
    (source,) = [attrs["src"] for tag, attrs in Page(Path(made["page"]).read_text()).tags if tag == "img"]
    assert source and base64.b64decode(source.partition(",")[2]).decode() == svg


# The command


def test_command_says_what_it_found(folder: Path, cli: Cli, tmp_path: Path) -> None:
    shown = cli("report", folder / "latency", folder / "broken.json", "--out", "here")
    assert shown.code == 0 and "latency.json" in shown.out and "cannot be read" in shown.out
    assert "here/index.html" in shown.out
    assert (tmp_path / "here" / "report.md").read_text("utf-8").startswith("# Evaluation report")
    made = cli("report", folder / "latency", "--json").json
    assert made["kind"] == "report" and [one["kind"] for one in made["results"]] == ["latency"]
    assert (tmp_path / made["page"]).is_file()


def test_bad_input_to_report(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    results.write(tmp_path / "some" / "x.json", results.latency())
    refused(cli("report"), "no results: name folders")
    refused(cli("report", "nowhere"), "nowhere does not exist")
    refused(cli("report", "empty"), "no results in empty")
    refused(cli("report", "some", "--out", "some/x.json"), "some/x.json")


def test_in_short_texts_are_better_worse_or_neither() -> None:
    """Of two configurations DA-DLM has the lower judge perplexity in one, clearly the higher in the other."""
    result = results.generation(sizes=(16,))
    rows = [row for row in result["rows"] if row["configuration"] in ("T=8", "T=4")]
    for row in rows:
        middle = 300.0 if row["family"] == "bd3lm" else 299.0 if row["configuration"] == "T=8" else 400.0
        row["judge_perplexity"] = {"mean": middle, "low": middle - 5, "high": middle + 5}
        row["mauve"] = None
    result["rows"] = rows
    (told,) = import_module("dadlm.evaluate.report.generation")._sentences(result, 16, "")
    expected = "DA-DLM 16 better than BD3LM 16 in 1 of 2 configurations, intervals apart in 0; "
    assert told == f"Judge perplexity: {expected}worse with intervals apart in 1; 1000 samples."


def test_steps_of_another_decoding_have_no_paper_beside_them(tmp_path: Path) -> None:
    latency = results.latency()
    name = next(row["model"]["name"] for row in latency["rows"] if row["model"]["family"] == "dadlm")
    page, text = make(tmp_path, latency | {"settings": {name: "FH nucleus position"}})
    assert page.rows("Latency")[name][2] == page.rows("Latency")[name][4] == "–"
    assert f"A step of {name}" in text and "(paper" not in text.split(f"A step of {name}")[1].split("\n")[0]
