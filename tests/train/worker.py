"""One process of a run, as torchrun starts it: python -m tests.train.worker JOBS.json; and how to start some.
A job is {"out", "family", "train": settings}; it may name an origin, or a misfortune of one process."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.train.runs import before_step, config, poison, trainer

import dadlm
from dadlm.errors import TrainingError
from dadlm.train.config import TrainConfig
from dadlm.train.origin import model_from
from dadlm.train.processes import Ranks, joined


def run_ranks(size: int, jobs: list[dict[str, Any]], folder: Path, limit: float = 600) -> None:
    """Do the jobs, one after the other, with so many processes of this machine."""
    file = folder / f"jobs-{size}.json"
    file.write_text(json.dumps(jobs), encoding="utf-8")
    places = [{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)} for rank in range(size)]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.train.worker", str(file)]
    processes = [
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=Path(__file__).parents[2],
            env=environment() | common | place,
        )
        for place in places
    ]
    try:
        said = [process.communicate(timeout=limit)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * size, "\n".join(said)


def environment() -> dict[str, str]:
    """Only the loopback interface is spoken to."""
    source = str(Path(dadlm.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": source, "GLOO_SOCKET_IFNAME": "lo"}


def train_command(folder: Path, family: str, steps: int, more: str) -> list[str]:
    """`dadlm train` of a tiny model on a text of its own, all but --out."""
    (folder / "text.txt").write_text("the slow river runs under one red bridge. " * 60, encoding="utf-8")
    words = f"train small-{family} --data.train {folder}/text.txt --data.cache {folder}/cache"
    words += " --data.tokenizer bpe:280 --model.width 16 --model.heads 2 --model.expand-at 0"
    words += f" --model.context 16 --model.block-size 4 --train.device cpu --train.steps {steps}"
    return f"{words} --train.valid-every 60 --train.valid-rows 4 --train.log-every 1 {more}".split()


def wait_for(process: subprocess.Popen[str], out: Path, step: int) -> None:
    """Until the process has logged that step."""
    limit = time.monotonic() + 240
    while time.monotonic() < limit:
        file = out / "metrics.jsonl"
        if file.exists() and file.read_bytes().count(b'"loss"') >= step:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.003)
    raise AssertionError(f"step {step} was not reached")


def free_port() -> int:
    """A port that is free now, below those that systems give to connections: so it is free later as well."""
    for port in random.SystemRandom().sample(range(15_000, 30_000), 100):
        with suppress(OSError), socket.socket() as free:
            free.bind(("127.0.0.1", port))
            return port
    raise OSError("no free port")


def _do(job: dict[str, Any], ranks: Ranks) -> None:
    origin = job.get("origin")
    run = config(job["family"], Path(job["out"]), job.get("edge", "none"), **job["train"])
    run = replace(run, init_from=origin)
    model = None if origin is None else model_from(origin, run.model, 0)
    one = trainer(run, model, ranks=ranks)
    with pytest.MonkeyPatch.context() as patch:
        if ranks.rank == ranks.size - 1 and "stop_at" in job:
            before_step(one, job["stop_at"], lambda: signal.raise_signal(signal.SIGTERM))
        if ranks.rank == ranks.size - 1 and "nan_at" in job:
            before_step(one, job["nan_at"], lambda: poison(patch))
        try:
            said = str(one.run().step)
        except TrainingError as error:
            said = str(error)
    Path(f"{job['out']}-rank{ranks.rank}.txt").write_text(said, encoding="utf-8")


if __name__ == "__main__":
    jobs = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    with joined(TrainConfig(device="cpu", parallel="fsdp")) as found:
        for one_job in jobs:
            _do(one_job, found)
