"""The dilated sampler: which positions a step writes, whatever the number of steps and the rows beside it."""

from itertools import pairwise

import pytest
import torch
from tests.decode.tiny import prompt_of, silence_eot, tiny

from dadlm import generate
from dadlm.decode import settings_for
from dadlm.decode.samplers import SAMPLERS
from dadlm.decode.samplers.dilated import turns


def plan_of(steps: list[int], N: int, most: int) -> list[list[int]]:
    zero = torch.zeros(len(steps), dtype=torch.int64)
    plan = SAMPLERS["dilated"].begin(zero, zero, torch.tensor(steps), N, most)
    assert plan is not None
    return plan.tolist()


def test_a_step_writes_every_so_many_th_position_far_from_those_before() -> None:
    assert plan_of([4], 8, 4) == [[0, 2, 1, 3, 0, 2, 1, 3]]
    assert plan_of([1], 4, 1) == [[0, 0, 0, 0]]
    assert plan_of([8], 8, 8) == [[0, 4, 2, 6, 1, 5, 3, 7]]
    assert plan_of([3], 7, 3) == [[0, 2, 1, 0, 2, 1, 0]]  # offsets 0, 2, 1: their bits read backwards


@pytest.mark.parametrize("steps", range(1, 17))
def test_every_step_has_its_share_and_none_is_idle(steps: int) -> None:
    (plan,) = plan_of([steps], 16, 16)
    counts = torch.tensor(plan).bincount()
    assert len(counts) == steps and counts.max() - counts.min() <= 1
    for step in range(steps):
        places = [i for i in range(16) if plan[i] == step]
        assert all(b - a == steps for a, b in pairwise(places))


def test_a_rows_plan_does_not_depend_on_the_rows_beside_it() -> None:
    alone = [plan_of([steps], 16, steps)[0] for steps in (1, 3, 4, 16)]
    assert plan_of([1, 3, 4, 16], 16, 32) == alone
    assert turns(torch.tensor([[5]]), 8)[0, :5].sort().values.tolist() == [*range(5)]


@pytest.mark.parametrize("family", ["bd3lm", "dadlm"])
def test_a_whole_block_takes_as_many_passes_as_steps(family: str) -> None:
    model = silence_eot(tiny(family, block=8))
    how = {"max_new_tokens": 16, "sampler": "dilated", "steps": 4, "seed": 1}
    out = generate(model, [prompt_of(8), prompt_of(16)], **how)
    assert out.forward_passes == [8, 8] and out.tokens_per_forward == [2.0, 2.0]


def test_the_command_line_takes_half_as_many_steps_as_a_block_has_tokens() -> None:
    assert settings_for(tiny("bd3lm", block=8).config, {"sampler": "dilated"}).steps == 4
