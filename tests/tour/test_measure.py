"""The tour's two measures against slow twins: divergence by enumeration of paths, validity by hand."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from dadlm.dag import naive
from dadlm.decode import Generated
from dadlm.model import Context, Model
from dadlm.recipes import recipe
from dadlm.tour import measure
from dadlm.tour.language import LENGTH, SUCCESSORS, Language, make_language
from dadlm.tour.measure import divergence, validity
from dadlm.train.trainer import fresh_model


@pytest.fixture(scope="module")
def language() -> Language:
    return make_language(4)


def untrained(family: str, language: Language, **changes: Any) -> Model:
    """Weights large enough that neither candidates nor transitions are nearly alike."""
    config = replace(recipe(f"tour-{family}").model, **changes)
    model = fresh_model(config, language.tokenizer, 0).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    return model


@torch.no_grad()
def slow_divergence(model: Model, language: Language, walks: torch.Tensor) -> float:
    """One block at a time, its prefix read alone, its paths enumerated."""
    total, count = 0.0, 0
    for walk in walks.tolist():
        for block in range(1, len(walk)):
            context = Context()
            model.read(language.phrases[walk[:block]].view(1, -1), context)
            hidden = torch.full((1, 1, LENGTH), model.config.mask_id)
            masked = torch.ones(1, 1, LENGTH, dtype=torch.bool)
            denoised = model.denoise(hidden, masked, torch.tensor([[block * LENGTH]]), context)
            transition = model.transition_logp(denoised)
            for after in language.successors[walk[block - 1]].tolist():
                emission = model.emission_logp(denoised, language.phrases[after].view(1, 1, -1))
                logp = naive.forward_logp(emission.double(), transition.double())
                total += (math.log(1 / SUCCESSORS) - float(logp)) / SUCCESSORS
            count += 1
    return total / count


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("bd3lm", {}),
        ("dadlm", {"candidate_scale": 1.0}),
        ("dadlm", {"candidate_scale": 1.0, "transition": "gated", "candidates": 3, "expand_at": 1}),
    ],
)
def test_divergence_is_that_of_all_paths(family: str, changes: dict[str, Any], language: Language) -> None:
    model, walks = untrained(family, language, **changes), language.walks(5, 4, seed=9)
    fast = divergence(model, language, walks)
    assert fast == pytest.approx(slow_divergence(model, language, walks), abs=1e-4)
    assert fast > language.total_correlation  # nothing has been learnt yet


def test_divergence_of_a_perfect_factorised_predictor_is_the_bound(
    language: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that knows each position's words and nothing of how they belong together."""
    model, walks = untrained("bd3lm", language), language.walks(6, 5, seed=1)

    def known(self: Model, denoised: Any, target: torch.Tensor) -> torch.Tensor:
        return torch.full((*target.shape, 1), -math.log(SUCCESSORS))

    monkeypatch.setattr(Model, "emission_logp", known)
    assert divergence(model, language, walks) == pytest.approx(language.total_correlation, abs=1e-5)


def test_validity_counts_true_successors(language: Language, monkeypatch: pytest.MonkeyPatch) -> None:
    walks = language.walks(5, 4, seed=2)
    right = [language.phrases[language.successors[walk[-1], 1]].tolist() for walk in walks]
    mixed = [*right[2][:3], int(language.phrases[language.successors[walks[2, -1], 0], 3])]
    tokens = [right[0], right[1], mixed, right[3][:2], right[4]]  # one mixed up, one that ended early
    asked: dict[str, Any] = {}

    def generate(model: Any, prompts: Any, **options: Any) -> Generated:
        asked.update(options, prompts=prompts)
        return Generated([""] * 5, tokens, [2, 2, 2, 1, 2], [0] * 5, [0] * 5)

    monkeypatch.setattr(measure, "generate", generate)
    result = validity(untrained("bd3lm", language), language, walks, 2, seed=7)
    assert (result.steps, result.valid) == (2, pytest.approx(3 / 5))
    assert result.tokens_per_forward == pytest.approx(18 / 9)
    assert asked["prompts"] == language.phrases[walks].flatten(1).tolist()
    how = asked["settings"]
    assert (how.steps, how.sampler, how.top_p, how.max_new_tokens) == (2, "random", 1.0, LENGTH)
    assert asked["seed"] == 7
