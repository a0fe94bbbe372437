"""Published BD3LM and MDLM folders: what they mean here, that they go back bit for bit, what is refused."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.commands import Cli, refused
from tests.decode.tiny import tiny
from tests.interop import published
from tests.interop.reference import Reference

import dadlm
from dadlm.errors import CheckpointError, ConfigError
from dadlm.interop.convert import convert
from dadlm.interop.likelihood import position_logp
from dadlm.interop.published_form import published_name
from dadlm.model.checkpoint import weights
from dadlm.noise import Noise
from dadlm.objective import losses
from dadlm.recipes import recipe
from dadlm.tokens import word_level

FAMILIES = ("bd3lm", "mdlm")


def brought_in(tmp_path: Path, family: str = "bd3lm", **how) -> tuple[dadlm.Model, Reference]:
    """A published folder through the command's function, and the reference on the very same tensors."""
    tensors = published.write(tmp_path / "theirs", family, **how)
    convert(tmp_path / "theirs", tmp_path / "ours")
    block = published.BLOCK if family == "bd3lm" else published.LENGTH
    return dadlm.load(tmp_path / "ours"), Reference(tensors, heads=published.HEADS, block=block)


def text(seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, published.VOCABULARY - 1, (published.LENGTH,), generator=generator)


def mask(seed: int = 0) -> torch.Tensor:
    masked = torch.rand(published.LENGTH, generator=torch.Generator().manual_seed(seed)) < 0.5
    masked[0] = False
    return masked


