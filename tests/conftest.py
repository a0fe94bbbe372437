"""What holds for every test: the same numbers each time, whatever ran before and however busy the machine."""

import os
import random
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

# Tensors are tiny: threads would wait for each other, on a busy machine for minutes. Programs that tests
# start inherit it. Before torch is imported, which reads it then.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from tests.commands import Result

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # tests for CUDA may run where there is little more than torch and pytest
    pass
else:
    # No limit to how long an example or its making takes: that would be a test of the machine.
    slow = [HealthCheck.too_slow]
    settings.register_profile(
        "same", derandomize=True, deadline=None, database=None, suppress_health_check=slow
    )
    settings.load_profile("same")


@pytest.fixture(autouse=True)
def same_numbers_every_time() -> None:
    """A red test stays red, whichever tests ran before it."""
    random.seed(0)
    torch.manual_seed(0)


@pytest.fixture
def as_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines as with CUDA graphs: fixed shapes and padded slots. A graph is called instead of replayed."""
    from dadlm.decode.engine import Engine
    from dadlm.model.capture import GraphedCallable

    start = Engine.__init__
    with_graphs = lambda self, model, **how: start(self, model, **{**how, "graphs": True})  # noqa: E731
    monkeypatch.setattr(Engine, "__init__", with_graphs)
    monkeypatch.setattr(GraphedCallable, "__call__", lambda self, function, capture: function())


@pytest.fixture
def full_disk() -> Iterator[None]:
    """Files may not grow beyond 4 kB."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.fixture
def cli(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Result]:
    """Run a command in an empty folder; what its libraries print counts too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    def run(*words: object) -> Result:
        from dadlm.cli import main

        capfd.readouterr()
        try:
            code: object = main([str(word) for word in words])
        except SystemExit as end:
            code = end.code
        return Result(code, *capfd.readouterr())

    return run
