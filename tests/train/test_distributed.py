"""Several processes train as one does: the same losses, one log, one checkpoint that any number goes on from.
Everything is compared with one process that was started on its own."""

import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.runs import FAMILIES, config, metrics, progress, state_tensors, text, train, trainer
from tests.train.worker import environment, free_port, run_ranks, train_command, wait_for

from dadlm.errors import CheckpointError, ConfigError
from dadlm.model import load
from dadlm.model.checkpoint import weights
from dadlm.train.batches import Batches, parts_of
from dadlm.train.origin import model_from
from dadlm.train.processes import Ranks

PLAN: dict[str, Any] = {"steps": 20, "batch_size": 8, "valid_every": 5, "save_every": 7}
HALF = {**PLAN, "steps": 10}


def curve(out: Path) -> list[tuple[float, str, float]]:
    return [(one["step"], name, one[name]) for one in metrics(out) for name in one if name != "step"]


def assert_same_curve(one: Path, other: Path) -> None:
    here, there = curve(one), curve(other)
    assert [entry[:2] for entry in here] == [entry[:2] for entry in there]
    # Sums in another order differ in the last bit, and every step enlarges that.
    assert [entry[2] for entry in here] == pytest.approx([entry[2] for entry in there], abs=5e-5)


def assert_same_model(one: Path, other: Path) -> None:
    here, there = weights(load(one)), weights(load(other))
    assert here.keys() == there.keys()
    for name in here:  # a step of AdamW may turn a rounding error into a change of the size of its rate
        torch.testing.assert_close(here[name], there[name], atol=1e-3, rtol=1e-3)


