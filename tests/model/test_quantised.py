"""8-bit folders: what is lost is bounded, what is damaged is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.model.shipped import change_config
from tests.model.tiny import random_ids, random_noise, tiny_model

from dadlm.errors import CheckpointError, ConfigError
from dadlm.model import load, save
from dadlm.model.checkpoint import weights
from dadlm.model.files import digest
from dadlm.model.quantised import dequantise, quantise
from dadlm.objective import losses

SMALL = {"graph.candidate", "graph.start", "graph.transition.bias", "head.offset"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(tiny_model(), tmp_path / "model", bits=8)
    return tmp_path / "model"


def rewrite(folder: Path, **changes: torch.Tensor | None) -> None:
    """Change tensors of a folder as somebody would who also mends the checksum."""
    tensors = load_file(folder / "model.safetensors")
    tensors |= {name: tensor for name, tensor in changes.items() if tensor is not None}
    tensors = {name: tensor for name, tensor in tensors.items() if changes.get(name, 0) is not None}
    save_file(tensors, folder / "model.safetensors")
    change_config(folder, weights_sha256=digest(folder / "model.safetensors"))


@pytest.mark.parametrize("spread", [1e-6, 1.0, 1e4])
def test_a_number_is_off_by_half_a_step_of_its_row_at_most(spread: float) -> None:
    exact = torch.randn(40, 64) * torch.logspace(-3, 3, 40)[:, None] * spread  # rows of very different size
    back = dequantise(quantise({"x": exact}), "here")["x"].double().numpy()
    step = np.abs(exact.double().numpy()).max(1, keepdims=True) / 127
    off = np.abs(back - exact.double().numpy()) / step
    assert off.max() <= 0.5 + 1e-4
    assert off.mean() == pytest.approx(0.25, abs=0.02)  # even over half a step: nothing is cut off


def test_whole_steps_and_rows_of_zeros_are_exact() -> None:
    exact = torch.randint(-127, 128, (20, 300)).float() * 0.25
    exact[:, 0], exact[3] = 127 * 0.25, 0.0
    assert torch.equal(dequantise(quantise({"x": exact}), "here")["x"], exact)


def test_few_rows_and_vectors_stay_as_they_are(folder: Path) -> None:
    stored, exact = load_file(folder / "model.safetensors"), weights(tiny_model())
    for name, tensor in exact.items():
        if tensor.dim() == 2 and name not in SMALL:
            assert stored[name].dtype == torch.int8
            assert stored[f"{name}.scale"].shape == (len(tensor),)
        else:
            assert torch.equal(stored[name], tensor), name
    assert {name for name in exact if stored[name].dtype == torch.int8} >= {"backbone.embedding.weight"}


@pytest.mark.parametrize("family", ["ar", "mdlm", "bd3lm", "dadlm"])
def test_an_8_bit_model_says_nearly_the_same(family: str, tmp_path: Path) -> None:
    model = tiny_model(family)
    save(model, tmp_path / "model", bits=8)
    stored = load(tmp_path / "model")
    ids = random_ids(model.config)
    noise = None if family == "ar" else random_noise(model)
    ours, theirs = losses(model, ids, noise), losses(stored, ids, noise)
    assert not torch.equal(ours.bound, theirs.bound)
    torch.testing.assert_close(ours.bound, theirs.bound, atol=0.3, rtol=0.03)
    assert stored.head.linear.weight is stored.backbone.embedding.weight


def test_stored_twice_is_stored_once(folder: Path) -> None:
    """What has been rounded is not rounded further."""
    save(load(folder), folder.parent / "again", bits=8)
    before, after = (load_file(place / "model.safetensors") for place in (folder, folder.parent / "again"))
    assert all(torch.equal(before[name], after[name]) for name in before if not name.endswith(".scale"))
    for name in before:
        torch.testing.assert_close(before[name].float(), after[name].float(), rtol=1e-6, atol=0)


def test_the_format_says_how_weights_are_stored(folder: Path) -> None:
    assert json.loads((folder / "config.json").read_text())["format"] == 2
    change_config(folder, format=1)
    with pytest.raises(CheckpointError, match=r"type: backbone.embedding.weight is I8"):
        load(folder)
    save(tiny_model(), folder)
    assert json.loads((folder / "config.json").read_text())["format"] == 1


@pytest.mark.parametrize(
    ("scale", "found"),
    [
        (None, "found none"),
        (torch.ones(29), r"found torch.float32 of shape \(29,\)"),
        (torch.ones(30, 1), r"shape \(30, 1\)"),
        (torch.ones(30, dtype=torch.int32), "found torch.int32"),
    ],
)
def test_scales_that_do_not_fit_are_refused(folder: Path, scale: torch.Tensor | None, found: str) -> None:
    rewrite(folder, **{"backbone.embedding.weight.scale": scale})
    with pytest.raises(CheckpointError, match=f"backbone.embedding.weight has 30 rows .*{found}"):
        load(folder)


@pytest.mark.parametrize("bits", [4, 16, "8", None])
def test_other_widths_are_refused_and_leave_the_folder_as_it_was(folder: Path, bits: object) -> None:
    before = (folder / "model.safetensors").read_bytes()
    with pytest.raises(ConfigError, match="32 or 8 bits"):
        save(tiny_model(seed=1), folder, bits=bits)  # type: ignore[arg-type]
    assert (folder / "model.safetensors").read_bytes() == before
    assert [path.name for path in folder.parent.iterdir()] == ["model"]
