"""Every recipe is complete: it builds its model, and its stages fit each other."""

from dataclasses import asdict

import pytest
import torch

from dadlm.errors import ConfigError
from dadlm.model import Model
from dadlm.model.checkpoint import count_parameters, weights
from dadlm.recipes import RECIPES, recipe
from dadlm.train import RunConfig

SCALES = ("tour", "small", "lab", "paper")
FAMILIES = ("ar", "mdlm", "bd3lm", "dadlm")


def shapes(run: RunConfig) -> dict[str, torch.Size]:
    with torch.device("meta"):
        return {name: tensor.shape for name, tensor in weights(Model(run.model)).items()}


def test_there_is_one_recipe_for_every_scale_and_family() -> None:
    assert sorted(RECIPES) == sorted(f"{scale}-{family}" for scale in SCALES for family in FAMILIES)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_builds_its_model(name: str) -> None:
    run = recipe(name)
    assert run.model.family == name.split("-")[1]
    counts = count_parameters(run.model)
    with torch.device("meta"):
        assert counts["total"] == sum(p.numel() for p in Model(run.model).parameters())
    assert counts["total"] == sum(count for part, count in counts.items() if part != "total")
    assert min(counts.values()) > 0
    assert ("transition" in counts) == (run.model.family == "dadlm")
    assert run.out.endswith(name)  # two recipes never share a folder


@pytest.mark.parametrize("scale", SCALES)
def test_the_stages_of_a_scale_fit_each_other(scale: str) -> None:
    mdlm, bd3lm, dadlm = (shapes(recipe(f"{scale}-{family}")) for family in FAMILIES[1:])
    assert mdlm == bd3lm
    assert {name: dadlm[name] for name in bd3lm} == bd3lm
    new = dadlm.keys() - bd3lm.keys()
    assert new and all(name.startswith(("graph.", "head.offset")) for name in new)


@pytest.mark.parametrize("scale", SCALES)
def test_the_families_of_a_scale_differ_in_little(scale: str) -> None:
    """Models that are compared share network, vocabulary, context and block size."""
    shape = ("vocab_size", "eot_id", "context", "block_size", "layers", "width", "heads", "architecture")
    for field in shape:
        assert len({asdict(recipe(f"{scale}-{family}").model)[field] for family in FAMILIES}) == 1, field


def test_the_paper_is_the_papers_size() -> None:
    """NOTES §1 and §2: 169.6M parameters, transitions of 2.4M (gated) and 1.18M (single)."""
    assert count_parameters(recipe("paper-bd3lm").model)["total"] == 169_627_218
    gated = recipe("paper-dadlm")
    assert count_parameters(gated.model)["transition"] == pytest.approx(2.4e6, rel=0.01)
    single = type(gated.model)(**(asdict(gated.model) | {"transition": "single"}))
    assert count_parameters(single)["transition"] == pytest.approx(1.18e6, rel=0.001)
    assert (gated.model.context, gated.model.vocab_size, gated.train.batch_size) == (1024, 50_258, 512)
    steps = [recipe(f"paper-{family}").train.steps for family in ("mdlm", "bd3lm", "dadlm")]
    assert steps == [850_000, 90_000, 60_000]
    assert recipe("paper-ar", out="elsewhere").out == "elsewhere"


@pytest.mark.parametrize(
    "name", ["", "small", "small-", "-ar", "small-gpt", "huge-ar", "small-ar-2", "Small-ar"]
)
def test_an_unknown_recipe_is_refused_with_the_list(name: str) -> None:
    with pytest.raises(ConfigError, match="unknown recipe") as caught:
        recipe(name)
    assert all(known in str(caught.value) for known in RECIPES)