def job(out: Path, family: str, plan: dict[str, Any], parallel: str, **more: Any) -> dict[str, Any]:
    return {"out": str(out), "family": family, "train": {**plan, "parallel": parallel}, **more}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes made, and what one made beside them."""
    folder = tmp_path_factory.mktemp("two")
    train(config("dadlm", folder / "alone", **PLAN))
    few = {**HALF, "steps": 4}
    train(config("bd3lm", folder / "alone-parts", **few))
    train(config("dadlm", folder / "alone-edges", edge="bilinear", **few))
    train(config("bd3lm", folder / "alone-joint", ar_weight=0.5, **few))
    train(config("dadlm", folder / "taken-over", **HALF))
    parts = {**few, "accumulate": 2, "checkpointing": True}

    jobs = [
        job(folder / "ddp", "dadlm", PLAN, "ddp"),
        job(folder / "fsdp", "dadlm", PLAN, "fsdp"),
        job(folder / "parts-ddp", "bd3lm", parts, "ddp"),
        job(folder / "parts-fsdp", "bd3lm", parts, "fsdp"),
        job(folder / "edges-ddp", "dadlm", few, "ddp", edge="bilinear"),
        job(folder / "edges-fsdp", "dadlm", few, "fsdp", edge="bilinear"),
        job(folder / "joint-ddp", "bd3lm", {**few, "ar_weight": 0.5}, "ddp"),
        job(folder / "joint-fsdp", "bd3lm", {**few, "ar_weight": 0.5}, "fsdp"),
        job(folder / "half", "dadlm", HALF, "fsdp"),
        job(folder / "taken-over", "dadlm", PLAN, "fsdp"),
        job(folder / "next", "dadlm", few, "fsdp", origin=str(folder / "half")),
        job(folder / "nan", "bd3lm", {**HALF, "valid_every": 100, "save_every": 100}, "fsdp", nan_at=4),
        job(folder / "stop", "bd3lm", {**HALF, "valid_every": 100, "save_every": 100}, "ddp", stop_at=3),
    ]
    run_ranks(2, jobs, folder)
    shutil.copytree((folder / "half" / "best").resolve(), folder / "half-way")
    return folder


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_have_the_losses_of_one(parallel: str, two: Path) -> None:
    assert len(curve(two / "alone")) == 20 * 3 + 4 * 3  # loss, rate and gap; validations of three values
    assert_same_curve(two / parallel, two / "alone")
    assert_same_model(two / parallel / "last", two / "alone" / "last")
    assert_same_model(two / parallel / "best", two / "alone" / "best")


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_micro_batches_and_recomputed_layers_change_nothing(parallel: str, two: Path) -> None:
    assert_same_curve(two / f"parts-{parallel}", two / "alone-parts")


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_the_bound_of_edges_is_that_of_one_process(parallel: str, two: Path) -> None:
    """It needs the vocabulary head once more behind the forward pass, where FSDP has sharded it again."""
    assert any("valid_graph_gap" in entry for entry in metrics(two / f"edges-{parallel}"))
    assert_same_curve(two / f"edges-{parallel}", two / "alone-edges")


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_the_ar_loss_beside_diffusion_is_that_of_one_process(parallel: str, two: Path) -> None:
    assert any(name == "valid_ar_nll" for _, name, _ in curve(two / "alone-joint"))
    assert_same_curve(two / f"joint-{parallel}", two / "alone-joint")


def test_each_process_keeps_its_rows_of_the_training_state(two: Path) -> None:
    whole, last = state_tensors(two / "alone" / "last"), two / "fsdp" / "last" / "training"
    names = {f"state-0000{number}-of-00002.safetensors" for number in (1, 2)}
    assert {path.name for path in last.iterdir()} == names | {"state.json"}
    sizes = [path.stat().st_size for path in last.glob("*.safetensors")]
    everything = (two / "alone" / "last" / "training" / "state.safetensors").stat().st_size
    assert max(sizes) < 0.6 * everything, "weights, averages and both moments are shared out"
    assert {name.split(".")[0] for name in whole} == {"weight", "ema", "step", "exp_avg", "exp_avg_sq"}
    assert (two / "ddp" / "last" / "training" / "state.safetensors").is_file()


def test_one_process_goes_on_from_the_shards_of_two(two: Path) -> None:
    train(config("dadlm", two / "half", **PLAN))
    assert_same_curve(two / "half", two / "alone")
    assert_same_model(two / "half" / "last", two / "alone" / "last")


def test_sharded_processes_take_over_the_moments_of_the_stage_before(two: Path) -> None:
    origin = two / "half-way"
    run = replace(config("dadlm", two / "next-alone", **{**HALF, "steps": 4}), init_from=str(origin))
    trainer(run, model_from(origin, run.model, 0)).run()
    assert_same_curve(two / "next", two / "next-alone")


def test_two_sharded_processes_go_on_from_one(two: Path) -> None:
    assert_same_curve(two / "taken-over", two / "alone")


def test_a_loss_that_is_no_number_in_one_process_stops_all(two: Path) -> None:
    said = [(two / f"nan-rank{rank}.txt").read_text(encoding="utf-8") for rank in (0, 1)]
    assert said[0] == said[1]
    assert re.match(r"step 4: loss nan, .* the last good state is in .*step-00000003", said[0])
    assert progress(two / "nan" / "last")["step"] == 3
    assert all(torch.isfinite(tensor).all() for tensor in weights(load(two / "nan" / "last")).values())


def test_a_signal_to_one_process_stops_all_at_the_same_step(two: Path) -> None:
    said = [(two / f"stop-rank{rank}.txt").read_text(encoding="utf-8") for rank in (0, 1)]
    assert said == ["3", "3"]
    assert progress(two / "stop" / "last")["step"] == 3


def test_a_missing_or_damaged_shard_is_refused(two: Path) -> None:
    run, last = config("dadlm", two / "fsdp", **{**PLAN, "steps": 30}), two / "fsdp" / "last" / "training"
    second = last / "state-00002-of-00002.safetensors"
    content = second.read_bytes()
    second.write_bytes(content[:-100])
    with pytest.raises(CheckpointError, match="truncated or damaged"):
        train(run)
    second.unlink()
    with pytest.raises(CheckpointError, match=r"state-00002-of-00002\.safetensors does not exist"):
        train(run)
    second.write_bytes(content)


def test_the_processes_share_out_the_batch_without_rest(tmp_path: Path) -> None:
    run = config("bd3lm", tmp_path, batch_size=12, accumulate=2)
    batches = Batches(run, text(40, 1))
    shares = [parts_of(batches.run, Ranks(rank, 3)) for rank in range(3)]
    assert sorted(int(place) for share in shares for part in share for place in part) == list(range(12))
    whole = batches.take(5, run.noise, torch.arange(12))
    for part in shares[1]:
        ids, noise, *_ = batches.take(5, run.noise, part)
        assert noise is not None and whole[1] is not None
        assert torch.equal(ids, whole[0][part]) and torch.equal(noise.masked, whole[1].masked[part])
    with pytest.raises(ConfigError, match="12 cannot be cut into accumulate 2 equal parts for each of 5"):
        parts_of(batches.run, Ranks(0, 5))


@pytest.mark.acceptance
@pytest.mark.parametrize("family", FAMILIES)
def test_one_two_and_four_processes_have_the_same_losses(family: str, tmp_path: Path) -> None:
    """And what four have saved, two go on with."""
    train(config(family, tmp_path / "1", **PLAN))

    for size, plan in ((4, HALF), (2, PLAN)):
        jobs = [job(tmp_path / f"{size}-{parallel}", family, PLAN, parallel) for parallel in ("ddp", "fsdp")]
        run_ranks(size, [*jobs, job(tmp_path / "half", family, plan, "fsdp")], tmp_path)
    for name in ("2-ddp", "2-fsdp", "4-ddp", "4-fsdp", "half"):
        assert_same_curve(tmp_path / name, tmp_path / "1")
    pieces = [path.name for path in (tmp_path / "half" / "last" / "training").glob("*.safetensors")]
    assert sorted(pieces) == [f"state-0000{number}-of-00002.safetensors" for number in (1, 2)]


@pytest.mark.acceptance
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_torchrun_told_to_stop_saves_and_goes_on(
    parallel: str, number: signal.Signals, tmp_path: Path
) -> None:
    """The command line under torchrun: data prepared once, one log, one answer, a signal, the same end."""
    more = f"--model.layers 2 --train.batch-size 4 --train.parallel {parallel}"
    words = train_command(tmp_path, "dadlm", 120, more)

    def command(out: str) -> list[str]:
        start = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1"]
        start += ["--master-port", str(free_port()), "-m", "dadlm.cli"]
        return [sys.executable, *start, *words, "--out", str(tmp_path / out)]

    told = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "env": environment()}
    straight = subprocess.run(command("straight"), timeout=200, check=True, **told)  # type: ignore[call-overload]
    assert straight.stdout.count("finished at step 120") == 1, straight.stdout
    process = subprocess.Popen(command("broken"), start_new_session=True, **told)  # type: ignore[call-overload]
    wait_for(process, tmp_path / "broken", 5)
    if number == signal.SIGINT:  # Ctrl-C goes to all processes in front of the terminal
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    said, _ = process.communicate(timeout=100)
    stopped = progress(tmp_path / "broken" / "last")["step"]
    assert 5 <= stopped < 120 and f"stopped at step {stopped}" in " ".join(said.split()), said
    subprocess.run(command("broken"), timeout=200, check=True, **told)  # type: ignore[call-overload]
    assert_same_curve(tmp_path / "broken", tmp_path / "straight")
    assert [entry["step"] for entry in metrics(tmp_path / "broken") if "loss" in entry] == list(range(1, 121))
