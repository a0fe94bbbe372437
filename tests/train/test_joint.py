"""Diffusion and AR together: models with a causal context, trained with `ar_weight`."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.runs import (
    assert_same_bits,
    config,
    metrics,
    state_tensors,
    text,
    train,
    trainer,
    with_train,
)

from dadlm.errors import CheckpointError, ConfigError
from dadlm.evaluate import perplexity
from dadlm.model import load
from dadlm.objective import losses
from dadlm.train import RunConfig
from dadlm.train.trainer import model_from


def joint(family: str, out: Path, weight: float = 0.5, **changes: Any) -> RunConfig:
    return config(family, out, ar_weight=weight, **changes)


@pytest.mark.parametrize("family", ["bd3lm", "dadlm"])
def test_the_loss_is_that_of_diffusion_and_a_share_of_ar(family: str, tmp_path: Path) -> None:
    run = joint(family, tmp_path, 0.3)
    one = trainer(run)
    model, inputs = one.state.model, one.batches.take(0, run.noise, torch.arange(4))
    parts = losses(model, inputs.ids, inputs.noise, next_tokens=True)
    assert parts.next_token is not None
    expected = (parts.train.sum() + 0.3 * parts.next_token.sum()) / inputs.tokens
    truth = torch.autograd.grad(expected, (used := [p for p in model.parameters() if p.requires_grad]))
    found = one.gradients.fill(0, run.noise, report=False)[0]
    torch.testing.assert_close(found, expected.detach())
    for parameter, grad in zip(used, truth, strict=True):
        torch.testing.assert_close(parameter.grad, grad)


def test_micro_batches_and_resuming_change_nothing(tmp_path: Path) -> None:
    train(joint("dadlm", tmp_path / "whole"))
    train(joint("dadlm", tmp_path / "stopped"), stop_at=5)
    train(joint("dadlm", tmp_path / "stopped"))
    train(joint("dadlm", tmp_path / "parts", accumulate=2))
    whole, stopped, parts = (state_tensors(tmp_path / n / "last") for n in ("whole", "stopped", "parts"))
    assert_same_bits(whole, stopped)
    for name, tensor in whole.items():
        torch.testing.assert_close(parts[name], tensor, atol=1e-4, rtol=1e-3)


def test_validation_logs_what_mode_ar_scores(tmp_path: Path) -> None:
    """With the averaged weights, which are what is saved; and it learns what an AR model would."""
    train(joint("bd3lm", tmp_path, 1.0, steps=150, valid_every=50, valid_rows=32))
    logged = [entry["valid_ar_nll"] for entry in metrics(tmp_path) if "valid_ar_nll" in entry]
    assert len(logged) == 3 and logged[0] > logged[1] > logged[2]
    result = perplexity(load(tmp_path / "last"), text(32, 2), mode="ar")
    assert result["nll"]["mean"] == pytest.approx(logged[2], abs=1e-5)
    assert not result["is_bound"] and result["model"]["family"] == "ar" and result["nll_by_time"] is None
    train(config("bd3lm", tmp_path / "plain", steps=3))
    assert not any("valid_ar_nll" in entry for entry in metrics(tmp_path / "plain"))


def test_a_stage_keeps_both(tmp_path: Path) -> None:
    train(joint("bd3lm", tmp_path / "bd3lm", steps=3))
    run = joint("dadlm", tmp_path / "dadlm", steps=3)
    model = model_from(tmp_path / "bd3lm", run.model, 0)
    assert model.config.modes == ("diffusion", "ar", "lossless")
    trainer(run, model).run()
    assert load(tmp_path / "dadlm").config.causal_context
    with pytest.raises(CheckpointError, match="also an AR model"):
        model_from(tmp_path / "bd3lm", config("dadlm", tmp_path).model, 0)


@pytest.mark.parametrize("family", ["ar", "mdlm", "bd3lm", "dadlm"])
def test_ar_weight_wants_a_causal_context(family: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"causal-context as well, or leave it out for this {family}"):
        with_train(config(family, tmp_path), ar_weight=1.0)


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_ar_weight_is_a_number(weight: float, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ar_weight must be"):
        joint("bd3lm", tmp_path, weight)
