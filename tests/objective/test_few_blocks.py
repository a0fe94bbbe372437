"""Learning from some of the blocks: the same losses for these, evenly drawn, weighted to keep the mean."""

from dataclasses import replace

import pytest
import torch
from tests.model.tiny import random_ids, random_noise, tiny_model

from dadlm.noise import NoiseConfig, draw_noise
from dadlm.objective import losses


@pytest.mark.parametrize("family", ["bd3lm", "dadlm"])
def test_chosen_blocks_have_the_losses_they_have_among_all(family: str) -> None:
    model = tiny_model(family)
    ids, noise = random_ids(model.config), random_noise(model)
    blocks = torch.tensor([[0, 3], [1, 2], [2, 3], [0, 1]])
    few = replace(noise, blocks=blocks, weight=noise.weight.gather(1, blocks))
    everything = losses(model, ids, noise)
    for part, whole in zip(vars(losses(model, ids, few)).values(), vars(everything).values(), strict=True):
        torch.testing.assert_close(part, whole.gather(1, blocks))


def test_blocks_are_drawn_evenly_and_weighted_up() -> None:
    rows, how = torch.arange(4000), {"seed": 1, "batch_rows": 4000, "length": 20, "block_size": 4}
    whole = draw_noise(NoiseConfig(), step=3, rows=rows, **how)
    few = draw_noise(NoiseConfig(), step=3, rows=rows, block_share=0.4, **how)
    assert few.blocks is not None and few.blocks.shape == (4000, 2)
    assert (few.blocks[:, 0] < few.blocks[:, 1]).all(), "in order: attention over the prefix relies on it"
    counts = few.blocks.flatten().bincount(minlength=5)
    assert (counts - 1600).abs().max() < 4 * (4000 * 0.4 * 0.6) ** 0.5
    assert torch.equal(few.masked, whole.masked)
    torch.testing.assert_close(few.weight, whole.weight.gather(1, few.blocks) * 2.5)
    assert torch.equal(few.time, whole.time.gather(1, few.blocks))


def test_a_row_draws_the_same_blocks_in_any_batch() -> None:
    how = {"seed": 1, "step": 0, "batch_rows": 8, "length": 16, "block_size": 4, "block_share": 0.5}
    together = draw_noise(NoiseConfig(), rows=torch.arange(8), **how).blocks
    alone = draw_noise(NoiseConfig(), rows=torch.tensor([5]), **how).blocks
    assert together is not None and alone is not None and torch.equal(together[5:6], alone)
