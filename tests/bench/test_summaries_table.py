"""The tables of `benchmarks/summaries.py` against numbers worked out by hand."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ROUGE = {"ar": 20.0, "bd3lm": 18.0, "bd3lm-infill": 18.0, "dadlm": 19.0, "dadlm-infill": 18.8}
ROUGE |= {f"{family}-0.5{more}": 19.75 for family in ("bd3lm", "dadlm") for more in ("", "-infill")}
PASSES = {"ar": 12, "bd3lm": 10, "bd3lm-infill": 9, "dadlm": 6, "dadlm-infill": 4}  # for 12 tokens
PASSES |= {"bd3lm-0.5": 6, "dadlm-0.5": 5}
TIMES = {"ar": 50.0, "bd3lm": 45.0, "bd3lm-infill": 40.0, "dadlm": 30.0, "dadlm-infill": 20.0}


@pytest.fixture(scope="module")
def page() -> ModuleType:
    file = ROOT / "benchmarks" / "summaries_table.py"
    spec = importlib.util.spec_from_file_location("summaries_table", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def piece(system: str, row: int) -> dict[str, Any]:
    """Every pair is worth 3 more than the one before it; the average of the three scores is the last one."""
    middle = ROUGE.get(system, 17.0) + 3 * row
    return {
        "text": "words",
        "rouge": [middle + 5, middle - 5, middle],
        "lead": [25.0, 5.0, 15.0 + 3 * row],
        "tokens": 12,
        "forward_passes": PASSES.get(system, 4),
    }


@pytest.fixture
def numbers(page: ModuleType, tmp_path: Path) -> dict[str, Any]:
    pairs = {"xsum": 3, "cnndm": 2, "wikinews_sum": 4}
    swept = {system.label for system in page.SWEPT}
    for system in {*page.SYSTEMS, *swept}:
        sets = (pairs if system in page.SYSTEMS else {}) | ({"held-out": 5} if system in swept else {})
        for name, count in sets.items():
            folder = tmp_path / system / name
            folder.mkdir(parents=True)
            lines = [json.dumps([str(row), piece(system, row)]) for row in reversed(range(count))]
            (folder / "summarisation.pieces.jsonl").write_text("\n".join(["{}", *lines]) + "\n")
            (folder / "summarisation.json").write_text(json.dumps({"model": {"name": system}}))
    for system, ms in TIMES.items():
        times = {"alone": 2 * ms, "served": ms, "machine": "a machine", "pairs": 3}
        (tmp_path / system / "times.json").write_text(json.dumps(times))
    return page.compare(tmp_path)


def test_numbers_by_hand(numbers: dict[str, Any]) -> None:
    assert [numbers[name]["pairs"] for name in ("xsum", "cnndm", "wikinews_sum", "all")] == [3, 2, 4, 9]
    pooled = numbers["all"]
    # Rows 0..2, 0..1 and 0..3 of the three sets: 10 times 3 more than the base, over 9 pairs.
    assert pooled["systems"]["ar"]["average"]["mean"] == pytest.approx(20 + 30 / 9)
    assert pooled["systems"]["dadlm"]["tpf"]["mean"] == pytest.approx(2.0)
    assert pooled["systems"]["dadlm-infill"]["forward_passes"] == 36
    # Pairs are compared with themselves: what they share cancels, and nothing is left to be unsure of.
    assert pooled["differences"]["dadlm - bd3lm"] == pytest.approx({"mean": 1.0, "low": 1.0, "high": 1.0})
    assert numbers["cnndm"]["differences"]["dadlm - ar"]["mean"] == pytest.approx(-1.0)
    assert numbers["cnndm"]["lead"]["average"]["mean"] == pytest.approx(15.5)


def test_claims_that_hold_and_one_that_does_not(page: ModuleType, numbers: dict[str, Any]) -> None:
    holds = {(row["claim"], row["must"]): row["holds"] for row in numbers["claims"]}
    # At the low threshold infilling is worth a quarter at least, and nothing was timed.
    assert [claim for claim, yes in holds.items() if not yes] == [("DA-DLM - AR, ROUGE", "≥ -0.5")]
    assert [claim for claim, _ in holds if "ms" in claim] == [
        "DA-DLM, ms per summary, alone",
        "DA-DLM, ms per summary, served",
    ]
    text = page.tables(numbers)
    assert "| DA-DLM - AR, ROUGE | ≥ -0.5 | -1.00 [-1.00, -1.00] | **no** |" in text
    assert "| DA-DLM, threshold 0.5, TPF | above BD3LM's | 2.40, 2.00 | yes |" in text
    assert "### CNN/DailyMail, 2 pairs" in text and "### All sets, 9 pairs" in text
    assert "27.17, 1.73 |" in text, "the paper's DA-DLM on CNN/DailyMail"
    assert text.count("| 60 | 30 |") == 1, "times stand once, beside all pairs"
    assert "none can summarise" not in text
    assert "### Thresholds, 5 held-out pairs" in text
    held_out = "24.00 [20.40, 27.60]"
    assert f"| 0.9 | {held_out}, 1.20 |" in text, "18 and twice 3, in 10 passes for 12 tokens"


def test_where_the_first_sentence_is_as_good_it_is_said(page: ModuleType, numbers: dict[str, Any]) -> None:
    for system in numbers["xsum"]["systems"].values():
        system["average"]["mean"] = numbers["xsum"]["lead"]["average"]["mean"] + 0.5
    assert page.tables(numbers).count("none can summarise") == 1
