"""Samplers by counting: the exact grid, one uniform position, the threshold, and what each row may touch.

B rows, N block size.
"""

import pytest
import torch
from tests.decode.tiny import silence_eot, tiny
from torch import Tensor

from dadlm import DecodeSettings, counter, generate, stream
from dadlm.decode.engine import Engine
from dadlm.decode.request import Request
from dadlm.decode.samplers import SAMPLERS, Block, Proposal, Sampler
from dadlm.decode.samplers import confidence as confidence_sampler


def block_of(masked: Tensor, seed: Tensor, number: Tensor, step: Tensor, plan: Tensor | None = None) -> Block:
    every = torch.ones_like(masked)
    plan = torch.zeros_like(masked, dtype=torch.long) if plan is None else plan
    return Block(plan, masked, step, number, step, plan, seed, every, every, masked)


def random_step(
    masked: Tensor, infilled: Tensor, seed: Tensor, number: Tensor, step: Tensor, steps: Tensor
) -> tuple[Tensor, Tensor]:
    sampler = SAMPLERS["random"]
    plan = sampler.begin(seed, number, steps, masked.shape[1], int(steps.max()))
    return sampler.keep(block_of(masked, seed, number, step, plan), infilled, None, None)


def first_hitting(masked: Tensor, infilled: Tensor, seed: Tensor, number: Tensor, step: Tensor) -> Tensor:
    return SAMPLERS["first-hitting"].keep(block_of(masked, seed, number, step), infilled, None, None)[0]


