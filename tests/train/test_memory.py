"""Less memory: recomputed layers, parts of a batch; and what is said when it does not suffice."""

from pathlib import Path

import pytest
import torch
from tests.train.runs import FAMILIES, config, trainer

from dadlm.errors import ConfigError, TrainingError
from dadlm.model import ModelConfig
from dadlm.train import RunConfig, TrainConfig


@pytest.mark.parametrize("family", FAMILIES)
def test_recomputed_layers_give_the_same_losses(family: str, tmp_path: Path) -> None:
    kept, recomputed = (trainer(config(family, tmp_path / str(on), checkpointing=on)) for on in (False, True))
    assert [kept.step() for _ in range(3)] == [recomputed.step() for _ in range(3)]


@pytest.mark.parametrize(
    "model", [{"family": "ar"}, {"family": "mdlm"}, {"family": "bd3lm", "block_size": 1}]
)
def test_several_masks_need_blocks(model: dict) -> None:
    with pytest.raises(ConfigError, match="leave it out for this"):
        RunConfig(model=ModelConfig(**model), train=TrainConfig(masks_per_row=2))


@pytest.mark.parametrize("family", ["bd3lm", "dadlm"])
def test_rows_may_be_masked_several_times(family: str, tmp_path: Path) -> None:
    one = trainer(config(family, tmp_path, masks_per_row=3))
    ids, noise, *_ = one.batches.take(0, one.config.noise, torch.arange(4))
    assert noise is not None and noise.masked.shape == (4, 3 * ids.shape[1])
    assert all(float(one.step()) > 0 for _ in range(3))


@pytest.mark.parametrize(
    ("most", "told"),
    [
        (3, "4 rows at once do not fit cpu, 2 do: pass --train.accumulate 2"),
        (1, "4 rows at once do not fit cpu, 1 do: .*accumulate 4"),
        (0, "not even one row fits cpu; try --train.checkpointing"),
    ],
)
def test_out_of_memory_names_the_part_that_fits(
    most: int, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = trainer(config("dadlm", tmp_path))
    real = one.gradients.backward

    def small(inputs, *how):
        if len(inputs.ids) > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(inputs, *how)

    monkeypatch.setattr(one.gradients, "backward", small)
    with pytest.raises(TrainingError, match=f"out of memory: {told}"):
        one.step()
