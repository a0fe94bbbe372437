"""kill -9 at random moments of training: what is on disk can always be read, and the end is the same bits.

The process saves after every step, so that many blows fall into the middle of a save.
"""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.train.runs import assert_same_bits, metrics, progress, state_tensors
from tests.train.worker import environment

from dadlm.cli import main
from dadlm.model import load

STEPS = 400


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command, all but --out."""
    folder = tmp_path_factory.mktemp("killed")
    (folder / "text.txt").write_text("the slow river runs under one red bridge. " * 60, encoding="utf-8")
    words = "train small-dadlm --model.width 16 --model.heads 2 --model.layers 2 --model.expand-at 1"
    words += " --model.context 16 --model.block-size 4 --model.dropout 0.1 --noise.clip-search"
    words += f" --train.steps {STEPS} --train.batch-size 2 --train.valid-every 20 --train.valid-rows 4"
    words += " --train.log-every 1 --train.save-every 1 --train.device cpu --json"
    words += f" --data.train {folder}/text.txt --data.cache {folder}/cache --data.tokenizer bpe:280"
    return words.split()


def disturb(words: list[str], out: Path, blows: int, seed: int) -> int:
    """Kill the run so many times at random moments of its steps; how many steps were saved by then."""
    chance, reached = random.Random(seed), 0
    for blow in range(blows):
        process = subprocess.Popen(
            [sys.executable, "-m", "dadlm.cli", *words, "--out", str(out)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment(),
        )
        try:
            _wait_for(process, out, reached + chance.randint(1, max(1, STEPS // blows - 4)))
            time.sleep(chance.random() * 0.05)  # a step with its save takes about as long
        finally:
            process.kill()
            process.communicate()
        assert process.returncode == -signal.SIGKILL, f"blow {blow}: it had ended before"
        if not (out / "last").exists():
            assert reached == 0, f"blow {blow}: what was saved is gone"
            continue
        for name in ("last", "best") if (out / "best").exists() else ("last",):
            assert load(out / name).config.family == "dadlm", f"blow {blow}: {name} cannot be read"
            assert state_tensors(out / name), f"blow {blow}: the state of {name} cannot be read"
        saved = progress(out / "last")["step"]
        assert saved >= reached, f"blow {blow}: steps were lost"
        reached = saved
    return reached


def _wait_for(process: subprocess.Popen, out: Path, step: int) -> None:
    log, limit = out / "metrics.jsonl", time.monotonic() + 90
    while not log.exists() or log.read_bytes().count(b'"loss"') < step:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit, f"step {step} was not reached"
        time.sleep(0.002)


def compare(words: list[str], blows: int, folder: Path) -> None:
    assert main([*words, "--out", str(folder / "straight")]) == 0
    reached = disturb(words, folder / "broken", blows, seed=blows)
    assert 0 < reached < STEPS
    assert main([*words, "--out", str(folder / "broken")]) == 0
    for name in ("last", "best"):
        here, there = folder / "broken" / name, folder / "straight" / name
        assert here.resolve().name == there.resolve().name
        assert_same_bits(state_tensors(here), state_tensors(there))
    assert metrics(folder / "broken") == metrics(folder / "straight")
    assert len(list((folder / "broken" / "checkpoints").iterdir())) <= 2, "what was torn is cleared away"


@pytest.mark.acceptance
def test_killed_thirty_times(words: list[str], tmp_path: Path) -> None:
    compare(words, 30, tmp_path)
