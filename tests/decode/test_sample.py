"""Tokens from logits: the nucleus by its definition, the inverse CDF at its edges, frequencies."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.decode.naive import standard_nucleus
from tests.decode.tiny import many

from dadlm.decode import sample
from dadlm.decode.sample import draw, draw_tokens, in_nucleus, most_probable, nucleus

BELOW_ONE = 1 - 2.0**-24


def kept(p: list[float], top_p: float, rule: str = "standard") -> set[int]:
    out = nucleus(torch.tensor(p), top_p, rule)
    assert ((out == 0) | (out == torch.tensor(p))).all(), "what is kept keeps its probability"
    return set(out.nonzero().flatten().tolist())


@st.composite
def sixty_fourths(draw_):
    """Probabilities in 64ths, with ties: sums are exact in fp32, so the definition leaves no room."""
    parts = draw_(st.lists(st.integers(1, 12), min_size=1, max_size=8).filter(lambda x: sum(x) <= 64))
    parts.append(64 - sum(parts))
    return [part / 64 for part in draw_(st.permutations([part for part in parts if part]))]


@many
@given(sixty_fourths(), st.integers(1, 63))
def test_standard_is_the_smallest_set_that_reaches_top_p(p: list[float], part: int):
    top_p = part / 64
    found = kept(p, top_p)
    assert sum(p[i] for i in found) >= top_p
    smaller = max((sum(c) for c in itertools.combinations(p, len(found) - 1)), default=0.0)
    assert smaller < top_p, "no smaller set reaches it"
    assert found == standard_nucleus(p, top_p), "and ties go to the lowest id"


@many
@given(sixty_fourths(), st.integers(1, 63))
def test_bd3lm_leaves_out_the_token_that_crosses(p: list[float], part: int):
    top_p = part / 64
    order = sorted(range(len(p)), key=lambda i: (-p[i], i))
    mass = list(itertools.accumulate(p[i] for i in order))
    expected = {i for i, m in zip(order, mass, strict=True) if m <= top_p} | {order[0]}
    found = kept(p, top_p, "bd3lm")
    assert found == expected
    assert found <= kept(p, top_p), "never wider than the standard rule"


def test_bd3lm_is_narrower():
    p = [0.5, 0.25, 0.125, 0.125]
    assert kept(p, 0.8) == {0, 1, 2}
    assert kept(p, 0.8, "bd3lm") == {0, 1}
    assert kept(p, 0.3) == kept(p, 0.3, "bd3lm") == {0}, "the first stays in any case"


def test_ties_go_to_the_lowest_id():
    assert kept([0.125] * 8, 0.5) == {0, 1, 2, 3}
    assert kept([0.125] * 8, 0.51) == {0, 1, 2, 3, 4}
    assert kept([0.125] * 8, 0.5, "bd3lm") == {0, 1, 2, 3}
    assert kept([0.1] * 3 + [0.4] + [0.1] * 3, 0.45) == {3, 0}


def test_top_p_one_keeps_all():
    p = torch.randn(50, 1000, generator=torch.Generator().manual_seed(0)).mul(4).softmax(-1)
    assert nucleus(p, 1.0).equal(p)
    assert nucleus(p, 1.0, "bd3lm").equal(p)


def test_rows_have_their_own_nucleus():
    p = torch.randn(6, 5, 40, generator=torch.Generator().manual_seed(1)).mul(2).softmax(-1)
    whole = nucleus(p, 0.7)
    for row, col in itertools.product(range(6), range(5)):
        assert whole[row, col].equal(nucleus(p[row, col], 0.7))
        assert set(whole[row, col].nonzero().flatten().tolist()) == standard_nucleus(
            p[row, col].double().tolist(), 0.7
        )


@pytest.mark.parametrize("V", [1, 7, 1024, 3000])
def test_the_threshold_among_the_largest_is_that_by_bits(V: int):
    """Flat rows, ties, a single token, a nucleus of nearly all (more than are looked at first), no cut."""
    generator = torch.Generator().manual_seed(V)
    logits = torch.randn(40, V, generator=generator) * torch.linspace(0, 4, 40)[:, None]
    logits[::3] = logits[::3].round()
    weight = (logits - logits.amax(-1, keepdim=True)).exp()
    weight[1, 1:] = 0
    top_p = torch.tensor([0.9, 1e-6, 0.999, torch.inf, 0.3], dtype=torch.float64).repeat(8)[:, None]
    exact = weight.double()
    wanted = exact.sum(-1, keepdim=True) * top_p
    by_bits = sample._by_bits(exact, weight.view(torch.int32), wanted)
    assert torch.equal(sample._by_largest(weight, wanted), by_bits)


def test_rows_without_a_cut_make_nobody_sort(monkeypatch: pytest.MonkeyPatch):
    """With temperature 1 and top_p 1, say, the largest weights would never be enough."""
    looked_at, topk = [], torch.Tensor.topk
    monkeypatch.setattr(torch.Tensor, "topk", lambda x, k: (looked_at.append(k), topk(x, k))[1])
    monkeypatch.setattr(sample.np, "sort", lambda *_, **__: pytest.fail("all weights were sorted"))
    weight = torch.linspace(0, 1, 3000).square().expand(2, -1)
    top_p = torch.tensor([[torch.inf], [0.01]], dtype=torch.float64)
    found = sample._by_largest(weight, weight.double().sum(-1, keepdim=True) * top_p)
    assert looked_at == [1024] and found[0] == 0 and found[1] > 0


def test_a_long_tail_is_cut_where_it_should_be():
    """A GPT-2 sized vocabulary: fp32 sums must not move the border by more than rounding."""
    p = torch.randn(50_258, generator=torch.Generator().manual_seed(2)).softmax(-1)
    for top_p in (0.1, 0.5, 0.9, 0.99):
        found = nucleus(p, top_p)
        reached = float(found.double().sum())
        smallest = float(found[found > 0].min())
        assert top_p - 1e-6 <= reached <= top_p + smallest + 1e-6


@pytest.mark.parametrize("u", [0.0, 2.0**-24, 0.5, BELOW_ONE])
def test_a_token_of_probability_zero_is_never_drawn(u: float):
    generator = torch.Generator().manual_seed(3)
    p = torch.rand(400, 60, generator=generator) ** 8
    p = p.masked_fill(torch.rand(400, 60, generator=generator) < 0.8, 0.0)
    p[:, 30] += 1e-30  # at least one is possible, however small
    p[0] = 0.0
    p[0, [7, 9]] = torch.tensor([1.0, 1e-12])
    p[1] = 0.0
    p[1, [0, 59]] = torch.tensor([1e-38, 1.0])
    drawn = draw(p, torch.full((400,), u))
    assert (p.gather(1, drawn[:, None]) > 0).all()


def test_extreme_uniforms_take_the_first_and_the_last_possible_token():
    p = torch.tensor([[0.0, 0.0, 0.3, 0.0, 0.4, 0.3, 0.0]])
    assert draw(p, torch.tensor([0.0])).item() == 2
    assert draw(p, torch.tensor([BELOW_ONE])).item() == 5
    single = torch.tensor([[0.0, 1.0, 0.0]])
    for u in (0.0, 0.3, BELOW_ONE):
        assert draw(single, torch.tensor([u])).item() == 1


def test_every_cell_of_the_uniform_lands_on_its_token():
    """Unnormalised sixteenths, one uniform on each border: exact counts, borders to the next token."""
    p = torch.tensor([3.0, 0.0, 5.0, 1.0, 7.0])
    uniform = torch.arange(16) / 16
    counts = torch.bincount(draw(p.expand(16, 5), uniform), minlength=5)
    assert counts.tolist() == [3, 0, 5, 1, 7]


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.6, 1.0), (1.7, 0.8), (1.0, 0.5)])
def test_frequencies_follow_the_tempered_nucleus(temperature: float, top_p: float):
    samples = 100_000
    generator = torch.Generator().manual_seed(4)
    logits = 1.5 * torch.randn(12, generator=generator)
    logits[5] = -torch.inf
    uniform = torch.rand(samples, generator=generator)
    drawn = draw_tokens(logits.expand(samples, -1), uniform, temperature, top_p, "standard")
    p = (logits.double() / temperature).softmax(-1).tolist()
    inside = sorted(standard_nucleus(p, top_p) - {5})
    expected = torch.tensor([p[i] for i in inside]).double()
    expected *= samples / expected.sum()
    counts = torch.bincount(drawn, minlength=12)
    assert counts.sum() == counts[inside].sum(), "nothing from outside the nucleus"
    chi_square = ((counts[inside] - expected) ** 2 / expected).sum()
    freedom = torch.tensor(len(inside) - 1.0).double()
    assert torch.special.gammaincc(freedom / 2, chi_square / 2) > 0.001


def test_temperature_zero_is_the_most_probable_token_lowest_id_first():
    logits = torch.tensor([[1.0, 3.0, 3.0, -torch.inf], [2.0, 2.0, 2.0, 2.0], [-5.0, -6.0, -4.0, -4.0]])
    for u in (0.0, 0.7, BELOW_ONE):
        drawn = draw_tokens(logits, torch.full((3,), u), 0.0, 0.9, "standard")
        assert drawn.tolist() == most_probable(logits).tolist() == [1, 0, 2]


@pytest.mark.parametrize("temperature", [1e-3, 1e-20, 1e-38, 1e-44])
def test_a_temperature_near_zero_approaches_zero(temperature: float):
    """Dividing by it must not overflow into NaN, which would silently mean token 0."""
    logits = torch.tensor([[0.5, 4.0, 3.0, -torch.inf], [-70.0, -90.0, -60.0, -80.0], [9.0, 80.0, 1.0, 2.0]])
    drawn = draw_tokens(logits, torch.tensor([0.0, 0.5, BELOW_ONE]), temperature, 0.9, "standard")
    assert drawn.tolist() == [1, 2, 1]


def test_a_row_is_drawn_alone_as_in_company():
    generator = torch.Generator().manual_seed(5)
    logits, uniform = torch.randn(64, 3, 30, generator=generator), torch.rand(64, 3, generator=generator)
    whole = draw_tokens(logits, uniform, 0.9, 0.8, "standard")
    for row in range(64):
        alone = draw_tokens(logits[row : row + 1], uniform[row : row + 1], 0.9, 0.8, "standard")
        assert alone[0].equal(whole[row])


def test_the_set_of_each_row_by_its_own_top_p():
    """Ties, a single token, a top_p that only the first reaches, and one that cuts off nothing."""
    weights = torch.tensor(
        [[0.2, 0.4, 0.2, 0.2], [0.0, 1.0, 0.0, 0.0], [0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1]]
    )
    top_p = torch.tensor([0.6, 0.9, 1e-9, 1.0], dtype=torch.float64)
    inside = in_nucleus(weights, top_p)
    for row, p, share in zip(inside, weights.tolist(), top_p.tolist(), strict=True):
        assert set(row.nonzero().flatten().tolist()) == standard_nucleus(p, share)
