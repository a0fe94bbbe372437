"""One thread where that is wanted, as many as before afterwards; training asks for it on a GPU."""

from pathlib import Path

import pytest
import torch
from tests.train.runs import config, trainer
from tests.train.test_finetune import config_of
from tests.train.test_finetune_steps import tuner

from dadlm.threads import one_thread
from dadlm.train import loop


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize(("wanted", "inside"), [(True, 1), (False, 3)])
def test_threads_come_back(wanted: bool, inside: int) -> None:
    with pytest.raises(ValueError, match="an error"), one_thread(wanted):
        assert torch.get_num_threads() == inside
        raise ValueError("an error changes nothing")
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize("pairs", [False, True])
def test_training_asks_for_one_thread_on_a_gpu(
    kind: str, pairs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = tuner(config_of("bd3lm", tmp_path)) if pairs else trainer(config("bd3lm", tmp_path))
    one.device = torch.device(kind)

    def ask(wanted: bool) -> None:
        assert wanted == (kind == "cuda")
        raise RuntimeError("here the steps would begin")

    monkeypatch.setattr(loop, "one_thread", ask)
    with pytest.raises(RuntimeError, match="here the steps would begin"):
        one.run()
