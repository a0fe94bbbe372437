"""The page of results: what stands in it is from files, what has no file is missing, what fails is said."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from tests.evaluate import results as examples

from research import claims, figures, files, page
from research.plan import plan

ROOT = Path(__file__).parents[2]


def put(folder: Path, name: str, content: Any) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(content), encoding="utf-8")


def curve(name: str, steps: int, after: str | None, *gaps: float) -> dict[str, Any]:
    entries = [
        {"step": 50 * (place + 1), "reconstruction": 4 - gap, "bound": 4.0, "gap": gap}
        for place, gap in enumerate(gaps)
    ]
    run = {"name": name, **plan()[name].facts, "after": after, "steps": steps, "ms_per_step": 29.04}
    return run | {"curve": entries or [{"step": steps, "loss": 4.25}]}


def pair(one: str, other: str, difference: tuple[float, float, float], bound: float = 0.0) -> dict[str, Any]:
    result = examples.reconstruction("dadlm", plan()[one].block_size, 4.0 + difference[0], 4.0)
    result["model"]["name"], result["against"]["name"] = one, other
    result["difference"] = dict(zip(("mean", "low", "high"), difference, strict=True))
    result["bound_difference"] = examples.interval(bound, 0.004)
    return result | {
        "against_interval": examples.interval(4.0, 0.02),
        "against_bound": 4.0,
        "against_gap": 0.0,
    }


def generation() -> dict[str, Any]:
    """The paper's grid at N = 16 with the paper's MAUVE and judge perplexities to fit; AR for reference."""
    result = examples.generation((16,))
    names = {"BD3LM 16": "bd3lm-16-long", "DA-DLM 16": "dadlm-16-long", "AR": "ar"}
    for row in result["rows"]:
        row |= {"model": names[row["model"]], "matched": False, "nucleus": "standard"}
        row["raw_tpf_interval"] = examples.interval(row["raw_tpf"], 0.01)
    judged = {"judge_perplexity": examples.interval(20.0, 1.0), "entropy": 5.0}
    return result | {"reference": judged, "device": "a GPU", "dtype": "bfloat16"}


def cells(text: str) -> list[list[str]]:
    """The rows of all tables, without their heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rules = [line.startswith("| ---") for line in lines] + [False]
    rows = (line for place, line in enumerate(lines) if not (rules[place] or rules[place + 1]))
    return [row.strip("| ").split(" | ") for row in rows]


def verdicts(folder: Path) -> dict[str, str]:
    return {claim.what: claim.verdict for claim in claims.claims(files.read_results(folder))}


# The pages in docs


def test_the_pages_are_those_of_the_result_files() -> None:
    results = files.read_results()
    content = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert page.renewed(content, results) == content, "run python -m research.page"
    assert [mark[2] for mark in page.MARK.finditer(content)] == list(page.PARTS)
    for picture in re.findall(r"\(pictures/([\w.-]+)\)", content):
        assert (ROOT / "docs" / "pictures" / picture).is_file()
    samples = (ROOT / "docs" / "samples.md").read_text(encoding="utf-8")
    assert page.samples_page(results) == samples, "run python -m research.page"


def test_without_files_no_table_has_a_row(tmp_path: Path) -> None:
    results = files.read_results(tmp_path)
    for name, part in page.PARTS.items():
        assert not cells(part(results)), name
    assert "`dadlm-16-long:bd3lm-16-long`" in page.differences(results)
    assert "`ar-half`" in page.perplexity(results) and "news" not in page.perplexity(results)
    assert "`probe-gated`" in page.probes(results) and "`dadlm-16-k8`" in page.ablations(results)
    assert "None yet" in page.samples_page(results)


# Likelihood


@pytest.mark.parametrize(
    ("difference", "holds"),
    [((-0.15, -0.2, -0.1), True), ((-0.149, -0.2, -0.1), False), ((-0.2, -0.4, 0.0), False)],
)
def test_the_gain_must_be_large_and_sure(
    tmp_path: Path, difference: tuple[float, float, float], holds: bool
) -> None:
    put(tmp_path, "measured/a.json", pair("dadlm-4", "bd3lm-4", difference, 0.0059))
    found = verdicts(tmp_path)
    assert found["reconstruction, `dadlm-4` − `bd3lm-4`, nats"] == ("holds" if holds else "**does not hold**")
    assert found["bound, `dadlm-4` − `bd3lm-4`, nats"] == "holds"
    put(tmp_path, "measured/a.json", pair("dadlm-4", "bd3lm-4", difference, 0.0061))
    assert verdicts(tmp_path)["bound, `dadlm-4` − `bd3lm-4`, nats"] == "**does not hold**"


