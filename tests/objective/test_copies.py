"""Rows that are masked several times at once: the mean of what each mask costs alone."""

from typing import Any

import pytest
import torch
from tests.model.tiny import dense_twin, random_ids, tiny_model

from dadlm.noise import SCHEDULES, Noise, NoiseConfig, draw_noise
from dadlm.objective import losses

C, N = 3, 4


def copy_of(noise: Noise, rows: int, copy: int) -> Noise:
    """One of the masks, as if there were no others."""
    masked = noise.masked.view(rows, -1, C, N)[:, :, copy].flatten(1)
    time, weight = (x.view(rows, -1, C)[:, :, copy] for x in (noise.time, noise.weight))
    return Noise(masked, time, weight * C)


@pytest.mark.parametrize("spans", [False, True])
@pytest.mark.parametrize("family", ["bd3lm", "dadlm"])
def test_the_mean_of_losses_and_gradients(family: str, spans: bool) -> None:
    model = tiny_model(family)
    assert model.config.block == N
    ids = random_ids(model.config)
    B, L = ids.shape
    how: dict[str, Any] = {"seed": 1, "step": 2, "rows": torch.arange(B), "batch_rows": B}
    how |= {"length": L, "block_size": N}
    maskable = (torch.arange(L) >= 5) & (torch.arange(L) < 11) if spans else torch.arange(L) > 0
    noise = draw_noise(NoiseConfig(), maskable=maskable.expand(B, L), masks_per_row=C, **how)
    torch.testing.assert_close(noise.weight, SCHEDULES["loglinear"].weight(noise.time) / C)
    assert (noise.blocks is not None) == spans
    everywhere = draw_noise(NoiseConfig(), masks_per_row=C, **how)
    fits = maskable.view(-1, 1, N).expand(-1, C, N).flatten()
    assert torch.equal(noise.masked, everywhere.masked & fits) and noise.masked.any()

    model.train()
    together = losses(model, ids, noise).train.sum()
    together.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    masks = [copy_of(Noise(noise.masked, everywhere.time, everywhere.weight), B, copy) for copy in range(C)]
    assert not torch.equal(masks[0].masked, masks[1].masked), "each time differently"
    mean = torch.stack([losses(model, ids, mask).train.sum() for mask in masks]).mean()
    mean.backward()
    torch.testing.assert_close(together, mean)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(gradients[name], parameter.grad, msg=name, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        losses(dense_twin(model), ids, noise).train.sum(), together, msg="the slow twin"
    )


def test_every_copy_has_a_time_of_its_own() -> None:
    """All together one in each of the B·G·C strata, whatever the shift of the step."""
    B, G = 8, 5
    how = {"seed": 1, "step": 2, "rows": torch.arange(B), "batch_rows": B, "length": G * N, "block_size": N}
    time = draw_noise(NoiseConfig(), masks_per_row=C, **how).time.flatten().double().sort().values
    gaps = time.diff() * B * G * C
    assert len(time) == B * G * C and (gaps > 0).all() and (gaps < 2.01).all()


def test_clipped_copies_stay_inside() -> None:
    how = {"seed": 1, "step": 2, "rows": torch.arange(64), "batch_rows": 64, "length": 64, "block_size": 16}
    noise = draw_noise(NoiseConfig(low=0.3, high=0.7), masks_per_row=C, **how)
    share = noise.masked.view(64, -1, 16).float().mean(-1)[:, C:]  # the first token of a row is never masked
    assert (share >= 0.3).all() and (share <= 0.7).all()