def run_random(
    masked: Tensor, steps: int, infilled: Tensor | None = None, first_seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Remask until nothing is left. Steps at which positions were kept, and the passes of each row."""
    B, N = masked.shape
    seed, block, step = torch.arange(B) + first_seed, torch.zeros(B, dtype=torch.long), torch.zeros(B).long()
    fixed_at, passes = torch.full((B, N), -1), torch.zeros(B).long()
    while masked.any():
        passes += masked.any(1)
        none = torch.zeros_like(masked) if infilled is None else infilled & masked
        kept, at = random_step(masked, none, seed, block, step, torch.full((B,), steps))
        assert not (kept & ~masked).any(), "only masked positions can be kept"
        assert kept.any(1).equal(masked.any(1)), "every row that is not finished must go on"
        assert (at[masked.any(1)] < steps).all() and (at >= step).all()
        fixed_at = torch.where(kept, at[:, None], fixed_at)
        masked, step = masked & ~kept, at + 1
    return fixed_at, passes


@pytest.mark.parametrize(("N", "steps"), [(1, 1), (4, 1), (4, 3), (5, 5), (6, 4)])
def test_the_step_at_which_a_position_is_fixed_is_uniform_over_all_steps(N: int, steps: int):
    rows = 20_000
    fixed_at, _ = run_random(torch.ones(rows, N, dtype=torch.bool), steps)
    counts = torch.stack([(fixed_at == step).sum(0) for step in range(steps)])  # [T, N]
    assert counts.sum() == rows * N
    expected = rows / steps
    deviation = (rows / steps * (1 - 1 / steps)) ** 0.5
    assert (counts - expected).abs().max() <= 4 * deviation


def test_positions_are_fixed_independently_of_each_other():
    rows, steps = 40_000, 3
    fixed_at, _ = run_random(torch.ones(rows, 2, dtype=torch.bool), steps)
    pairs = torch.bincount(fixed_at[:, 0] * steps + fixed_at[:, 1], minlength=steps**2)
    chi_square = ((pairs - rows / 9) ** 2 / (rows / 9)).sum()
    assert torch.special.gammaincc(torch.tensor(4.0), chi_square / 2) > 0.001  # 8 degrees of freedom


def test_the_last_step_fixes_everything():
    masked = torch.rand(500, 7, generator=torch.Generator().manual_seed(1)) < 0.5
    step = torch.full((500,), 4)
    kept, at = random_step(
        masked, torch.zeros_like(masked), torch.arange(500), torch.zeros(500).long(), step, step + 1
    )
    assert kept.equal(masked) and at.equal(step)


def test_idle_steps_are_skipped_row_by_row():
    """Each row's steps are those that its own numbers say, found one step at a time."""
    rows, N, steps = 300, 3, 8
    masked = torch.ones(rows, N, dtype=torch.bool)
    fixed_at, passes = run_random(masked, steps, first_seed=77)
    for row in range(rows):
        open_, mine = set(range(N)), [-1] * N
        for step in range(steps):
            for i in sorted(open_):
                if float(counter.uniform(row + 77, 0, step, i, counter.REMASK)) < 1 / (steps - step):
                    mine[i] = step
            open_ = {i for i in range(N) if mine[i] < 0}
        assert fixed_at[row].tolist() == mine
        assert passes[row] == len(set(mine)), "a pass for each distinct step, none for idle ones"
    assert 1 < passes.float().mean() < N  # some rows fix several at once, some do not


def test_a_finished_row_beside_an_idle_one_keeps_its_step():
    masked = torch.zeros(64, 2, dtype=torch.bool)
    masked[::2, 0] = True
    step = torch.zeros(64).long()
    _, at = random_step(masked, torch.zeros_like(masked), torch.arange(64), step, step, torch.full((64,), 50))
    assert (at[1::2] == 0).all() and (at[::2] > 0).any()


def test_random_keeps_infilled_positions_at_once_and_counts_that_step():
    rows, steps = 2_000, 50
    masked = torch.ones(rows, 3, dtype=torch.bool)
    infilled = torch.tensor([False, True, False]).expand(rows, 3)
    step = torch.zeros(rows).long()
    kept, at = random_step(masked, infilled, torch.arange(rows), step, step, torch.full((rows,), steps))
    assert kept[:, 1].all() and (at == 0).all(), "a step that infills is not idle"
    share = kept[:, [0, 2]].float().mean()
    assert abs(share - 1 / steps) < 4 * (1 / steps / (2 * rows)) ** 0.5, "the others follow the grid"


@pytest.mark.parametrize("pattern", ["1111", "0110", "1000", "10101"])
def test_first_hitting_keeps_one_masked_position_uniformly(pattern: str):
    rows = 20_000
    masked = torch.tensor([char == "1" for char in pattern]).expand(rows, -1)
    zero = torch.zeros(rows).long()
    kept = first_hitting(masked, torch.zeros_like(masked), torch.arange(rows), zero, zero)
    assert (kept.sum(1) == 1).all() and not (kept & ~masked).any()
    n = pattern.count("1")
    counts = kept.sum(0)[masked[0]]
    assert (counts - rows / n).abs().max() <= 4 * (rows / n * (1 - 1 / n)) ** 0.5


def test_first_hitting_chooses_outside_the_infilled():
    rows = 9_000
    masked = torch.tensor([True, True, False, True, True, True]).expand(rows, -1)
    infilled = torch.tensor([True, True, False, False, False, False]).expand(rows, -1)
    zero = torch.zeros(rows).long()
    kept = first_hitting(masked, infilled, torch.arange(rows), zero, zero)
    assert kept[:, :2].all() and not kept[:, 2].any() and (kept[:, 3:].sum(1) == 1).all()
    assert (kept[:, 3:].sum(0) - rows / 3).abs().max() <= 4 * (rows * 2 / 9) ** 0.5


def test_first_hitting_adds_nothing_when_all_is_infilled_or_finished():
    masked = torch.tensor([[True, True, False], [False, False, False]])
    zero = torch.zeros(2).long()
    kept = first_hitting(masked, masked, torch.arange(2), zero, zero)
    assert kept.equal(masked)


@pytest.mark.parametrize("which", ["first_hitting", "random"])
def test_choices_change_with_seed_block_and_step(which: str):
    masked = torch.ones(1, 24, dtype=torch.bool)

    def kept(seed: int, block: int, step: int) -> Tensor:
        counters = (torch.tensor([seed]), torch.tensor([block]), torch.tensor([step]))
        if which == "first_hitting":
            return first_hitting(masked, ~masked, *counters)
        return random_step(masked, ~masked, *counters, torch.tensor([step + 2]))[0]

    base = [kept(s, 5, 3) for s in range(8)]
    assert all(a.equal(b) for a, b in zip(base, (kept(s, 5, 3) for s in range(8)), strict=True))
    for others in ((100, 5, 3), (0, 6, 3), (0, 5, 4)):
        changed = [kept(others[0] + s, *others[1:]) for s in range(8)]
        assert any(not a.equal(b) for a, b in zip(base, changed, strict=True))


def confident(
    masked: list[int], confidence: list[float], threshold: float, infilled=None, ending=None
) -> list[int]:
    mask = torch.tensor([masked], dtype=torch.bool)
    fill = torch.zeros_like(mask) if infilled is None else torch.tensor([infilled], dtype=torch.bool)
    end = None if ending is None else torch.tensor([ending]).bool()
    proposal = Proposal(torch.tensor([confidence]), end, torch.zeros(1, len(masked)), chained=False)
    return confidence_sampler.confident(mask, fill, proposal, threshold)[0].long().tolist()


def test_confidence_keeps_what_reaches_the_threshold():
    assert confident([1, 1, 1, 1], [0.5, 0.75, 0.25, 0.875], 0.75) == [0, 1, 0, 1]
    assert confident([1, 0, 1, 0], [0.8, 0.9, 0.1, 0.9], 0.75) == [1, 0, 0, 0], "known positions stay known"


def test_confidence_keeps_at_least_the_surest():
    assert confident([1, 1, 1], [0.1, 0.3, 0.2], 0.9) == [0, 1, 0]
    assert confident([1, 0, 1], [0.1, 0.8, 0.2], 0.9) == [0, 0, 1], "a known position cannot be the surest"
    assert confident([1, 1, 1], [0.0, 0.0, 0.0], 0.9) == [1, 0, 0], "also when all are hopeless"


def test_ties_for_the_surest_go_to_the_lowest_index():
    assert confident([1, 1, 1, 1], [0.1, 0.5, 0.5, 0.5], 0.9) == [0, 1, 0, 0]
    assert confident([0, 0, 1, 1], [0.5, 0.5, 0.5, 0.5], 0.9) == [0, 0, 1, 0]


def test_confidence_and_infilling_add_up():
    assert confident([1, 1, 1], [0.1, 0.3, 0.95], 0.9, [1, 0, 0]) == [1, 0, 1]
    assert confident([0, 0, 0], [0.9, 0.9, 0.9], 0.5, [0, 0, 0]) == [0, 0, 0], "a finished row keeps nothing"


def test_padding_is_not_the_surest():
    ending = [0, 0, 1, 1]
    assert confident([1, 1, 1, 1], [0.1, 0.2, 0.3, 0.8], 0.9, ending=ending) == [0, 1, 0, 0]
    assert confident([1, 1, 1, 1], [0.1, 0.2, 0.3, 0.95], 0.9, ending=ending) == [0, 1, 0, 1], "unless it is"
    assert confident([0, 0, 1, 1], [0.1, 0.2, 0.3, 0.8], 0.9, ending=ending) == [0, 0, 1, 0], "the first end"
    assert confident([1, 0, 1, 1], [0.0, 0.2, 0.3, 0.8], 0.9, ending=ending) == [1, 0, 0, 0], "hopeless text"


class Leftmost(Sampler):
    """A sampler as somebody else would add it."""

    name, summary = "leftmost", "the first masked position"

    def keep(self, block: Block, infilled: Tensor, settings: object, proposal: object):
        return infilled | (block.masked & (block.masked.cumsum(1) == 1)), block.step

    def most(self, positions: int) -> int:
        return 1


@pytest.mark.parametrize("family", ["mdlm", "bd3lm", "dadlm"])
def test_a_new_sampler_is_a_class_and_a_name(family: str, monkeypatch: pytest.MonkeyPatch, request):
    """Alone, beside rows of other samplers, and at the fixed shapes of CUDA."""
    monkeypatch.setitem(SAMPLERS, "leftmost", Leftmost())
    model = silence_eot(tiny(family))
    settings = DecodeSettings(sampler="leftmost", max_new_tokens=11)  # type: ignore[arg-type]
    events = list(stream(model, [1, 2, 3, 4, 5], seed=2, settings=settings))
    order = [event.block * len(event.ids) + event.fixed.index(True) for event in events]
    assert order == list(range(5, 16))
    truth = generate(model, [[1, 2, 3, 4, 5]], seed=2, settings=settings)
    assert truth.forward_passes == [11]
    request.getfixturevalue("as_on_cuda")
    assert generate(model, [[1, 2, 3, 4, 5]], seed=2, settings=settings) == truth
    engine = Engine(model, lockstep=False)
    others = DecodeSettings(max_new_tokens=9), DecodeSettings(max_new_tokens=7, sampler="confidence")
    rows = [engine.add(Request(ids=(1, 2, 3, 4, 5), settings=how, seed=2)) for how in (settings, *others)]
    while engine.rows:
        engine.step()
    assert rows[0].tokens == truth.tokens[0] and rows[0].forward_passes == 11
