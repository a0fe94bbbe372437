"""What a result says of its model, and that the hash tells models apart."""

import pytest
import torch
from tests.model.tiny import tiny_model

from dadlm import __version__
from dadlm.evaluate.subject import describe, fingerprint
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
