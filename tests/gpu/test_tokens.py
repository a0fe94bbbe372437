"""What a step does around the vocabulary head: every kernel against its torch twin.

Also in Triton's interpreter, without a GPU: `TRITON_INTERPRET=1 pytest -m gpu tests/gpu/test_tokens.py`.
"""

import os
from dataclasses import fields

import pytest
import torch
from tests.decode.tiny import prompt_of, tiny
from tests.model.tiny import tiny_config
from torch import Tensor

from dadlm import DecodeSettings, counter, generate
from dadlm.decode import choose, sample
from dadlm.decode.batched_settings import BatchedSettings
from dadlm.decode.samplers import Block
from dadlm.decode.samplers.first_hitting import FirstHitting
from dadlm.decode.step import after_step
from dadlm.model import kernels
from dadlm.model.transition import GatedTransition
from dadlm.nodes import lay_out

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available() and not INTERPRETED, reason="needs CUDA"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # of numpy, which the interpreter uses
]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = [(1, 1), (1, 16), (5, 4), (7, 3), (3, 37)]


def both(monkeypatch: pytest.MonkeyPatch, call) -> list:
    """What a call gives with and without kernels."""
    found = []
    for usable in (False, True):
        monkeypatch.setattr(kernels, "takes", lambda x, usable=usable: usable)
        found.append(call())
    return found


