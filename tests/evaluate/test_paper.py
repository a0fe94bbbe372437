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


def test_averages_of_rouge() -> None:
    for rows in paper.SUMMARISATION.values():
        for row in rows.values():
            assert row.average == pytest.approx(fmean((row.rouge1, row.rouge2, row.rougeL)), abs=0.0051)