# It is the same model


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_the_reference(family: str, half: bool, tmp_path: Path) -> None:
    model, reference = brought_in(tmp_path, family, half=half)
    for seed in range(3):
        ids, masked = text(seed), mask(seed)
        noisy = ids.masked_fill(masked, model.config.mask_id)
        ours = position_logp(model, noisy[None], ids[None])[0]
        theirs = reference.logp(noisy, ids)
        at = (masked[:, None] & (torch.arange(published.VOCABULARY) != model.config.mask_id)).nonzero(
            as_tuple=True
        )
        assert len(at[0]) > 50
        torch.testing.assert_close(ours[at].double(), theirs[at], rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_is_that_of_the_reference(family: str, tmp_path: Path) -> None:
    model, reference = brought_in(tmp_path, family)
    ids, masked = torch.stack([text(1), text(2)]), torch.stack([mask(1), mask(2)])
    blocks = published.LENGTH // reference.block
    time = 0.2 + 0.7 * torch.rand(2, blocks, generator=torch.Generator().manual_seed(3))
    ours = losses(model, ids, Noise(masked, time, 1 / time))
    theirs = torch.stack([reference.loss(*row) for row in zip(ids, masked, time, strict=True)])
    torch.testing.assert_close(ours.bound.double(), theirs, rtol=0, atol=1e-4)
    assert theirs.abs().sum() > 10


@pytest.mark.parametrize(("family", "top_p"), [("bd3lm", 1.0), ("bd3lm", 0.7), ("mdlm", 1.0)])
def test_first_hitting_samples_are_those_of_the_reference(family: str, top_p: float, tmp_path: Path) -> None:
    """Rows side by side with cache and packing here, one by one and without anything there."""
    model, reference = brought_in(tmp_path, family)
    # The window of an mdlm is one block: as long as prompt and completion, here the whole context.
    prompts = [text(seed).tolist()[: 7 if family == "mdlm" else 1 + 2 * seed] for seed in range(4)]
    settings = {"max_new_tokens": 9, "sampler": "first-hitting", "top_p": top_p}
    ours = dadlm.generate(model, prompts, seed=5, **settings).tokens
    eot = model.config.eot_id
    theirs = [reference.sample(prompt, 9, 5 + row, top_p, eot) for row, prompt in enumerate(prompts)]
    assert ours == theirs
    assert len({tuple(row) for row in ours}) == 4


def test_the_papers_size_is_the_published_one() -> None:
    """Our weights rename to the published names, and at the published size they are as many."""
    with torch.device("meta"):
        own = weights(dadlm.Model(recipe("paper-bd3lm").model))
    assert sum(tensor.numel() for tensor in own.values()) == 169_627_218
    names = {name.replace("blocks.1.", "blocks.0.") for name in published.weights()} - set(_CONSTANTS)
    assert {re.sub(r"blocks\.\d+", "blocks.0", published_name(name)) for name in own} == names


_CONSTANTS = ("backbone.rotary_emb.inv_freq", "sampling_eps_min", "sampling_eps_max")


# And it goes back


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_there_and_back_is_the_identity_bit_for_bit(family: str, half: bool, tmp_path: Path) -> None:
    published.write(tmp_path / "theirs", family, half=half)
    convert(tmp_path / "theirs", tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "back", to=family)
    assert published.content(tmp_path / "back") == published.content(tmp_path / "theirs")
    with pytest.raises(ConfigError, match="another folder"):
        convert(tmp_path / "theirs", tmp_path / "x" / ".." / "theirs")
    for number, how in enumerate(({"parts": 3}, {"pickled": True}, {"pickled": True, "parts": 2})):
        published.write(tmp_path / f"theirs-{number}", family, half=half, **how)
        convert(tmp_path / f"theirs-{number}", tmp_path / f"ours-{number}")
        assert published.content(tmp_path / f"ours-{number}") == published.content(tmp_path / "ours")


def test_a_published_folder_is_replaced_by_its_own_form_alone(tmp_path: Path) -> None:
    for name in ("theirs", "there"):
        published.write(tmp_path / name)
    convert(tmp_path / "theirs", tmp_path / "ours")
    with pytest.raises(CheckpointError, match="no model folder of ours"):
        convert(tmp_path / "ours", tmp_path / "there")
    for _ in range(2):
        convert(tmp_path / "ours", tmp_path / "there", to="bd3lm")
    assert published.content(tmp_path / "there") == published.content(tmp_path / "theirs")


def test_ours_out_and_in_again_is_the_identity(tmp_path: Path) -> None:
    """A model that we trained, whose zero-initialised parts are not zero any more."""
    model, _ = brought_in(tmp_path)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.01
    dadlm.save(model, tmp_path / "trained")
    convert(tmp_path / "trained", tmp_path / "out", to="bd3lm")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["block_size"] == published.BLOCK
    assert load_file(tmp_path / "out" / "model.safetensors").keys() == published.weights().keys()
    convert(tmp_path / "out", tmp_path / "again")
    again = dadlm.load(tmp_path / "again")
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name


def test_other_families_have_no_published_form(tmp_path: Path) -> None:
    for name, to in (("ar", "bd3lm"), ("bd3lm", "bd3lm"), ("bd3lm", "mdlm")):
        with pytest.raises(ConfigError, match="form"):
            convert(name, tmp_path / "out", to=to)
    shape = {"architecture": "bd3lm", "tie_embedding": False, "causal_context": True}
    dadlm.save(
        tiny("bd3lm", tokenizer=word_level([f"w{i}" for i in range(28)]), **shape), tmp_path / "causal"
    )
    with pytest.raises(ConfigError, match="token by token"):
        convert(tmp_path / "causal", tmp_path / "out", to="bd3lm")
    assert not (tmp_path / "out").exists()


def test_weights_can_be_used_as_another_family(tmp_path: Path) -> None:
    """MDLM is where BD3LM starts from: the weights stay, the blocks change, and it is no published model."""
    tensors = published.write(tmp_path / "theirs", "mdlm")
    model = convert(tmp_path / "theirs", tmp_path / "ours", family="bd3lm", block_size=8)
    assert (model.config.family, model.config.block_size) == ("bd3lm", 8)
    assert torch.equal(model.head.linear.bias, tensors["backbone.output_layer.linear.bias"])
    convert(tmp_path / "ours", tmp_path / "back", to="bd3lm")
    assert json.loads((tmp_path / "back" / "config.json").read_text())["block_size"] == 8
    published.write(tmp_path / "single", cross_attn=False, block_size=published.LENGTH)
    assert convert(tmp_path / "single", tmp_path / "one").config.block_size == published.LENGTH


# What is refused


def test_every_difference_of_the_weights_is_listed(tmp_path: Path) -> None:
    tensors = published.weights()
    del tensors["backbone.blocks.1.attn_out.weight"]
    tensors |= {"backbone.stranger": torch.zeros(2), "backbone.blocks.0.norm1.weight": torch.ones(7)}
    tensors["backbone.blocks.0.norm2.weight"] = torch.ones(published.WIDTH, dtype=torch.float16)
    tensors["backbone.output_layer.linear.bias"][3] = torch.nan
    tensors["backbone.rotary_emb.inv_freq"] = tensors["backbone.rotary_emb.inv_freq"] * 1.5
    published.write(tmp_path / "theirs", tensors=tensors)
    lines = published.refusal(tmp_path / "theirs").splitlines()[1:]
    assert [line.strip() for line in lines] == [
        "missing: backbone.blocks.1.attn_out.weight (32, 32)",
        "shape: backbone.blocks.0.norm1.weight is (7,), expected (32,)",
        "type: backbone.blocks.0.norm2.weight is torch.float16, expected float32 or bfloat16",
        "unknown: backbone.stranger (2,)",
        "values: backbone.output_layer.linear.bias has some that are not finite",
        "values: backbone.rotary_emb.inv_freq is not that of rotary positions with base 10000",
    ]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"time_conditioning": True}, "time_conditioning is True, expected False"),
        ({"causal": True}, "causal is True"),
        ({"cross_attn": False}, "cross_attn is False"),
        ({"adaln": False}, "adaln is False"),
        ({"cond_dim": 64}, "cond_dim is 64"),
        ({"model_type": "llama"}, "--from-causal"),
        ({"model_type": ["bd3lm"]}, "model_type"),
        ({"hidden_dim": 48}, "expected (30, 48)"),
        ({"hidden_dim": "wide"}, "not a valid configuration"),
        ({"vocab_size": None}, "not a valid configuration"),
        ({"vocab_size": 10**12}, "vocab_size is 1000000000000, expected at most"),
        ({"n_blocks": 10**12}, "n_blocks is 1000000000000, expected at most"),
        ({"n_heads": 5}, "not a valid configuration"),
        ({"n_blocks": 1024, "hidden_dim": 65536}, "missing: backbone.blocks.1023."),
        ({"block_size": 5}, "not divisible"),
        ({"n_heads": ...}, "n_heads is missing"),
    ],
    ids=str,
)
def test_configurations_that_do_not_fit_are_refused(changes: dict, says: str, tmp_path: Path) -> None:
    published.write(tmp_path / "theirs", **{name: value for name, value in changes.items() if value != ...})
    if ... in changes.values():
        left = {name: value for name, value in published.config().items() if name not in changes}
        (tmp_path / "theirs" / "config.json").write_text(json.dumps(left))
    assert says in published.refusal(tmp_path / "theirs")


