"""Summarisation: ROUGE and the lead sentence by hand, restarts, bad lines, empty summaries."""

import json
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.commands import Cli, refused
from tests.decode.tiny import FAMILIES, force_eot, tiny
from tests.evaluate.results import lines

from dadlm import Model
from dadlm.decode import generate
from dadlm.errors import ConfigError, DataError
from dadlm.evaluate.documents import Documents, read_documents
from dadlm.evaluate.subject import described
from dadlm.evaluate.summarisation import (
    lead_sentence,
    paper_settings,
    prompt_of,
    rouge_scorer,
    summarisation,
    summary_settings,
)
from dadlm.model.checkpoint import save
from dadlm.tokens import word_level

# The module itself: its name in the package is the function's.
module = import_module("dadlm.evaluate.summarisation")
WORDS = [f"w{number}" for number in range(27)] + ["end."]  # with end-of-text and mask: 30 ids
TEXTS = tuple((f"w{i} w1 w2 w3 end. w{i + 1} w5 w6 end.", f"w{i} w3 w5") for i in range(7))
NUMBERS = ("rouge1", "rouge2", "rougeL", "average")


def model_of(family: str = "bd3lm", **shape: Any) -> Model:
    return tiny(family, context=32, tokenizer=word_level(WORDS), **shape)


def same(result: dict[str, Any]) -> dict[str, Any]:
    """All but the time it took, and with what batch."""
    times = ("ms_per_summary", "timed", "batch_size")
    return {name: value for name, value in result.items() if name not in times}


# ROUGE


