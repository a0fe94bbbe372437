"""Infilling against a loop over runs, written from the paper's words and NOTES' reading of the edges."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.decode.tiny import many

from dadlm.decode.infill import short_gaps


def naive_row(masked: list[bool], inside: int, longest: int, ratio: Fraction) -> list[bool]:
    """One row, of which the first `inside` positions count."""
    filled = [False] * len(masked)
    known = sum(not m for m in masked[:inside])
    if Fraction(known, inside) < ratio:
        return filled
    i = 0
    while i < inside:
        if not masked[i]:
            i += 1
            continue
        end = i
        while end < inside and masked[end]:
            end += 1
        bounded = end < inside  # by a known token; the left side is known or the edge of the block
        if bounded and end - i <= longest:
            filled[i:end] = [True] * (end - i)
        i = end
    return filled


@st.composite
def batches(draw):
    width = draw(st.integers(1, 12))
    rows = draw(st.integers(1, 4))
    inside = [draw(st.integers(1, width)) for _ in range(rows)]
    masked = [[draw(st.booleans()) and i < n for i in range(width)] for n in inside]
    longest = draw(st.integers(1, 5))
    of = draw(st.integers(1, 12))
    ratio = draw(st.sampled_from([Fraction(draw(st.integers(0, of)), of), Fraction(1, 2), Fraction(0)]))
    return masked, inside, longest, ratio


@many
@given(batches())
def test_equals_a_loop_over_runs(batch):
    masked, inside, longest, ratio = batch
    mask = torch.tensor(masked)
    within = torch.arange(mask.shape[1]) < torch.tensor(inside)[:, None]
    found = short_gaps(mask, within, longest, float(ratio))
    assert found.tolist() == [naive_row(m, n, longest, ratio) for m, n in zip(masked, inside, strict=True)]


def filled(row: str, longest: int, ratio: float = 0.0, padding: int = 0) -> str:
    """_ is masked, x is known."""
    mask = torch.tensor([[char == "_" for char in row] + [False] * padding])
    inside = torch.arange(mask.shape[1])[None] < len(row)
    found = short_gaps(mask, inside, longest, ratio)[0].tolist()
    assert not any(found[len(row) :]), "padding is never filled"
    return "".join("o" if f else char for f, char in zip(found, row, strict=False))


@pytest.mark.parametrize(
    ("row", "longest", "expected"),
    [
        ("x_x__x___x", 2, "xoxoox___x"),
        ("x_x__x___x", 3, "xoxooxooox"),
        ("__x", 2, "oox"),  # the text before the block is known
        ("___x", 2, "___x"),
        ("x__", 2, "x__"),  # behind the block there is nothing yet
        ("x_", 1, "x_"),
        ("____", 4, "____"),
        ("xxxx", 2, "xxxx"),
        ("_", 1, "_"),
    ],
)
def test_edges_of_the_block(row: str, longest: int, expected: str):
    assert filled(row, longest) == expected
    assert filled(row, longest, padding=3) == expected, "padding behind the window is not a known token"


@pytest.mark.parametrize(
    ("row", "ratio", "expected"),
    [
        ("x_x__", 0.4, "xox__"),  # 2 of 5 known: exactly the ratio
        ("x_x__", 0.41, "x_x__"),
        ("x_x_", 0.5, "xox_"),
        ("_x__", 0.0, "ox__"),
        ("_xxxxxxxxx", 0.9, "oxxxxxxxxx"),  # 0.9 has no exact binary form
        ("___xxxxxxx", 0.7, "oooxxxxxxx"),
        ("_______xxx", 0.3, "oooooooxxx"),
    ],
)
def test_the_known_share_must_reach_the_ratio(row: str, ratio: float, expected: str):
    assert filled(row, 9, ratio) == expected
    assert filled(row, 9, ratio, padding=5) == expected, "the share is of the window, not of the padding"


def test_rows_are_judged_one_by_one():
    masked = torch.tensor([[False, True, False, True], [True, True, False, True]])
    found = short_gaps(masked, torch.ones_like(masked), 2, 0.5)
    assert found.tolist() == [[False, True, False, False], [False] * 4]
