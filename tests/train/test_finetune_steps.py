"""Steps of fine-tuning take the trainer's way: the same as plain torch, at few shapes, stopped in time."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.runs import FAMILIES, before_step, poison, progress, with_train
from tests.train.test_finetune import config_of

from dadlm.errors import ConfigError, TrainingError
from dadlm.evaluate.documents import read_documents
from dadlm.evaluate.summarisation import lengths
from dadlm.model import Model, load
from dadlm.noise import draw_noise
from dadlm.objective import losses
from dadlm.train import gradients
from dadlm.train.config import FinetuneConfig
from dadlm.train.finetune import Finetuner
from dadlm.train.gradients import StepGraphs
from dadlm.train.pair_rows import PairRows, encode_pairs

every_family = pytest.mark.parametrize("family", FAMILIES)


def tuner(config: FinetuneConfig, model: Model | None = None) -> Finetuner:
    model = model or load(config.model)
    sizes = lengths(model, config.document_tokens, config.summary_tokens)
    data, valid = read_documents(config.data), read_documents(config.valid)
    return Finetuner(config, model, encode_pairs(model, data, *sizes), valid, quiet=True)


def plain_losses(config: FinetuneConfig, model: Model, steps: int) -> list[float]:
    """One whole batch after another through torch's own AdamW."""
    train, found = config.train, []
    sizes = lengths(model, config.document_tokens, config.summary_tokens)
    rows = PairRows(
        encode_pairs(model, read_documents(config.data), *sizes).rows, model.config, train.batch_size
    )
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=0.0, betas=train.betas, weight_decay=0.0)
    for step in range(steps):
        batch, noise = rows.batch(step, train.seed), None
        if model.config.family != "ar":
            rows_of, length = torch.arange(train.batch_size), batch.ids.shape[1]
            how = {"seed": train.seed, "step": step, "rows": rows_of, "batch_rows": train.batch_size}
            how |= {"length": length, "block_size": length if model.config.family == "mdlm" else 4}
            how |= {"maskable": batch.loss_mask, "masks_per_row": train.masks_per_row}
            noise = draw_noise(config.noise, **how)
        loss = losses(model, batch.ids, noise, loss_mask=batch.loss_mask).train.sum() / batch.loss_mask.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), train.clip)
        for group in optimizer.param_groups:
            group["lr"] = train.lr_at(step)
        optimizer.step()
        found.append(float(loss.detach()))
    return found


@pytest.mark.parametrize(("accumulate", "masks"), [(1, 1), (2, 1), (2, 3)])
@every_family
def test_a_step_is_what_plain_torch_makes(family: str, accumulate: int, masks: int, tmp_path: Path) -> None:
    config = with_train(config_of(family, tmp_path), accumulate=accumulate, masks_per_row=masks)
    if family in ("ar", "mdlm") and masks > 1:
        with pytest.raises(ConfigError, match=f"leave it out for this {family}"):
            tuner(config)
        return
    model = load(config.model)
    plain = copy.deepcopy(model)
    expected = plain_losses(config, plain, 4)
    one = tuner(config, model)
    assert [float(one.step()) for _ in range(4)] == pytest.approx(expected, rel=1e-6)
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)  # AdamW enlarges what rounding leaves


class Replay:
    """A CUDA graph's place: it works on the tensors it was captured with, and nowhere else."""

    def __init__(self, function: Any, parameters: list[torch.nn.Parameter]) -> None:
        self.function, self.parameters, self.replays = function, parameters, 0
        self.outputs, self.grads = function(), [parameter.grad for parameter in parameters]

    def replay(self) -> None:
        self.replays += 1
        for parameter in self.parameters:
            parameter.grad = None
        for old, new in zip(self.outputs, self.function(), strict=True):
            old.copy_(new)
        for parameter, grad in zip(self.parameters, self.grads, strict=True):
            if grad is not None:
                grad.copy_(parameter.grad)
            parameter.grad = grad

    def pool(self) -> None: ...


@every_family
def test_replayed_steps_of_all_lengths_are_the_steps(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of several buckets; each shape is made once, captured once, and replayed from then on."""
    config = with_train(config_of(family, tmp_path, document_tokens=22), batch_size=2)
    eager, captured = tuner(config), tuner(replace(config, out=str(tmp_path / "captured")))
    assert eager.gradients.graphs is None, "only on CUDA"
    parameters, made = list(captured.state.model.parameters()), []

    def capture(_what: str, function: Any, _pool: object) -> tuple[Replay, Any]:
        made.append(Replay(function, parameters))
        return made[-1], made[-1].outputs

    monkeypatch.setattr(gradients, "capture", capture)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self.clone())
    captured.gradients.graphs = StepGraphs(captured.state.model, captured.gradients.backward)
    one, other = ([float(each.step()) for _ in range(16)] for each in (eager, captured))
    assert one == pytest.approx(other, rel=1e-6)
    assert len({eager.batches.rows.batch(step, 0).ids.shape for step in range(16)}) > 1 or family == "mdlm"
    assert made and sum(graph.replays for graph in made) > 3


def test_nan_stops_before_it_spoils_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = tuner(config_of("bd3lm", tmp_path))
    before_step(one, 3, lambda: poison(monkeypatch))
    with pytest.raises(TrainingError, match=r"step 3: loss nan.*step-00000002\. .*lower --train\.lr"):
        one.run()
    assert progress(tmp_path / "run" / "last")["step"] == 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.filterwarnings("ignore")
@every_family
def test_on_cuda_steps_are_replayed_and_those_of_the_cpu(family: str, tmp_path: Path) -> None:
    config = config_of(family, tmp_path, document_tokens=22)
    plan = with_train(config, batch_size=4, precision="fp32", lr=1e-3)
    found = {}
    for device in ("cpu", "cuda"):
        one = tuner(replace(with_train(plan, device=device), out=str(tmp_path / device)))
        found[device] = [float(one.step()) for _ in range(24)]
        replayed = one.gradients.graphs
    assert replayed is not None and any(replayed.captured.values())
    assert found["cuda"] == pytest.approx(found["cpu"], abs=1e-3)
