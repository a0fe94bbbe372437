"""Our models through transformers: the same weights, the same texts, also in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.decode.tiny import FAMILIES, prompt_of, tiny
from tests.interop import published

import dadlm
from dadlm.errors import CheckpointError, ConfigError
from dadlm.interop.convert import convert
from dadlm.model import Model
from dadlm.noise import Noise
from dadlm.objective import losses

pytest.importorskip("transformers")
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoTokenizer

from dadlm.interop.transformers import DadlmConfig, DadlmForMaskedLM

ROWS = [prompt_of(6, seed) for seed in range(3)]


def same_weights(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def completed(model: Model, rows: list[list[int]], **options) -> list[list[int]]:
    """Prompts and completions by dadlm alone."""
    return [row + new for row, new in zip(rows, dadlm.generate(model, rows, **options).tokens, strict=True)]


def cut(rows: torch.Tensor, like: list[list[int]]) -> list[list[int]]:
    """Without the end-of-text that fills rows up; it must be nothing else."""
    for row, short in zip(rows.tolist(), like, strict=True):
        assert set(row[len(short) :]) <= {28}
    return [row[: len(short)] for row, short in zip(rows.tolist(), like, strict=True)]


@pytest.mark.parametrize("architecture", ["lean", "bd3lm"])
@pytest.mark.parametrize("family", FAMILIES)
def test_saved_and_loaded_by_transformers(family: str, architecture: str, tmp_path: Path) -> None:
    model = tiny(family, architecture=architecture, tie_embedding=architecture == "lean", transition="gated")
    DadlmForMaskedLM.of(model).save_pretrained(tmp_path)
    loaded, told = AutoModelForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(told.values()) and same_weights(loaded, model)
    assert loaded.core.config == model.config == AutoConfig.from_pretrained(tmp_path).shape
    options = {"seed": 4, "max_new_tokens": 9}
    expected = completed(model, ROWS, **options)
    assert cut(loaded.generate(torch.tensor(ROWS), **options), expected) == expected
    ours = dadlm.load(tmp_path)
    assert ours.config == model.config and same_weights(ours, model)
    dadlm.save(ours, tmp_path / "ours")  # a folder of ours is read too
    loaded, told = AutoModel.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(told.values()) and same_weights(loaded, model)
    tied = loaded.head.linear.weight is loaded.backbone.embedding.weight
    assert tied == model.config.tie_embedding and loaded.core.head.linear.weight is loaded.head.linear.weight


def test_what_is_refused(tmp_path: Path) -> None:
    dadlm.save(tiny("dadlm"), tmp_path / "model", bits=8)
    with pytest.raises(ConfigError, match="dadlm convert FOLDER --to transformers"):
        AutoModel.from_pretrained(tmp_path / "model")
    with pytest.raises(ConfigError, match="not divisible"):
        DadlmConfig(context=18, block_size=4)
    model, ids = DadlmForMaskedLM.of(tiny("bd3lm")), torch.tensor(ROWS)
    with pytest.raises(ConfigError, match="one length"):
        model(ids, attention_mask=torch.tensor([[0] + [1] * 5] * 3))
    with pytest.raises(ConfigError, match="num_beams"):
        model.generate(ids, num_beams=4)


def test_in_bfloat16(tmp_path: Path) -> None:
    DadlmForMaskedLM.of(tiny("dadlm")).save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.bfloat16}
    assert loaded.generate(torch.tensor(ROWS), max_new_tokens=4, seed=0).shape == (3, 10)


REMOTE = """
import json, sys
import torch
from transformers import AutoConfig, AutoModel, AutoTokenizer
folder, again = sys.argv[1:]
assert not any(name.split(".")[0] == "dadlm" for name in sys.modules)
config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
model = AutoModel.from_pretrained(folder, trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained(folder)
ids = tokenizer("w1 w2 w3", return_tensors="pt").input_ids
model.save_pretrained(again)
rows = model.generate(ids, seed=3, max_new_tokens=9).tolist()
print(json.dumps([config.hidden_size, tokenizer.mask_token_id, rows]))
"""


def test_remote_code_in_a_process_that_knows_only_transformers(tmp_path: Path) -> None:
    """Offline, through AutoModel and AutoTokenizer; and what it saves can be loaded in the same way again."""
    model = tiny("dadlm", tokenizer=published.tokenizer())
    dadlm.save(model, tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "folder", to="transformers")
    source = str(Path(dadlm.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": source, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    words = [sys.executable, "-W", "error", "-c", REMOTE, str(tmp_path / "folder"), str(tmp_path / "again")]
    done = subprocess.run(words, capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 0, done.stderr
    width, mask, rows = json.loads(done.stdout)
    assert (width, mask) == (model.config.width, model.config.mask_id)
    assert rows == completed(model, [model.tokenizer.encode("w1 w2 w3")], seed=3, max_new_tokens=9)
    code = (tmp_path / "again" / "modeling_dadlm.py").read_text()
    assert code == (tmp_path / "folder" / "modeling_dadlm.py").read_text() and len(code.splitlines()) < 10
    files = {file.name for file in (tmp_path / "again").iterdir()}
    assert files == {"config.json", "generation_config.json", "model.safetensors", "modeling_dadlm.py"}


def test_a_converted_folder_serves_both(tmp_path: Path) -> None:
    model = tiny("bd3lm", tokenizer=published.tokenizer())
    dadlm.save(model, tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "folder", to="transformers")
    assert same_weights(AutoModel.from_pretrained(tmp_path / "folder"), model)
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path / "folder"), model.tokenizer
    assert theirs("w3 w1 w27").input_ids == ours.encode("w3 w1 w27") == [3, 1, 27]
    assert theirs("w3<|mask|>w1").input_ids == [3, ours.mask_id, 1]
    assert (theirs.eos_token_id, theirs.pad_token_id, theirs.mask_token_id) == (28, 28, 29)
    convert(tmp_path / "ours", tmp_path / "folder", to="transformers")  # the same place again
    assert dadlm.load(tmp_path / "folder").tokenizer == ours


# What forward says


def noise_for(model: Model, ids: torch.Tensor) -> Noise:
    masked = torch.rand(ids.shape, generator=torch.Generator().manual_seed(1)) < 0.6
    masked[:, 0] = False
    time = torch.ones(len(ids), ids.shape[1] // min(model.config.block, ids.shape[1]))
    return Noise(masked, time, time)


@pytest.mark.parametrize(
    ("family", "edge"),
    [("mdlm", "none"), ("bd3lm", "none"), ("dadlm", "none"), ("bd3lm", "mlp"), ("dadlm", "bilinear")],
)
def test_forward_gives_the_per_token_bound(family: str, edge: str) -> None:
    """Training's own bound, which never makes a whole vocabulary, is the sum of what forward says."""
    model = tiny(family, context=16, edge=edge)
    ids = torch.tensor([prompt_of(16, seed) for seed in range(2)])
    noise = noise_for(model, ids)
    noisy, labels = ids.masked_fill(noise.masked, 29), ids.masked_fill(~noise.masked, -100)
    out = DadlmForMaskedLM.of(model)(noisy, clean_ids=ids, labels=labels)
    assert out.logits.shape == (2, 16, 30) and bool((out.logits[..., 29] == -torch.inf).all())
    torch.testing.assert_close(out.logits.exp().sum(-1), torch.ones(2, 16))
    expected = losses(model, ids, noise).bound.sum() / noise.masked.sum()
    torch.testing.assert_close(out.loss, expected)


def test_forward_of_an_autoregressive_model_says_the_next_token() -> None:
    model = tiny("ar")
    ids = torch.tensor(ROWS)
    out = DadlmForMaskedLM.of(model)(ids, labels=ids)
    torch.testing.assert_close(out.loss, losses(model, ids, None).bound.mean())


def test_forward_completes_the_last_block_with_masks() -> None:
    """What a row of six tokens says of its next two is what decoding sees: a block that is not known yet."""
    model = tiny("dadlm")
    ids = torch.tensor([[*ROWS[0], 29]])
    longer = torch.tensor([[*ROWS[0], 29, 29]])
    whole = DadlmForMaskedLM.of(model)
    torch.testing.assert_close(whole(ids).logits, whole(longer).logits[:, :7])


def test_gradients_flow_and_are_finite() -> None:
    model = tiny("dadlm")
    ids = torch.tensor([[*ROWS[0], 29, 29]])
    DadlmForMaskedLM.of(model)(ids, labels=torch.tensor([[-100] * 6 + [3, 4]])).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and bool(parameter.grad.isfinite().all()), name


# Padding and options


def test_padding_on_either_side_changes_nothing() -> None:
    model = tiny("bd3lm")
    short, options = ROWS[0][:3], {"seed": [7, 8], "max_new_tokens": 5}
    expected = dadlm.generate(model, [short, ROWS[1]], **options).tokens
    for row, real in (([28] * 3 + short, [0] * 3 + [1] * 3), (short + [28] * 3, [1] * 3 + [0] * 3)):
        ids, attention = torch.tensor([row, ROWS[1]]), torch.tensor([real, [1] * 6])
        out = DadlmForMaskedLM.of(model).generate(ids, attention_mask=attention, **options)
        assert torch.equal(out[:, :6], ids)
        assert cut(out[:, 6:], expected) == expected


def test_without_transformers_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "dadlm.interop.transformers")
    with pytest.raises(ConfigError, match=r"pip install 'dadlm\[transformers\]'"):
        import dadlm.interop.transformers  # noqa: F401


def test_a_full_disk_is_told_in_a_sentence(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The writer of the weights has errors of its own."""
    dadlm.save(tiny("dadlm"), tmp_path / "model")
    request.getfixturevalue("full_disk")
    with pytest.raises(CheckpointError, match=r"could not write .*out: .*nothing was replaced"):
        convert(tmp_path / "model", tmp_path / "out", "transformers")
    assert [file.name for file in tmp_path.iterdir()] == ["model"]
