"""Drawn drafts: their shapes by enumeration, recursive rejection by its exact law and by counting, and what
rows of an engine may expect of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import permutations

import pytest
import torch
from tests.decode.test_lossless import ahead_of, small
from tests.decode.test_mode import PROMPTS, causal
from tests.decode.tiny import prompt_of, silence_eot, tiny
from torch import Tensor

from dadlm import DecodeSettings, Model, generate
from dadlm.decode.batched_settings import BatchedSettings
from dadlm.decode.draft import Draft
from dadlm.decode.drawn import chain_shape, draw_tree, tree_shape
from dadlm.decode.lossless import LosslessEngine
from dadlm.decode.request import Request, Row
from dadlm.decode.verify import _try_each, accept
from dadlm.model import in_mode

# --- shapes


def chance_of(shape: tuple[int, ...], node: int) -> Fraction:
    if node == 0:
        return Fraction(1)
    rank = [at for at in range(1, len(shape)) if shape[at] == shape[node]].index(node) + 1
    return chance_of(shape, shape[node]) / (rank * (rank + 1))


def every_chance(longest: int, most: int, above: Fraction = Fraction(1)) -> Iterator[Fraction]:
    """Of all nodes of the tree in which each has so many children."""
    for rank in range(1, most + 1) if longest else ():
        yield above / (rank * (rank + 1))
        yield from every_chance(longest - 1, most, above / (rank * (rank + 1)))


@pytest.mark.parametrize("nodes", [1, 2, 5, 9])
@pytest.mark.parametrize("longest", [1, 2, 4])
def test_a_shape_has_the_likeliest_nodes(nodes: int, longest: int):
    shape = tree_shape(nodes, longest)
    assert len(shape) == nodes + 1 and all(parent < node for node, parent in enumerate(shape) if node)
    found = [chance_of(shape, node) for node in range(1, nodes + 1)]
    assert found == sorted(every_chance(longest, nodes), reverse=True)[:nodes]


def test_shapes_keep_to_their_room():
    assert tree_shape(3, 1) == (0, 0, 0, 0) and tree_shape(3, 0) == (0,) == chain_shape(8, 0)
    assert chain_shape(3, 9) == (0, 0, 1, 2) and chain_shape(8, 2) == (0, 0, 1)


# --- recursive rejection


def law(p: list[Fraction], q: list[Fraction], children: int) -> list[Fraction]:
    """The distribution of the next token: one child after the other is drawn and tried."""
    if not children or not sum(q):
        return p
    out = [Fraction(0)] * len(p)
    for x, chance in enumerate(q):
        if not chance:
            continue
        accepted = min(Fraction(1), p[x] / chance)
        out[x] += chance * accepted
        if accepted < 1:
            rest = [max(Fraction(0), a - b) for a, b in zip(p, q, strict=True)]
            others = [b if y != x else Fraction(0) for y, b in enumerate(q)]
            p_left = [a / sum(rest) for a in rest]
            q_left = [b / (sum(others) or 1) for b in others]
            for y, share in enumerate(law(p_left, q_left, children - 1)):
                out[y] += chance * (1 - accepted) * share
    return out


CASES = {
    "near": ((4, 3, 2, 1), (3, 4, 1, 2)),
    "never drafted": ((4, 3, 2, 1), (3, 7, 0, 0)),
    "never written": ((5, 0, 5, 0), (3, 4, 1, 2)),
    "apart": ((5, 5, 0, 0), (0, 0, 5, 5)),
    "sure": ((10, 0, 0, 0), (2, 3, 4, 1)),
    "a draft that is sure": ((4, 3, 2, 1), (0, 10, 0, 0)),
    "the same": ((4, 3, 2, 1), (4, 3, 2, 1)),
}


@pytest.mark.parametrize("case", CASES)
def test_recursive_rejection_leaves_the_target_as_it_is(case: str):
    p, q = ([Fraction(x, 10) for x in one] for one in CASES[case])
    for children in range(5):
        assert law(p, q, children) == p


def orders(q: list[float], children: int) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every order in which children may be drawn, and its probability; fewer where q has no more tokens."""
    children = min(children, sum(x > 0 for x in q))
    for order in permutations([x for x, chance in enumerate(q) if chance], children):
        chance, left = 1.0, 1.0
        for x in order:
            chance, left = chance * q[x] / left, left - q[x]
        yield order, chance


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("children", [1, 2])
def test_what_is_tried_has_that_law(case: str, children: int):
    """All orders of the children, and a grid of the numbers that decide on them."""
    (p, q), grid = ([x / 10 for x in one] for one in CASES[case]), (torch.arange(300) + 0.5) / 300
    total = torch.zeros(4, dtype=torch.float64)
    for order, chance in orders(q, children):
        numbers = torch.cartesian_prod(*[grid] * len(order)).view(-1, len(order))
        B, W = numbers.shape
        tokens = torch.tensor([[0, *order]]).expand(B, W + 1)
        child = torch.arange(1, W + 1).expand(B, W)
        both = (torch.tensor([one], dtype=torch.float64).expand(B, 4) for one in (p, q))
        uniform = torch.cat([torch.zeros(B, 1), numbers], 1)
        chosen, left = _try_each(*both, tokens, child, torch.ones_like(child).bool(), uniform)
        token = torch.nn.functional.one_hot(tokens.gather(1, chosen[:, None])[:, 0], 4)
        total += chance * torch.where(chosen[:, None] > 0, token, left).mean(0)
    torch.testing.assert_close(total, torch.tensor(p, dtype=torch.float64), rtol=0, atol=4e-3)


