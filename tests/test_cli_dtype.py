"""The precision of the commands that are about speed on a GPU. There need be none: the device is made up, and
the command is stopped where the weights would be moved there."""

from importlib import import_module

import pytest
import torch
from tests.model.tiny import tiny_model

from dadlm import Model, save


class MovedError(Exception):
    """Instead of the rest of the command."""


@pytest.mark.parametrize("command", ["serve", "summarize"])
@pytest.mark.parametrize(
    ("device", "given", "expected"),
    [
        ("cpu", [], torch.float32),
        ("cuda", [], torch.bfloat16),
        ("cuda", ["--dtype", "float32"], torch.float32),
        ("cpu", ["--dtype", "bfloat16"], torch.bfloat16),
    ],
)
def test_bfloat16_is_the_default_on_cuda(command, device, given, expected, tmp_path, monkeypatch) -> None:
    def find_device(name: str | torch.device) -> torch.device:
        return torch.device(device if name == "auto" else name)

    def to(model: Model, *where: object) -> Model:
        raise MovedError(*where)

    save(tiny_model("bd3lm"), tmp_path / "model")
    (tmp_path / "text.txt").write_text("A document.")
    monkeypatch.setattr("dadlm.model.checkpoint.find_device", find_device)
    monkeypatch.setattr("dadlm.cli.serve.find_device", find_device)
    monkeypatch.setattr(Model, "to", to)
    more = {"serve": ["--port", "0"], "summarize": [str(tmp_path / "text.txt")]}[command]
    with pytest.raises(MovedError) as moved:
        import_module(f"dadlm.cli.{command}").run(["--model", str(tmp_path / "model"), *more, *given])
    assert moved.value.args == (torch.device(device), expected)
