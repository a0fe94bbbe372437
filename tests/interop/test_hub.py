"""Push and pull, against a hub that is a folder: no test ever leaves the machine."""

import shutil
from fnmatch import fnmatch
from pathlib import Path

import huggingface_hub
import pytest
import torch
from tests.commands import Cli, refused
from tests.decode.tiny import tiny
from tests.interop import published

import dadlm
from dadlm.errors import CheckpointError
from dadlm.interop.convert import convert
from dadlm.interop.hub import card_of

pytest.importorskip("transformers")


class Hub:
    """What we use of HfApi, and snapshot_download, on a folder."""

    def __init__(self, root: Path) -> None:
        self.root, self.made, self.full = root, {}, False

    def create_repo(self, name: str, *, repo_type: str, private: bool, exist_ok: bool) -> str:
        assert repo_type == "model" and exist_ok
        self.made[name] = private
        return f"https://hub.invalid/{name}"

    def upload_folder(self, *, repo_id: str, folder_path: Path, commit_message: str) -> None:
        if self.full:
            raise OSError("507 no room\nand a long explanation")
        assert repo_id in self.made and commit_message
        shutil.copytree(folder_path, self.root / repo_id)

    def snapshot_download(self, name: str, allow_patterns: list[str]) -> str:
        target = self.root / "snapshots" / name
        target.mkdir(parents=True, exist_ok=True)
        for file in (self.root / name).iterdir():
            if any(fnmatch(file.name, pattern) for pattern in allow_patterns):
                shutil.copy(file, target)
        return str(target)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub(tmp_path / "hub")
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)
    return hub


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    dadlm.save(tiny("dadlm", tokenizer=published.tokenizer()), tmp_path / "ours")
    return tmp_path / "ours"


def test_pushed_and_pulled_is_the_same_model(cli: Cli, folder: Path, hub: Hub) -> None:
    told = cli("convert", folder, "--push", "somebody/model", "--json").json
    assert told["address"] == "https://hub.invalid/somebody/model" and told["folder"] is None
    assert hub.made == {"somebody/model": False}
    ours, pulled = dadlm.load(folder), dadlm.load("somebody/model")
    assert pulled.config == ours.config and pulled.tokenizer == ours.tokenizer
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), pulled.parameters(), strict=True))
    options = {"seed": 1, "max_new_tokens": 8}
    assert dadlm.generate(pulled, ["w1 w2"], **options) == dadlm.generate(ours, ["w1 w2"], **options)


def test_what_lies_there(cli: Cli, folder: Path, hub: Hub, tmp_path: Path) -> None:
    assert cli("convert", folder, "--push", "somebody/model", "--private", "--out", "kept").code == 0
    assert hub.made == {"somebody/model": True}
    there = published.content(hub.root / "somebody" / "model")
    assert there == published.content(tmp_path / "kept")
    ours = {"README.md", "config.json", "model.safetensors", "tokenizer.json"}
    assert there.keys() == ours | {"generation_config.json", "modeling_dadlm.py", "tokenizer_config.json"}
    card = there["README.md"].decode()
    count = sum(parameter.numel() for parameter in dadlm.load(folder).parameters())
    assert card.startswith("---\nlibrary_name: dadlm\n") and f"{count:,} parameters" in card


def test_a_card_goes_along_through_every_form(tmp_path: Path) -> None:
    shape = {"architecture": "bd3lm", "tie_embedding": False, "tokenizer": published.tokenizer()}
    dadlm.save(tiny("bd3lm", **shape), tmp_path / "ours")
    (tmp_path / "ours" / "README.md").write_bytes(b"mine, na\xefvely encoded")
    source = tmp_path / "ours"
    for number, form in enumerate(["transformers", "dadlm", "bd3lm", "dadlm", "dadlm"]):
        convert(source, tmp_path / str(number), to=form)
        source = tmp_path / str(number)
        assert (source / "README.md").read_bytes() == b"mine, na\xefvely encoded", form
    (tmp_path / "ours" / "README.md").unlink()
    with pytest.raises(CheckpointError, match="nothing was written"):  # no card of its own: none is lost
        convert(tmp_path / "ours", tmp_path / "3")
    convert(tmp_path / "1", tmp_path / "3")


@pytest.mark.parametrize("family", ["ar", "mdlm", "bd3lm", "dadlm"])
def test_a_card_says_only_what_is_so(family: str) -> None:
    card = card_of(tiny(family))
    assert ("blocks of 4" in card) == (family in ("bd3lm", "dadlm"))
    assert ("3 candidates" in card) == (family == "dadlm")


def test_a_hub_that_refuses_is_a_clear_error(cli: Cli, folder: Path, hub: Hub) -> None:
    hub.full = True
    told = cli("convert", folder, "--push", "somebody/model")
    refused(told, r"did not take somebody/model: 507 no room \(")
    assert "long explanation" not in told.err


@pytest.mark.parametrize("name", ["model", "a/b/c", "../model", "a/..", "/model", "a/b c", "https://x/y"])
def test_bad_names_are_refused_before_anything_happens(cli: Cli, name: str, folder: Path, hub: Hub) -> None:
    refused(cli("convert", folder, "--push", name), "OWNER/NAME")
    assert hub.made == {}