def test_rouge(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted by hand: 9 and 8 words, 6 in common; 8 and 7 word pairs, 2 in common; 5 in the same order."""
    rouge = rouge_scorer()
    scores = rouge("The quick brown fox jumps over the lazy dog", "The quick brown dog jumps on the log.")
    assert scores == pytest.approx([100 * 2 * 6 / 17, 100 * 2 * 2 / 15, 100 * 2 * 5 / 17])

    # Words are stemmed, and nothing scores nothing.
    assert rouge("the dog was jumping", "the dogs was jumped") == pytest.approx([100, 100, 100])
    assert rouge("a b c", "") == [0, 0, 0]
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(ConfigError, match=r"pip install 'dadlm\[eval\]'"):
        rouge_scorer()


@pytest.mark.parametrize(
    ("document", "lead"),
    [
        ("One here. Two there.", "One here."),
        ("  Really?! Yes.", "Really?!"),
        ('"Stop!" he said. Then he left.', '"Stop!"'),
        ("Mr. J. R. Smith of the U.S. embassy left. He ran.", "Mr. J. R. Smith of the U.S. embassy left."),
        ("On Sept. 4 it rose by 3.5 percent. Then it fell.", "On Sept. 4 it rose by 3.5 percent."),
        ("A headline\nThen text.", "A headline"),
        ("(It rained.) We stayed.", "(It rained.)"),
        ("no end at all", "no end at all"),
        ("see www.example.com for more . next", "see www.example.com for more ."),
    ],
)
def test_lead_sentence(document: str, lead: str) -> None:
    assert lead_sentence(document) == lead


# The evaluation


def test_lead_baseline_and_average_by_hand() -> None:
    """Lead "w1 w2 end" of 3 words; the reference has 4, of which 2 are in it, next to each other."""
    result = summarisation(model_of(), Documents(pairs=(("w1 w2 end. w3", "w1 w2 w4 w5"),)))
    expected = {"rouge1": 100 * 4 / 7, "rouge2": 100 * 2 / 5, "rougeL": 100 * 4 / 7}
    for name, value in (expected | {"average": sum(expected.values()) / 3}).items():
        assert result["lead"][name] == pytest.approx({"mean": value, "low": value, "high": value})


def test_a_model_that_writes_the_reference_scores_100(monkeypatch: pytest.MonkeyPatch) -> None:
    """Means, intervals, passes and empties from known texts in place of a model's."""
    texts = [reference for _, reference in TEXTS[:5]] + ["", "  "]

    def known(model, prompts, *, seed, batch_size, settings):
        out = generate(model, prompts, seed=seed, batch_size=batch_size, settings=settings)
        tokens, passes = [[1] * (2 * one + 1) for one in seed], [one + 1 for one in seed]
        return type(out)([texts[one] for one in seed], tokens, passes, passes, seed)

    monkeypatch.setattr(module, "generate", known)
    result = summarisation(model_of(), Documents(pairs=TEXTS), batch_size=3)
    for name in NUMBERS:
        assert result[name]["mean"] == pytest.approx(100 * 5 / 7)
        assert 0 < result[name]["low"] < 100 * 5 / 7 < result[name]["high"] <= 100
    assert result["empty"] == 2
    assert result["tpf"] == 49 / 28  # 1 + 3 + … + 13 tokens in 1 + 2 + … + 7 passes
    assert (result["tokens"], result["forward_passes"], result["cache_passes"]) == (49, 28, 28)


@pytest.mark.parametrize("family", FAMILIES)
def test_any_family_whatever_the_batch(family: str) -> None:
    model, documents = model_of(family), Documents(pairs=TEXTS, source="made up")
    result = summarisation(model, documents, batch_size=1)
    assert same(summarisation(model, documents, batch_size=4)) == same(result)
    assert result["kind"] == "summarisation" and result["data"]["pairs"] == 7
    assert (result["document_tokens"], result["summary_tokens"]) == (24, 8)
    assert result["ms_per_summary"] > 0
    assert family != "ar" or result["tpf"] == 1
    json.dumps(result, allow_nan=False)


def test_empty_summaries_are_counted() -> None:
    result = summarisation(force_eot(model_of()), Documents(pairs=TEXTS))
    assert result["empty"] == 7 and result["tokens"] == 7  # end-of-text is a token
    assert all(result[name] == {"mean": 0, "low": 0, "high": 0} for name in NUMBERS)
    assert result["lead"]["rouge1"]["mean"] > 0


def test_long_documents_are_cut_and_counted() -> None:
    model, eot = model_of(), 28
    assert prompt_of(model, "w1 w2 w3", 4) == ([1, 2, 3, eot], False)
    assert prompt_of(model, "w1 w2 w3 w4", 4) == ([1, 2, 3, eot], True)
    pairs = (("w1 " * 23, "w1 " * 8), ("w1 " * 24, "w1 " * 9), ("w1 " * 99, "w1"))
    result = summarisation(model, Documents(pairs=pairs))
    assert (result["truncated"], result["references_too_long"]) == (2, 1)


def test_lengths_must_fit() -> None:
    documents = Documents(pairs=TEXTS)
    for given, lengths in (({"document_tokens": 10}, (10, 22)), ({"summary_tokens": 4}, (28, 4))):
        result = summarisation(model_of(), documents, **given)
        assert (result["document_tokens"], result["summary_tokens"]) == lengths
    for read, write in ((30, 3), (1, None), (None, 32)):
        with pytest.raises(ConfigError, match="must fit into the context of 32"):
            summarisation(model_of(), documents, document_tokens=read, summary_tokens=write)
    with pytest.raises(ConfigError, match="no tokenizer"):
        summarisation(tiny("ar"), documents)


def test_how_summaries_are_decoded() -> None:
    """The paper's way, and ours."""
    assert paper_settings("ar").temperature == 0
    for family in ("bd3lm", "mdlm", "dadlm"):
        settings = paper_settings(family, infill=(2, 0.5))
        assert (settings.sampler, settings.path, settings.threshold) == ("confidence", "viterbi", 0.9)
        assert (settings.transition_weight, settings.infill) == (0.5, (2, 0.5))
    with pytest.raises(ConfigError, match="omit infill"):
        paper_settings("ar", infill=(2, 0.5))
    assert summary_settings("ar") == paper_settings("ar")
    ours = summary_settings("dadlm", threshold=0.7, infill=(2, 0.5))
    assert (ours.path, ours.padded, ours.threshold, ours.infill) == ("lookahead", True, 0.7, (2, 0.5))
    default = summarisation(model_of("dadlm"), Documents(pairs=TEXTS))
    assert default["settings"] == described(replace(summary_settings("dadlm"), max_new_tokens=8))


def test_a_restart_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    most = 4

    def dying(*words, seed, **options):
        asked.extend(seed)
        if len(asked) > most:
            raise KeyboardInterrupt
        return generate(*words, seed=seed, **options)

    monkeypatch.setattr(module, "generate", dying)
    with pytest.raises(KeyboardInterrupt):
        summarisation(model_of(), Documents(pairs=TEXTS), batch_size=2, out=tmp_path)
    assert asked == [0, 1, 2, 3, 4, 5]
    asked, most = [], 100
    result = summarisation(model_of(), Documents(pairs=TEXTS), batch_size=3, out=tmp_path)
    assert asked == [4, 5, 6]
    assert (result["timed"], result["batch_size"]) == (3, 3)  # the other four had another batch size
    again = summarisation(model_of(), Documents(pairs=TEXTS), batch_size=3, out=tmp_path)
    assert (again["timed"], again["ms_per_summary"]) == (0, None) and same(again) == same(result)
    assert same(result) == same(summarisation(model_of(), Documents(pairs=TEXTS)))
    assert json.loads((tmp_path / "summarisation.json").read_text()) == again
    with pytest.raises(DataError, match="different: seed"):
        summarisation(model_of(), Documents(pairs=TEXTS), seed=1, out=tmp_path)


# Files


GOOD = {"document": "w1 w2 end. w3", "summary": "w1"}


def test_unusable_lines_are_named(tmp_path: Path) -> None:
    bad = [{"document": "w1"}, {"document": " \n", "summary": "w1"}, {"document": "w1", "summary": 3}, "[]"]
    file = lines(tmp_path / "d.jsonl", GOOD, bad[0], "", *bad[1:], GOOD)
    documents = read_documents(file)
    assert documents.pairs == ((GOOD["document"], GOOD["summary"]),) * 2
    assert len(documents.skipped) == 4
    for number, what in zip((2, 4, 5, 6), documents.skipped, strict=True):
        assert what.startswith(f"{file}, line {number}: ")
    result = summarisation(model_of(), documents)
    assert result["skipped"] == 4 and result["skipped_lines"] == list(documents.skipped)


def test_a_line_that_is_not_json_is_left_out_or_stops_the_reading(tmp_path: Path) -> None:
    broken = lines(tmp_path / "d.jsonl", GOOD, GOOD, '{"document": "w1'), "line 3: not valid JSON"
    odd = tmp_path / "e.jsonl", "line 2: not UTF-8"
    odd[0].write_bytes(json.dumps(GOOD).encode() + b'\n{"document": "\xff"}\n')
    for (file, why), good in zip((broken, odd), (2, 1), strict=True):
        found = read_documents(file)
        assert len(found.pairs) == good and len(found.skipped) == 1 and why in found.skipped[0]
        with pytest.raises(DataError, match=f"{why}.*leave out --strict"):
            read_documents(file, strict=True)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
def test_endless_lines_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: bytes) -> None:
    line = json.dumps(GOOD).encode()
    monkeypatch.setattr("dadlm.evaluate.documents.LONGEST", len(line))
    file = tmp_path / "d.jsonl"
    file.write_bytes(line + b"\n" + line + end)
    assert len(read_documents(file).pairs) == 2
    file.write_bytes(line + b"\n" + line + b" " + end)
    with pytest.raises(DataError, match=rf"d\.jsonl, line 2: longer than {len(line)} bytes"):
        read_documents(file)