def test_equal_compute_must_only_be_below(tmp_path: Path) -> None:
    for high, verdict in ((-0.01, "holds"), (0.01, "**does not hold**")):
        one = pair("dadlm-16-long", "bd3lm-16-long-matched", (-0.02, -0.04, high), 1)
        put(tmp_path, "measured/a.json", one)
        assert list(verdicts(tmp_path).values()) == [verdict]


def test_steps_are_those_of_all_stages(tmp_path: Path) -> None:
    for one in (curve("mdlm-base", 17_000, None), curve("base-8", 1800, "mdlm-base")):
        put(tmp_path, f"runs/{one['name']}.json", one)
    put(tmp_path, "runs/dadlm-8.json", curve("dadlm-8", 1200, "base-8", 0.01, 0.16))
    put(tmp_path, "runs/ar-half.json", curve("ar-half", 2000, "ar-base"))
    results = files.read_results(tmp_path)
    assert [results.steps(name) for name in ("dadlm-8", "ar-half")] == [20_000, None]
    rows = {row[0]: row[1:] for row in cells(page.training(results))}
    assert rows["`dadlm-8`"] == ["`base-8`", "1,200", "20,000", "3.840", "4.000", "0.160"]
    assert rows["`mdlm-base`"] == ["–", "17,000", "17,000", "4.250", "–", "–"]


# Texts


def test_claims_on_texts_hold_for_the_papers_numbers_and_fail_with_one_row(tmp_path: Path) -> None:
    result = generation()
    put(tmp_path, "texts/generation.json", result)
    found = verdicts(tmp_path)
    assert [verdict for what, verdict in found.items() if "frontier" not in what] == ["holds", "holds"]
    (row,) = (row for row in result["rows"] if (row["model"], row["denoising"]) == ("dadlm-16-long", "T=6"))
    row |= {"mauve": examples.interval(0.001, 0.0001), "judge_perplexity": examples.interval(9999, 1)}
    put(tmp_path, "texts/generation.json", result)
    assert set(verdicts(tmp_path).values()) == {"**does not hold**"}


@pytest.mark.parametrize("seed", range(12))
def test_a_frontier_is_above_where_every_speed_says_so(seed: int) -> None:
    draw = random.Random(seed)

    def points(shift: float) -> list[dict[str, Any]]:
        speeds = [round(draw.uniform(1, 4), 2) for _ in range(4)]
        values = [draw.random() / speed + shift for speed in speeds]
        return [
            {"raw_tpf": 9.0, "adjusted_tpf": speed, "mauve": {"mean": value}}
            for speed, value in zip(speeds, values, strict=True)
        ]

    ours, theirs = points(0.3), points(0.0)
    found = list(claims._frontier("", "mauve", list(zip(ours, theirs, strict=True))))

    def best(rows: list[dict[str, Any]], speed: float) -> float | None:
        good = [row["mauve"]["mean"] for row in rows if row["adjusted_tpf"] >= speed - 1e-9]
        return max(good, default=None)

    fastest = max(row["adjusted_tpf"] for row in ours)
    if fastest < 1.4:
        assert not found
        return
    speeds = [place / 100 for place in range(140, round(100 * fastest) + 1)]
    compared = [(best(ours, speed), best(theirs, speed)) for speed in speeds]
    lost = any(other is not None and one is not None and one <= other for one, other in compared)
    reaches = fastest >= max(row["adjusted_tpf"] for row in theirs)
    expected = "**does not hold**" if lost else "holds" if reaches else "holds up to"
    assert found[0].verdict.startswith(expected)


# Speed, README, figures


def test_figures_are_drawn_and_the_same_numbers_give_the_same_file(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    results = files.read_results()
    for name in ("a.svg", "b.svg"):
        figures.draw_curves(results, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    drawn = []
    for _ in range(2):
        figures.draw_texts(generation(), tmp_path)
        drawn.append({file.name: file.read_bytes() for file in tmp_path.glob("study-*.svg")})
    assert drawn[0] == drawn[1] and len(drawn[0]) == 4 and all(b"<svg" in one for one in drawn[0].values())
