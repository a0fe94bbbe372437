"""What a result says of its model, and that the hash tells models apart."""

import hashlib
import json
from dataclasses import asdict

import pytest
import torch
from tests.model.tiny import tiny_model

from dadlm import __version__
from dadlm.decode import DecodeSettings
from dadlm.evaluate.subject import describe, described, fingerprint
from dadlm.model import load, save
from dadlm.model.checkpoint import set_weights, weights
from dadlm.tokens import word_level

IDENTITY = ("weights", "config", "tokenizer", "device", "dtype", "version")


def test_each_family_is_described_by_what_it_has():
    assert describe(tiny_model("ar")).keys() == {"name", "family", "context", "parameters", *IDENTITY}
    block = describe(tiny_model("bd3lm"), "mine")
    assert (block["name"], block["family"], block["block_size"], block["context"]) == ("mine", "bd3lm", 4, 16)
    graph = describe(tiny_model("dadlm", expand_at=1))
    assert (graph["name"], graph["candidates"], graph["expand_at"]) == ("DA-DLM", 3, 1)
    assert graph["parameters"] > block["parameters"]


@pytest.mark.parametrize("family", ["ar", "mdlm", "bd3lm", "dadlm"])
def test_any_changed_weight_changes_the_hash(family, tmp_path):
    model = tiny_model(family)
    before = fingerprint(model)
    assert fingerprint(tiny_model(family)) == before
    save(model, tmp_path / "model")
    assert fingerprint(load(tmp_path / "model")) == before
    for parameter in model.parameters():
        kept = parameter.detach().clone()
        with torch.no_grad():
            parameter.view(-1)[-1] += 1e-6 + 1e-6 * kept.view(-1)[-1].abs()
        assert fingerprint(model) != before
        with torch.no_grad():
            parameter.copy_(kept)
    assert fingerprint(model) == before


def test_the_same_weights_in_another_shape_are_another_model():
    model, other = tiny_model(heads=2), tiny_model(heads=1)
    set_weights(other, weights(model), "a test")
    one, two = describe(model), describe(other)
    assert one["weights"] == two["weights"] and one["parameters"] == two["parameters"]
    assert {name for name in one if one[name] != two[name]} == {"config"}


def test_tokenizer_type_and_version_are_told():
    model = tiny_model()
    assert describe(model)["tokenizer"] is None
    for tokenizer in (word_level([f"{way}{n}" for n in range(28)]) for way in "ab"):
        model.tokenizer = tokenizer
        assert describe(model)["tokenizer"] == tokenizer.fingerprint[:16]
    facts = describe(model)
    assert (facts["device"], facts["dtype"], facts["version"]) == ("cpu", "float32", __version__)
    assert describe(model.to(torch.bfloat16))["dtype"] == "bfloat16"


def test_what_came_later_and_changes_nothing_is_not_part_of_a_subject():
    """An evaluation that was begun before there were such settings can go on."""
    later = ("mode", "bound", "shortlist", "top_k", "tree", "drawn")
    plain = described(DecodeSettings(max_new_tokens=4))
    assert not plain.keys() & {*later} and plain["max_new_tokens"] == 4
    asked = described(
        DecodeSettings(
            mode="lossless", sampler="entropy", bound=0.1, shortlist=7, top_k=5, tree=9, drawn=True
        )
    )
    assert [asked[name] for name in later] == ["lossless", 0.1, 7, 5, 9, True]

    model = tiny_model()
    shape = asdict(model.config)
    for name in ("edge", "edge_rank", "edge_second_rank", "causal_context", "lora_gated"):
        del shape[name]
    as_before = hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:16]
    assert describe(model)["config"] == as_before
    others = [tiny_model(causal_context=True), tiny_model(edge="mlp"), tiny_model(edge="mlp", edge_rank=2)]
    assert len({describe(one)["config"] for one in (model, *others)}) == 4