def test_nothing_usable(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no line has \"document\" and \"summary\".*line 1: no document"):
        read_documents(lines(tmp_path / "d.jsonl", {"text": "w1"}))
    with pytest.raises(DataError, match="no file or folder"):
        read_documents(tmp_path / "nothing.jsonl")


def test_a_folder_a_limit_and_zstd(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    records = [{"document": f"w{i}", "summary": "w1"} for i in range(4)]
    lines(tmp_path / "b.jsonl", *records[2:])
    packed = zstandard.ZstdCompressor().compress("\n".join(map(json.dumps, records[:2])).encode())
    (tmp_path / "a.jsonl.zst").write_bytes(packed)
    assert [document for document, _ in read_documents(tmp_path).pairs] == ["w0", "w1", "w2", "w3"]
    assert len(read_documents(tmp_path, count=3).pairs) == 3
    (tmp_path / "a.jsonl.zst").write_bytes(packed[:-3])
    with pytest.raises(DataError, match="damaged or cut short"):
        read_documents(tmp_path)


# The command line


def test_command(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    save(model_of("dadlm"), "model")
    records = ({"document": document, "summary": summary} for document, summary in TEXTS)
    lines(Path("d.jsonl"), *records, "{}")
    words = ["evaluate", "summarisation", "--model", "model", "--data", "d.jsonl", "--infill", "2", "0.5"]
    result = cli(*words, "--json", "--device", "cpu").json
    assert result == json.loads(
        Path("evaluation/summarisation-model-d-infill-2-0.5/summarisation.json").read_text()
    )
    assert result["settings"]["infill"] == [2, 0.5] and result["skipped"] == 1
    said = " ".join(cli(*words, "--device", "cpu", "--out", "again", "--batch-size", "4").out.split())
    assert "ms per summary (7 in batches of 4)" in said
    assert "Lead sentence" in said and "1 lines left out: d.jsonl, line 8: no document" in said
    refused(cli(*words[:4]), "no data: pass --data")
