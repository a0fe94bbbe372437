"""Every recipe is complete: it builds its model, and its stages fit each other."""

from dataclasses import asdict, replace

import pytest
import torch

from dadlm.errors import ConfigError
from dadlm.model import Model
from dadlm.model.checkpoint import count_parameters, weights
from dadlm.recipes import RECIPES, recipe
from dadlm.train import RunConfig

SCALES = ("tour", "small", "lab", "paper", "lm1b")
LONGER = {"paper-bd3lm-150k": 150_000, "paper-bd3lm-300k": 300_000, "lm1b-bd3lm-150k": 150_000}
FAMILIES = ("ar", "mdlm", "bd3lm", "dadlm")


def shapes(run: RunConfig) -> dict[str, torch.Size]:
    with torch.device("meta"):
        return {name: tensor.shape for name, tensor in weights(Model(run.model)).items()}


def test_there_is_one_recipe_for_every_scale_and_family() -> None:
    assert sorted(RECIPES) == sorted(
        [f"{scale}-{family}" for scale in SCALES for family in FAMILIES] + [*LONGER]
    )


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
    shape = ("vocab_size", "eot_id", "context", "block_size", "layers", "width", "heads")
    for field in shape:
        assert len({asdict(recipe(f"{scale}-{family}").model)[field] for family in FAMILIES}) == 1, field
    kinds = [recipe(f"{scale}-{family}").model.architecture for family in FAMILIES]
    assert kinds == (["bd3lm-ar", *["bd3lm"] * 3] if scale in ("paper", "lm1b") else ["lean"] * 4)


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


def test_the_ar_model_of_the_paper_has_no_adaln() -> None:
    """The published network without its conditioning: 256 → 128 → 128, 6d of each layer, 2d at the end."""
    d, c, layers = 768, 128, 12
    without = (256 * c + c) + (c * c + c) + (layers * 6 + 2) * d * (c + 1)
    assert count_parameters(recipe("paper-ar").model)["total"] == 169_627_218 - without
    assert not any("modulation" in name or "condition" in name for name in shapes(recipe("paper-ar")))
    with pytest.raises(ConfigError, match="choose bd3lm for mdlm"):
        replace(recipe("paper-ar").model, family="mdlm")


def test_the_baselines_of_the_paper() -> None:
    for name, steps in LONGER.items():
        run, stage = recipe(name), recipe(name.rpartition("-")[0])
        assert run.train.steps == steps and run.out == f"runs/{name}"
        assert replace(run, train=stage.train, out=stage.out) == stage
    for family in FAMILIES:
        ours, theirs = recipe(f"lm1b-{family}"), recipe(f"paper-{family}")
        assert ours.model.context == 128 and replace(ours.model, context=1024) == theirs.model
        assert ours.train == replace(theirs.train, accumulate=2) and ours.noise == theirs.noise


def test_the_clipped_schedule_is_used_where_its_authors_use_it() -> None:
    clipped = {name for name in RECIPES if recipe(name).noise.clip_search}
    assert clipped == {name for name in RECIPES if "-bd3lm" in name and name.startswith(("paper", "lm1b"))}


def test_even_numbers_of_masks_are_for_blocks_where_no_paper_says_otherwise() -> None:
    even = {name for name in RECIPES if recipe(name).noise.even}
    assert even == {"small-bd3lm", "small-dadlm", "lab-bd3lm", "lab-dadlm"}


@pytest.mark.parametrize(
    "name", ["", "small", "small-", "-ar", "small-gpt", "huge-ar", "small-ar-2", "Small-ar", "lab-bd3lm-150k"]
)
def test_an_unknown_recipe_is_refused_with_the_list(name: str) -> None:
    with pytest.raises(ConfigError, match="unknown recipe") as caught:
        recipe(name)
    assert all(known in str(caught.value) for known in RECIPES)


@pytest.mark.parametrize(
    ("name", "meant"), [("smal", "small"), ("small-dlm", "small-mdlm"), ("Lab-ar", "lab-ar")]
)
def test_the_nearest_recipe_is_named(name: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean {meant}\\?"):
        recipe(name)