def block_of(rows: int, N: int, seed: int, width: int | None = None) -> Block:
    """Of which only some positions may be looked at, as with a shorter window."""
    random, width = torch.Generator().manual_seed(seed), width or N

    def flags(share: float) -> Tensor:
        return (torch.rand(rows, width, generator=random) < share).to(DEVICE)[:, :N]

    number = torch.randint(-5, 2**62, (3, rows), generator=random).to(DEVICE)
    ids = torch.randint(0, 4, (rows, width), generator=random).to(DEVICE)[:, :N]
    masked = flags(0.6)
    masked[rows // 2] = False
    first = torch.rand(rows, width, generator=random) < 0.9
    wanted = first.int().cummin(1).values.bool().to(DEVICE)[:, :N]  # they come first
    return Block(
        ids=ids, masked=masked, first=number[0], number=number[0], step=number[1], plan=ids, seed=number[2],
        in_window=flags(1.0), wanted=wanted, ends=flags(0.7),
    )  # fmt: skip


@pytest.mark.parametrize(("rows", "N"), SHAPES)
@pytest.mark.parametrize("seed", range(3))
def test_the_revealed_position(rows: int, N: int, seed: int, monkeypatch) -> None:
    block = block_of(rows, N, seed, N + 3)
    infilled = block.masked & block.ends if seed else torch.zeros_like(block.masked)
    slow, fast = both(monkeypatch, lambda: FirstHitting().keep(block, infilled, None)[0])
    assert torch.equal(fast, slow)


@pytest.mark.parametrize(("rows", "N"), SHAPES)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("ends", [(3,), (3, 1)])
@pytest.mark.parametrize("seed", range(4))
def test_the_block_after_a_step(
    rows: int, N: int, seed: int, ends: tuple[int, ...], padded: bool, monkeypatch
) -> None:
    block = block_of(rows, N, seed, N + 1)
    kept = block.masked & (torch.rand(rows, N, device=DEVICE) < 0.5)
    tokens, pad = torch.randint(0, 4, (rows, N), device=DEVICE), torch.arange(rows, device=DEVICE) % 2 == 0
    how = tokens, kept, block.step + 2, ends, pad[:, None] if padded else None
    (slow, *slow_rest), (fast, *fast_rest) = both(monkeypatch, lambda: after_step(block, *how))
    for field in fields(Block):
        assert torch.equal(getattr(fast, field.name), getattr(slow, field.name)), field.name
    assert all(map(torch.equal, fast_rest, slow_rest))


@pytest.mark.parametrize(("rows", "N"), SHAPES)
@pytest.mark.parametrize(("K", "width"), [(1, 48), (3, 16)])
def test_states_taken_for_the_head(rows: int, N: int, K: int, width: int) -> None:
    block = block_of(rows, N, 7)
    nodes = torch.randn(rows, N * K + 1, width, device=DEVICE)
    hidden = nodes[:, 1:].unflatten(1, (N, K))  # behind a start node
    path = torch.randint(0, K, (rows, N), device=DEVICE)
    for wanted in (block.masked, block.masked & False, block.masked | True):
        count = max(1, int(wanted.sum()))  # and one more: a spare place
        uniform = block.uniform(counter.TOKEN)
        for spare in (0, 1):
            how = hidden, path, wanted, count + spare
            slow, fast = choose._draws(*how, False, uniform), choose._draws_in_one_launch(*how, block)
            assert all(map(torch.equal, fast[:-1], slow[:-1]))
            drawn = torch.arange(1.0, count + spare + 1, device=DEVICE)
            assert torch.equal(fast.put(drawn), slow.put(drawn))


@pytest.mark.parametrize("V", [50, 9000])
def test_tokens_of_rows_with_settings_of_their_own(V: int, monkeypatch) -> None:
    some = [
        DecodeSettings(), DecodeSettings(top_p=0.5, nucleus="bd3lm"), DecodeSettings(top_p=1.0),
        DecodeSettings(temperature=0.5, top_p=0.99), DecodeSettings(top_p=1e-6),
    ]  # fmt: skip
    settings = BatchedSettings.of(some, DEVICE)
    row = torch.tensor([4, 0, 1, 2, 3, 3, 1], device=DEVICE)
    logits = 3 * torch.randn(len(row), V, device=DEVICE).round(decimals=1)  # with ties
    uniform = torch.rand(len(row), device=DEVICE)
    slow, fast = both(monkeypatch, lambda: sample.draw_each(logits, uniform, settings, row, False))
    # exp differs in its last bit: next to a border the neighbour is right as well.
    assert (fast == slow).float().mean() >= 0.85
    slow, fast = both(monkeypatch, lambda: sample.draw_tokens(logits, uniform, 0.8, 0.9, "standard"))
    assert (fast == slow).float().mean() >= 0.85


@pytest.mark.parametrize(("N", "K", "heads"), [(1, 5, 3), (4, 3, 4), (16, 4, 12), (8, 2, 1)])
@pytest.mark.parametrize("bias", [None, 3.0])
@torch.no_grad()
def test_gated_transitions(N: int, K: int, heads: int, bias: float | None, monkeypatch) -> None:
    config = tiny_config("dadlm", candidates=K, block_size=N, heads=heads, width=16 * heads, track_bias=bias)
    part = GatedTransition(config).to(DEVICE)
    if part.bias is not None:
        part.bias.normal_()
    masked = torch.rand(3, 2, N, device=DEVICE) < 0.6
    nodes = lay_out(masked, torch.zeros(3, 2, device=DEVICE).long(), candidates=K, start=True, packed=False)
    hidden = torch.randn(3, 2 * nodes.slots, config.width, device=DEVICE)
    slow, fast = both(monkeypatch, lambda: part(hidden, nodes, False))
    torch.testing.assert_close(fast, slow, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["ar", "bd3lm", "dadlm"])
@pytest.mark.usefixtures("as_on_cuda")
def test_texts_are_those_of_the_twins(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny(family).to(DEVICE)
    prompts = [prompt_of(n) for n in (4, 6)]

    def texts() -> list:
        model.engines.clear()
        ways = [{}]
        if family != "ar":
            ways += [{"sampler": "random", "steps": 2}, {"sampler": "confidence"}, {"infill": (2, 0.5)}]
        return [generate(model, prompts, max_new_tokens=6, seed=2, **way).tokens for way in ways]

    slow, fast = both(monkeypatch, texts)
    assert fast == slow