def test_notes_of_another_model_are_refused(tmp_path: Path) -> None:
    brought_in(tmp_path)
    notes = tmp_path / "ours" / "published.json"
    good = json.loads(notes.read_text())
    for change in (
        {"bfloat16": ["nothing"]},
        {"values": {"../x": 1}},
        {"values": {"sampling_eps_min": "x"}},
        {"config": published.config(n_heads=2)},
        {"values": 3},
    ):
        notes.write_text(json.dumps(good | change))
        assert "remove it" in published.refusal(tmp_path / "ours", to="bd3lm")


# The command


def test_the_command(cli: Cli, tmp_path: Path) -> None:
    published.write(tmp_path / "theirs")
    told = cli("convert", "theirs", "--out", "ours", "--json").json
    count = sum(t.numel() for n, t in published.weights().items() if n not in _CONSTANTS)
    assert (told["family"], told["block"], told["parameters"]) == ("bd3lm", published.BLOCK, count)
    shown = cli("convert", "ours", "--out", "back", "--to", "bd3lm")
    assert shown.code == 0 and "back" in shown.out
    assert published.content(tmp_path / "back") == published.content(tmp_path / "theirs")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["theirs"], "--out"),
        (["theirs", "--push", "no-owner"], "OWNER/NAME"),
        (["theirs", "--push", "a/b", "--to", "bd3lm"], "convert first"),
        (["theirs", "--out", "x", "--private"], "--push"),
        (["theirs", "--out", "x", "--lora", "4"], "--from-causal"),
        (["theirs", "--out", "x", "--family", "ar"], "unknown family"),
        (["theirs", "--out", "x", "--family", "mdlm", "--block-size", "4"], "leave the block size out"),
        (["ours", "--out", "x", "--block-size", "4"], "trained with"),
        (["nowhere", "--out", "x"], "nowhere"),
    ],
    ids=str,
)
def test_bad_words(words: list[str], says: str, cli: Cli, tmp_path: Path) -> None:
    brought_in(tmp_path)
    told = cli("convert", *words)
    refused(told, says)
    assert told.out == "" and not (tmp_path / "x").exists()
