"""Tokens per forward pass: the closed form of docs/maths.md §8, and every TPF of the paper's tables.

The model is a real one whose head knows nothing: end-of-text, the highest id, is never in the nucleus.
"""

import pytest
import torch
from tests.decode.tiny import tiny

from dadlm import Model, generate

Infill = tuple[int, float] | None

# The paper's tables for block sizes 16, 8 and 4, BD3LM's column, which is raw TPF:
# (N, T or None for first-hitting, infilling).
PAPER: dict[tuple[int, int | None, Infill], float] = {
    (16, None, None): 1.00,
    (16, None, (2, 0.5)): 1.54,
    (16, None, (2, 0.0)): 1.78,
    (16, None, (3, 0.5)): 1.66,
    (16, 16, None): 1.55,
    (16, 16, (2, 0.5)): 1.99,
    (16, 16, (2, 0.0)): 1.94,
    (16, 16, (3, 0.5)): 2.18,
    (16, 12, None): 1.78,
    (16, 12, (2, 0.5)): 2.21,
    (16, 12, (2, 0.0)): 2.18,
    (16, 12, (3, 0.5)): 2.42,
    (16, 8, None): 2.27,
    (16, 6, None): 2.82,
    (16, 4, None): 4.04,
    (8, None, None): 1.00,
    (8, None, (2, 0.5)): 1.44,
    (8, None, (2, 0.0)): 1.62,
    (8, None, (3, 0.5)): 1.51,
    (8, 8, None): 1.52,
    (8, 8, (2, 0.5)): 1.80,
    (8, 8, (2, 0.0)): 1.80,
    (8, 8, (3, 0.5)): 1.88,
    (8, 6, None): 1.74,
    (8, 6, (2, 0.5)): 1.99,
    (8, 6, (2, 0.0)): 2.00,
    (8, 6, (3, 0.5)): 2.06,
    (8, 4, None): 2.22,
    (8, 3, None): 2.77,
    (8, 2, None): 4.02,
    (4, None, None): 1.00,
    (4, None, (2, 0.5)): 1.26,
    (4, None, (2, 0.0)): 1.41,
    (4, None, (3, 0.0)): 1.55,
    (4, 4, None): 1.46,
    (4, 4, (2, 0.5)): 1.54,
    (4, 4, (2, 0.0)): 1.57,
    (4, 4, (3, 0.0)): 1.64,
    (4, 3, None): 1.66,
    (4, 3, (2, 0.5)): 1.71,
    (4, 3, (2, 0.0)): 1.73,
    (4, 3, (3, 0.0)): 1.79,
    (4, 2, None): 2.13,
}
GRID = [(N, T) for N, T, infill in PAPER if T is not None and infill is None]


def knows_nothing(N: int, blocks: int) -> Model:
    model = tiny("bd3lm", block=N, context=N * (blocks + 1), layers=1, width=4, heads=1, tie_embedding=False)
    with torch.no_grad():
        model.head.linear.weight.zero_()
    return model


def measure(N: int, T: int | None, infill: Infill, rows: int, blocks: int) -> float:
    out = generate(
        knows_nothing(N, blocks),
        [[0] * N] * rows,
        max_new_tokens=N * blocks,
        sampler="first-hitting" if T is None else "random",
        steps=T,
        infill=infill,
        seed=0,
        batch_size=1000,
    )
    assert sum(map(len, out.tokens)) == rows * blocks * N, "no text may end early"
    assert out.cache_passes == [blocks - 1] * rows
    return out.mean_tokens_per_forward


def closed_form(N: int, T: int) -> float:
    return N / (T * (1 - (1 - 1 / T) ** N))


@pytest.mark.parametrize(("N", "T"), GRID)
def test_closed_form_within_one_percent(N: int, T: int):
    assert closed_form(N, T) == pytest.approx(PAPER[N, T, None], abs=0.0101), "NOTES §1: all 13 to 0.01"
    assert measure(N, T, None, rows=1000, blocks=4 if N < 16 else 2) == pytest.approx(
        closed_form(N, T), rel=0.01
    )


@pytest.mark.parametrize("N", [4, 8, 16])
def test_first_hitting_fixes_one_token_per_pass(N: int):
    assert measure(N, None, None, rows=10, blocks=2) == 1.0


@pytest.mark.parametrize(
    ("N", "T", "infill"),
    [
        (4, None, (2, 0.5)),
        (4, None, (3, 0.0)),
        (4, 3, (3, 0.0)),
        (8, None, (2, 0.0)),
        (8, 6, (2, 0.5)),
        (16, None, (3, 0.5)),
        (16, 12, (3, 0.5)),
        (16, 16, (2, 0.0)),
    ],
)
def test_some_rows_of_the_paper_with_infilling(N: int, T: int | None, infill: Infill):
    assert measure(N, T, infill, rows=1000, blocks=3) == pytest.approx(PAPER[N, T, infill], abs=0.02)


@pytest.mark.acceptance
def test_every_row_of_the_paper():
    """10,000 blocks a row; prints the paper's TPF beside the measured one."""
    print("\n N  sampler        infill     paper  measured  difference")
    far = []
    for (N, T, infill), paper in PAPER.items():
        tpf = measure(N, T, infill, rows=1000, blocks=10)
        sampler = "first-hitting" if T is None else f"random T={T}"
        fill = "" if infill is None else f"k={infill[0]} r={infill[1]}"
        print(f"{N:2}  {sampler:14} {fill:9} {paper:6.2f}  {tpf:8.3f}  {tpf - paper:+10.3f}", flush=True)
        if abs(tpf - paper) > 0.02:
            far.append((N, sampler, fill, paper, round(tpf, 3)))
        if T is not None and infill is None:
            assert tpf == pytest.approx(closed_form(N, T), rel=0.01)
    assert not far
