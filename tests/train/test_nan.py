"""A loss that is no number stops training, names the step and leaves the last good state."""

from pathlib import Path

import pytest
import torch
from tests.train.runs import (
    FAMILIES,
    assert_same_bits,
    before_step,
    config,
    poison,
    progress,
    state_tensors,
    train,
    trainer,
)

from dadlm.errors import TrainingError
from dadlm.model import load
from dadlm.model.checkpoint import weights

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("family", "value", "step"), [*((one, NAN, 7) for one in FAMILIES), ("bd3lm", INF, 7), ("dadlm", NAN, 1)]
)
def test_nan_stops_before_it_spoils_the_weights(family: str, value: float, step: int, tmp_path: Path) -> None:
    run = config(family, tmp_path / "run")
    one = trainer(run)
    with pytest.MonkeyPatch.context() as patch:
        before_step(one, step, lambda: poison(patch, value))
        with pytest.raises(TrainingError, match=rf"step {step}: loss (nan|inf)"):
            one.run()
    assert progress(tmp_path / "run" / "last")["step"] == step - 1
    if step > 1:  # the same steps and nothing after them
        train(config(family, tmp_path / "good"), stop_at=step - 1)
        assert_same_bits(state_tensors(tmp_path / "run" / "last"), state_tensors(tmp_path / "good" / "last"))
    assert train(run).step == 12  # the cause is gone: the run goes on


def test_a_gradient_that_is_no_number_stops_too(tmp_path: Path) -> None:
    one = trainer(config("bd3lm", tmp_path))

    def spoil() -> None:
        parameter = next(one.state.model.parameters())
        parameter.register_hook(lambda gradient: gradient * float("nan"))

    before_step(one, 3, spoil)
    with pytest.raises(TrainingError, match=r"step 3: loss [0-9.]+, gradient norm nan"):
        one.run()
    assert all(torch.isfinite(tensor).all() for tensor in weights(load(tmp_path / "last")).values())


def test_weights_that_are_spoilt_already_do_not_replace_good_ones(tmp_path: Path) -> None:
    """An update may overflow while its own loss was fine: the next loss shows it, one step too late."""
    run = config("bd3lm", tmp_path, save_every=2)
    one = trainer(run)

    def overflow() -> None:
        with torch.no_grad():
            next(one.state.model.parameters())[0, 0] = float("nan")

    before_step(one, 6, overflow)
    with pytest.raises(TrainingError, match="step 6"):
        one.run()
    bad = [name for name, t in state_tensors(tmp_path / "last").items() if not torch.isfinite(t).all()]
    assert not bad, f"the state that was saved is not good: {bad}"
    assert progress(tmp_path / "last")["step"] == 4
