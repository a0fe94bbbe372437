"""FSDP on CUDA with the one process that one GPU allows: sharded tensors, NCCL, the fused optimiser."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import dadlm
from dadlm.model import Model, ModelConfig
from dadlm.model.checkpoint import weights
from dadlm.tokens import Rows
from dadlm.train import RunConfig, TrainConfig, Trainer
from dadlm.train.processes import ALONE, Ranks, joined

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with joined(TrainConfig(parallel="fsdp")) as found:
        assert found.group is not None
        yield found


def trainer(family: str, out: Path, ranks: Ranks = ALONE, **train) -> Trainer:
    torch.manual_seed(0)
    model = ModelConfig(
        family=family, vocab_size=300, eot_id=298, context=128, block_size=8, layers=3, width=64, heads=4,
        candidates=3, expand_at=1, candidate_scale=0.3, candidate_offset=0.5,
    )  # fmt: skip
    settings = {"steps": 12, "batch_size": 8, "precision": "fp32", "warmup": 5, "lr": 1e-3, "valid_rows": 16}
    settings |= {"device": "cuda", "parallel": "fsdp", "graphs": False, "log_every": 1}
    run = RunConfig(model=model, train=TrainConfig(**(settings | train)), out=str(out))
    ids = torch.randint(0, 298, (64 * 128,), generator=torch.Generator().manual_seed(1))
    rows = Rows.from_ids(ids, 128)
    return Trainer(run, Model(model), rows, rows, quiet=True, ranks=ranks)


@pytest.mark.parametrize("family", ["ar", "mdlm", "bd3lm", "dadlm"])
@pytest.mark.parametrize("how", [{}, {"checkpointing": True, "accumulate": 2}, {"precision": "bf16"}])
def test_a_sharded_model_has_the_losses_of_a_whole_one(
    family: str, how: dict, ranks: Ranks, tmp_path: Path
) -> None:
    runs = [trainer(family, tmp_path / "whole", **how), trainer(family, tmp_path / "cut", ranks, **how)]
    losses = [[float(one.step()) for _ in range(10)] for one in runs]
    worst = max(abs(a - b) for a, b in zip(*losses, strict=True))
    print(f"{family} {how}: {worst:.2e}")
    assert worst < (3e-2 if "precision" in how else 1e-4)
    valid = [float(one.score()[0].reconstruction.mean()) for one in runs]
    assert valid[0] == pytest.approx(valid[1], abs=3e-2 if "precision" in how else 1e-4)


def test_a_sharded_run_goes_on_as_a_whole_one(ranks: Ranks, tmp_path: Path) -> None:
    trainer("dadlm", tmp_path / "straight").run()
    trainer("dadlm", tmp_path / "cut", ranks, steps=6).run()
    trainer("dadlm", tmp_path / "cut").run()
    models = [dadlm.load(tmp_path / name / "last") for name in ("straight", "cut")]
    for a, b in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)


def test_an_update_that_is_no_number_is_skipped_and_told(ranks: Ranks, tmp_path: Path) -> None:
    one = trainer("bd3lm", tmp_path, ranks)
    for _ in range(4):
        one.step()
    good = {name: tensor.full_tensor().clone() for name, tensor in weights(one.state.model).items()}
    real = one.gradients.fill

    def spoilt(*step: object) -> tuple[torch.Tensor, torch.Tensor]:
        loss, gap = real(*step)  # type: ignore[arg-type]
        return loss * float("nan"), gap

    one.gradients.fill = spoilt  # type: ignore[method-assign]
    one.step()
    with pytest.raises(dadlm.TrainingError, match="step 5"):
        one.step()
    assert all(torch.equal(t.full_tensor(), good[name]) for name, t in weights(one.state.model).items())
    assert json.loads((tmp_path / "last" / "training" / "state.json").read_text())["step"] == 4