@dataclass
class Table:
    """In place of a `Filter`: the token after x has distribution q[x], whatever came before."""

    q: Tensor
    rows: int

    def __post_init__(self) -> None:
        self.start = torch.zeros(self.rows, 1)
        self.head = type("Head", (), {"mask_id": self.q.shape[1]})

    def __call__(self, depth: int, reached: Tensor, token: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        del depth, reached, second
        return self.q[token].log(), self.q[token].log()[:, :, None]


SHAPES = {
    "chain": (0, 0, 1),
    "siblings": (0, 0, 0, 0),
    "all": (0, 0, 0, 0, 0, 1, 1, 2),
    "thin": (0, 0, 1, 0, 3, 3),
    "of eight": tree_shape(8, 2),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("top_p", [1.0, 0.8])
def test_accepted_trees_have_the_distribution_of_the_target(shape: str, top_p: float):
    """Chi-square over all texts of three tokens; p depends on the token before, q is far from it."""
    B, V, draws = 100_000, 4, torch.Generator().manual_seed(3)
    p = torch.rand(V, V, generator=draws) ** 3
    p[2, 1] = 0.0  # cut off by a nucleus
    q = torch.rand(V, V, generator=draws) ** 2
    q[0, 3] = q[1, 2] = 0.0
    q /= q.sum(-1, keepdim=True)
    settings = BatchedSettings.of([DecodeSettings(top_p=top_p)])[torch.zeros(B, dtype=torch.int64)]
    first, C = torch.zeros(B, dtype=torch.int64), len(SHAPES[shape])
    numbers = torch.rand(3, B, C, generator=draws)
    ahead, greedy = Table(q, B), torch.zeros(B).bool()
    draft = draw_tree(ahead, first, [SHAPES[shape]] * B, numbers[0], settings, greedy)  # type: ignore[arg-type]
    rows = torch.arange(B)
    verified = accept(draft, lambda node, depth: p[draft.tokens[rows, node]], numbers[1:])
    # What a cycle leaves open, the target draws alone: cycles that follow are like the first.
    texts = torch.nn.functional.pad(verified.tokens, (0, 3 - verified.tokens.shape[1]))
    assert int(verified.count.min()) >= 1 and int(verified.count.max()) == int(draft.depth.max()) + 1
    for place in range(1, 3):
        alone = torch.multinomial(p[texts[:, place - 1]], 1, generator=draws)[:, 0]
        texts[:, place] = torch.where(place < verified.count, texts[:, place], alone)
    chance = p / p.sum(-1, keepdim=True)
    expected = B * chance[0][:, None, None] * chance[:, :, None] * chance[None]
    seen = torch.zeros(V, V, V).index_put((texts[:, 0], texts[:, 1], texts[:, 2]), torch.ones(B), True)
    possible = expected > 0
    assert seen[~possible].sum() == 0
    chi2 = ((seen - expected)[possible] ** 2 / expected[possible]).sum()
    assert chi2 < 110  # 63 degrees of freedom at most: 99.98%


# --- trees of a model


def settings_of(**how) -> BatchedSettings:
    return BatchedSettings.of([DecodeSettings(**how)])


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["dadlm", "edges", "second"])
@pytest.mark.parametrize("at_once", [1 << 26, 1])
def test_children_are_drawn_from_what_the_filter_says(
    kind: str, at_once: int, monkeypatch: pytest.MonkeyPatch
):
    """Of every node, by walking down to it alone; a few nodes of a level at a time, too."""
    monkeypatch.setattr("dadlm.decode.drawn.AT_ONCE", at_once)
    model, prompt, shape = causal(kind, **small), [1, 3, 0], tree_shape(12, 3)
    ahead, how = ahead_of(model, prompt, 3), settings_of(top_p=1.0)
    numbers = torch.rand(1, len(shape), generator=torch.Generator().manual_seed(4))
    tree = draw_tree(ahead, torch.tensor([0]), [shape], numbers, how, torch.tensor([False]))
    assert tree.drawn_from is not None and tree.source is not None
    assert tree.parent.tolist() == [[*shape]] and bool(tree.exists.all())
    for node in set(shape):
        children = [tree.tokens[0, at].item() for at in range(1, len(shape)) if shape[at] == node]
        assert len(set(children)) == len(children)
        way = [node]
        while way[0]:
            way.insert(0, shape[way[0]])
        reached, (second, last) = ahead.start[:, None], torch.tensor([prompt[-2:]]).split(1, dim=1)
        for depth, at in enumerate(way[1:]):
            joint = ahead(depth, reached, last, second)[1]
            second, last = last, tree.tokens[:, at : at + 1]
            reached = joint[..., last[0, 0]].log_softmax(-1)
        truth = ahead(len(way) - 1, reached, last, second)[0][0, 0].exp()
        torch.testing.assert_close(tree.drawn_from[0, tree.source[0, node]], truth, rtol=1e-4, atol=1e-6)


def test_a_nucleus_of_one_token_gives_a_chain():
    ahead, how = ahead_of(causal("dadlm", **small), [1, 3, 0], 3), settings_of(top_p=1e-6)
    with torch.inference_mode():
        tree = draw_tree(
            ahead, torch.tensor([0]), [tree_shape(9, 3)], torch.rand(1, 10), how, torch.tensor([False])
        )
    kept = tree.exists[0].nonzero()[:, 0].tolist()
    assert len(kept) == 4 and tree.depth[0, kept].tolist() == [0, 1, 2, 3]


# --- the engine


@pytest.mark.parametrize("by", ["itself", "another"])
def test_a_text_depends_on_its_seed_and_settings_only(by: str):
    """Rows at different places of their blocks, with different room, alone and side by side."""
    model = causal("edges") if by == "itself" else tiny("ar")
    how = {"mode": "lossless", "tree": 7, "drawn": True, "max_new_tokens": 23}
    draft = None if by == "itself" else tiny("dadlm", seed=1, block=8)
    together = generate(model, PROMPTS, seed=5, draft=draft, **how)
    assert sum(together.cycles) < sum(map(len, together.tokens))
    for i, prompt in enumerate(PROMPTS):
        assert generate(model, [prompt], seed=5 + i, draft=draft, **how).tokens == [together.tokens[i]]
    assert generate(model, PROMPTS, seed=5, draft=draft, batch_size=2, **how).tokens == together.tokens


def write(model: Model, settings: list[DecodeSettings]) -> list[list[int]]:
    target = in_mode(model, "ar")
    engine = LosslessEngine(target, model, lockstep=False)
    rows = [Row(target, Request(ids=(1, 2), settings=how, seed=3)) for how in settings]
    for row in rows:
        engine.add(row)
    while engine.rows:
        engine.step()
    return [row.tokens for row in rows]


def test_rows_that_draw_and_rows_that_do_not_are_written_side_by_side():
    model = silence_eot(causal("edges"))
    lossless = {"mode": "lossless", "max_new_tokens": 20}
    ways = [
        {"tree": 6, "drawn": True},
        {"tree": 6},
        {"tree": 0},
        {"tree": 6, "drawn": True, "temperature": 0.0},
    ]
    ways += [{"tree": 6, "drawn": True, "path": "viterbi"}]
    settings = [DecodeSettings(**lossless, **way) for way in ways]
    together = write(model, settings)
    assert together == [write(model, [how])[0] for how in settings]
    for at in (1, 3, 4):  # what is followed, and what is greedy
        how = {name: value for name, value in ways[at].items() if name not in ("tree", "drawn")}
        assert [together[at]] == generate(model, [[1, 2]], mode="ar", max_new_tokens=20, seed=3, **how).tokens
    assert together[0] != together[1]


def test_drawn_trees_end_where_their_rows_do():
    target = silence_eot(tiny("ar", vocab=12, context=64))
    draft = tiny("dadlm", vocab=12, block=8, context=64, seed=1)
    prompts = [prompt_of(n, vocab=12) for n in (63, 62, 55, 30, 1)]
    made = generate(target, prompts, mode="lossless", tree=100, drawn=True, seed=2, top_p=1.0, draft=draft)
    assert [len(text) for text in made.tokens] == [1, 2, 9, 34, 63]


def test_a_chain_is_a_draft_too():
    draft = Draft.chain(torch.tensor([[5, 6, 7]]), torch.ones(1, 3).bool())
    child, there = draft.children()
    assert child[0, :2, 0].tolist() == [1, 2] and there[0, :, 0].tolist() == [True, True, False]
