"""A stage goes on where the one before ended: its stream of rows and masks, AdamW's moments, the average."""

import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.commands import Cli, refused
from tests.train.runs import (
    assert_same_bits,
    before_step,
    config,
    metrics,
    progress,
    state_tensors,
    tokenizer,
    trainer,
    with_model,
)

from dadlm.errors import CheckpointError
from dadlm.model import load
from dadlm.model.checkpoint import weights
from dadlm.train import RunConfig, Trainer
from dadlm.train.checkpoint import read_progress
from dadlm.train.handover import save_compact
from dadlm.train.state import Ema, Stream
from dadlm.train.trainer import fresh_model, model_from

STEPS, ROWS = 4, 4  # of the first stage, and of a batch


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stage before: a finished run of BD3LM, the last checkpoint of which is the best."""
    folder = tmp_path_factory.mktemp("before") / "bd3lm"
    assert trainer(config("bd3lm", folder, steps=STEPS)).run().step == STEPS
    return folder


def follow(family: str, origin: Path, out: Path, **changes: object) -> Trainer:
    run = replace(config(family, out, steps=6, **changes), init_from=str(origin))
    start = out / "last" if (out / "last").exists() else origin
    return trainer(run, model_from(start, run.model, 0))


def drawn(one: Trainer, step: int) -> tuple[torch.Tensor, ...]:
    inputs = one.batches.take(step, one.state.noise, torch.arange(ROWS))
    assert inputs.noise is not None
    return inputs.ids, inputs.noise.masked, inputs.noise.time


def test_a_stage_does_not_repeat_the_rows_and_masks_of_the_stage_before(before: Path, tmp_path: Path) -> None:
    first = trainer(config("bd3lm", tmp_path / "first", steps=STEPS))
    second = follow("dadlm", before, tmp_path / "second")
    for step in range(6):
        goes_on = zip(drawn(second, step), drawn(first, STEPS + step), strict=True)
        assert all(torch.equal(*pair) for pair in goes_on)
        again = zip(drawn(second, step), drawn(first, step), strict=True)
        assert not any(torch.equal(*pair) for pair in again)
    second.run()
    assert progress(before / "last")["stream"] == {"steps": 4, "rows": 16}
    assert progress(tmp_path / "second" / "last")["stream"] == {"steps": 10, "rows": 40}


def test_rows_are_counted_where_batches_differ(before: Path, tmp_path: Path) -> None:
    assert follow("bd3lm", before, tmp_path, batch_size=8).batches.start == Stream(4, 16)
    assert Stream(4, 16).after(3, 8) == Stream(7, 40)


def test_dropout_differs_from_the_stage_before(before: Path, tmp_path: Path) -> None:
    seeds = []
    for one in (trainer(config("bd3lm", tmp_path / "a")), follow("bd3lm", before, tmp_path / "b")):
        one.state.begin_step(one.config.train)
        seeds.append(torch.initial_seed())
    assert seeds[0] != seeds[1]


@pytest.mark.parametrize("stop_at", [1, 3])
def test_an_interrupted_second_stage_ends_with_the_same_bits(
    stop_at: int, before: Path, tmp_path: Path
) -> None:
    origin = tmp_path / "origin"
    shutil.copytree(before, origin, symlinks=True)
    straight = follow("dadlm", origin, tmp_path / "straight")
    straight.run()
    broken = follow("dadlm", origin, tmp_path / "broken")
    before_step(broken, stop_at, lambda: signal.raise_signal(signal.SIGINT))
    assert broken.run().interrupted
    shutil.move(origin, tmp_path / "gone")  # what was taken over is in the run's own checkpoint
    assert follow("dadlm", origin, tmp_path / "broken").run().step == 6
    ends = [state_tensors(tmp_path / name / "last") for name in ("straight", "broken")]
    assert_same_bits(*ends)
    assert metrics(tmp_path / "straight") == metrics(tmp_path / "broken")


def moments(one: Trainer) -> dict[str, torch.Tensor]:
    found = {}
    for name, parameter in one.state.model.named_parameters():
        found |= {f"{kind}.{name}": value for kind, value in one.state.optimizer.state[parameter].items()}
    return found


def test_a_stage_of_the_same_family_goes_on_as_the_run_would_have(before: Path, tmp_path: Path) -> None:
    one = follow("bd3lm", before, tmp_path / "next", warmup=0)
    saved, now = state_tensors(before / "best"), moments(one)
    assert len(now) == 3 * len(weights(load(before)))
    assert_same_bits(now, {name: saved[name].reshape(now[name].shape) for name in now})
    assert_same_bits(one.weights, {name: saved[f"weight.{name}"] for name in one.weights})
    assert_same_bits(one.state.ema.average, {name: saved[f"ema.{name}"] for name in one.weights})
    one.run()
    straight = tmp_path / "straight"  # the same run with more steps
    shutil.copytree(before, straight, symlinks=True)
    trainer(config("bd3lm", straight, steps=STEPS + 6)).run()
    assert_same_bits(state_tensors(tmp_path / "next" / "last"), state_tensors(straight / "last"))


def test_another_family_starts_from_the_average_with_fresh_moments(before: Path, tmp_path: Path) -> None:
    one, average = follow("dadlm", before, tmp_path), weights(load(before))
    assert not moments(one)
    assert_same_bits({name: one.weights[name] for name in average}, average)


def test_a_model_folder_carries_the_moments_in_half_precision(before: Path, tmp_path: Path) -> None:
    save_compact(before, tmp_path / "compact")
    assert_same_bits(weights(load(before)), weights(load(tmp_path / "compact")))
    exact, compact = (follow("bd3lm", origin, tmp_path / "run") for origin in (before, tmp_path / "compact"))
    assert exact.state.start == compact.state.start == Stream(STEPS, STEPS * ROWS)
    known = moments(exact)
    for name, value in moments(compact).items():
        torch.testing.assert_close(value, known[name], rtol=2**-8, atol=0)
        assert value.dtype == torch.float32
    size = {file.name: file.stat().st_size for file in (tmp_path / "compact").rglob("*.safetensors")}
    assert size["moments.safetensors"] < 1.5 * size["model.safetensors"]
    assert compact.run().step == 6
    shutil.rmtree(tmp_path / "compact" / "training")
    with pytest.raises(CheckpointError, match="is no training run"):
        save_compact(tmp_path / "compact", tmp_path / "again")


def test_the_command_that_keeps_the_moments(cli: Cli, before: Path) -> None:
    assert cli("convert", before, "--moments", "--out", "folder").code == 0
    assert Path("folder", "training", "moments.safetensors").is_file()
    refused(cli("convert", before, "--moments", "--to", "transformers", "--out", "other"), "--out alone")


def test_a_model_of_unknown_training_starts_a_new_stream(before: Path, tmp_path: Path) -> None:
    shutil.copytree(before / "best", tmp_path / "bare")
    shutil.rmtree(tmp_path / "bare" / "training")
    one = follow("bd3lm", tmp_path / "bare", tmp_path / "run")
    assert one.state.start == Stream() and not moments(one)
    assert one.state.ema.before > 10**9, "its weights are not to be forgotten"


def test_the_average_of_a_trained_model_is_not_forgotten() -> None:
    weight = {"w": torch.zeros(1)}
    kept = []
    for step, before in ((0, 0), (0, 10**9), (100_000, 0)):
        ema = Ema(weight, 0.99, before)
        ema.update({"w": torch.ones(1)}, step)
        kept.append(float(ema.average["w"]))
    assert kept == pytest.approx([0.9, 0.01, 0.01])


def test_another_family_soon_forgets_what_it_began_with(before: Path, tmp_path: Path) -> None:
    """In an average of 0.999 what an AR model knew would stay for thousands of steps of block diffusion."""
    same, other = follow("bd3lm", before, tmp_path / "same"), follow("dadlm", before, tmp_path / "other")
    assert (same.state.ema.before, other.state.ema.before) == (STEPS, 0)
    other.run()
    assert progress(tmp_path / "other" / "last")["averaged"] == 0
    best = progress(tmp_path / "other" / "best")["step"]
    assert follow("dadlm", tmp_path / "other", tmp_path / "next").state.ema.before == best > 0
    assert follow("dadlm", before, tmp_path / "other").state.ema.before == 0, "resumed"


def test_the_hand_over_is_logged(before: Path, tmp_path: Path) -> None:
    follow("bd3lm", before, tmp_path).run()
    first, at_the_end = metrics(tmp_path)[0], metrics(before)[-1]
    assert first["step"] == 0 and first["valid_loss"] == pytest.approx(at_the_end["valid_loss"], abs=1e-5)


def test_a_run_saved_before_streams_were_counted_goes_on(tmp_path: Path) -> None:
    run: RunConfig = config("bd3lm", tmp_path, steps=STEPS)
    trainer(run).run()
    content = progress(tmp_path / "last")
    del content["stream"], content["averaged"]
    (tmp_path / "last" / "training" / "state.json").write_text(json.dumps(content), encoding="utf-8")
    assert trainer(run).state.start == Stream() and trainer(run).state.ema.before == 0
    begun = content | {"run": content["run"] | {"init_from": "a model"}}
    (tmp_path / "last" / "training" / "state.json").write_text(json.dumps(begun), encoding="utf-8")
    assert read_progress(tmp_path / "last")["averaged"] > 10**9, "its average had no fast start"
    (tmp_path / "last" / "training" / "state.json").write_text(json.dumps(content), encoding="utf-8")
    assert follow("bd3lm", tmp_path, tmp_path / "next").state.start == Stream(STEPS, STEPS * ROWS)


def test_initial_weights_are_scaled_by_their_fan_in(tmp_path: Path) -> None:
    run = with_model(config("dadlm", tmp_path), width=64)
    model = fresh_model(run.model, tokenizer(), 0)
    spread = {name: float(tensor.std()) for name, tensor in weights(model).items() if tensor.ndim == 2}
    depth = (2 * run.model.layers) ** -0.5
    assert spread["backbone.layers.0.qkv.weight"] == pytest.approx((3 * 64) ** -0.5, rel=0.05)
    assert spread["backbone.layers.1.out.weight"] == pytest.approx((3 * 64) ** -0.5 * depth, rel=0.05)
    assert spread["backbone.layers.1.down.weight"] == pytest.approx((3 * 256) ** -0.5 * depth, rel=0.05)
    assert spread["backbone.embedding.weight"] == pytest.approx((3 * 64) ** -0.5, rel=0.05)
    assert spread["graph.transition.query.weight"] == pytest.approx(0.02, rel=0.05)
    published = with_model(run, architecture="bd3lm", tie_embedding=False)
    authors = weights(fresh_model(published.model, tokenizer(), 0))
    assert not authors["head.linear.weight"].any(), "the authors' network starts as theirs"
    assert float(authors["backbone.embedding.weight"].std()) == pytest.approx(0.02, rel=0.05)
