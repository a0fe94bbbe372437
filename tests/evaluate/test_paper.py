"""The paper's numbers agree with each other: a slip of the pen in one table shows in another."""

from statistics import fmean

import pytest

from dadlm.evaluate import paper

ROWS = [(size, row) for size, rows in paper.GENERATION.items() for row in rows]


def test_tables_have_the_papers_rows() -> None:
    assert {size: len(rows) for size, rows in paper.GENERATION.items()} == {16: 15, 8: 15, 4: 13}
    assert len(paper.BD3LM_300K_MAUVE) == 15 and len(paper.RECONSTRUCTION) == 7 and len(paper.LATENCY) == 6
    assert all(len(rows) == 5 for rows in paper.SUMMARISATION.values())
    for rows in paper.GENERATION.values():
        assert len({(row.denoising, row.infill) for row in rows}) == len(rows)


@pytest.mark.parametrize(("size", "row"), ROWS)
def test_adjusted_tpf_is_raw_tpf_times_the_ratio_of_latencies(size: int, row: paper.Generation) -> None:
    ratio = paper.LATENCY["bd3lm", size].ms / paper.LATENCY["dadlm", size].ms
    assert row.dadlm_tpf == pytest.approx(row.bd3lm_tpf * ratio, abs=0.0101)


@pytest.mark.parametrize(("size", "row"), [(size, row) for size, row in ROWS if row.infill is None])
def test_raw_tpf_is_what_random_remasking_expects(size: int, row: paper.Generation) -> None:
    """A forward pass is skipped when no token changed: N tokens in T·(1 − (1 − 1/T)^N) passes."""
    if row.denoising == "FH":
        assert row.bd3lm_tpf == 1
    else:
        steps = int(row.denoising.removeprefix("T="))
        assert row.bd3lm_tpf == pytest.approx(size / (steps * (1 - (1 - 1 / steps) ** size)), abs=0.01)


def test_averages_of_rouge() -> None:
    for rows in paper.SUMMARISATION.values():
        for row in rows.values():
            assert row.average == pytest.approx(fmean((row.rouge1, row.rouge2, row.rougeL)), abs=0.0051)


def test_overheads_that_the_text_names() -> None:
    told = {16: (2.01, 7.3), 8: (1.24, 5.5), 4: (0.97, 4.7)}
    for size, (ms, percent) in told.items():
        ours, base = paper.LATENCY["dadlm", size], paper.LATENCY["bd3lm", size]
        assert ours.ms - base.ms == pytest.approx(ms) and 100 * (ours.ms / base.ms - 1) == pytest.approx(
            percent, abs=0.05
        )
    assert max(paper.LATENCY["dadlm", size].peak - paper.LATENCY["bd3lm", size].peak for size in told) == 76
