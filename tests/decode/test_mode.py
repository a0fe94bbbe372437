"""One model that is both: mode ar of a model with a causal context, beside an AR model with its weights."""

from dataclasses import replace

import pytest
import torch
from tests.decode.tiny import prompt_of, silence_eot, tiny

from dadlm import DecodeSettings, Model, generate, stream
from dadlm.decode import fill_gaps, release_engine
from dadlm.decode.engine import Engine
from dadlm.decode.request import Request
from dadlm.errors import ConfigError
from dadlm.model import Context, in_mode
from dadlm.model.checkpoint import set_weights, weights

KINDS = {
    "bd3lm": {"family": "bd3lm"},
    "dadlm": {"family": "dadlm", "candidate_offset": 0.5},
    "late, gated": {"family": "dadlm", "expand_at": 1, "transition": "gated"},
    "edges": {"family": "dadlm", "edge": "bilinear", "edge_rank": 5},
    "second": {"family": "dadlm", "edge": "bilinear", "edge_rank": 5, "edge_second_rank": 4},
    "published": {"family": "bd3lm", "architecture": "bd3lm", "tie_embedding": False},
    "llama": {"family": "dadlm", "architecture": "llama", "kv_heads": 1},
}
SETTINGS = {
    "drawn": {},
    "tempered": {"temperature": 0.7, "top_p": 0.6},
    "greedy": {"path": "viterbi"},
    "cold": {"temperature": 0.0},
    "other samplers": {"sampler": "confidence", "threshold": 0.3, "infill": (2, 0.2)},
    "position": {"nucleus": "position"},
}
PROMPTS = [prompt_of(length, seed=length) for length in (1, 3, 4, 9, 30)] + [[]]
every_kind = pytest.mark.parametrize("kind", KINDS)
every_way = pytest.mark.parametrize(
    ("kind", "settings"),
    [(kind, "drawn") for kind in KINDS]
    + [("edges", settings) for settings in SETTINGS if settings != "drawn"],
)


def causal(kind: str, **changes) -> Model:
    return tiny(**KINDS[kind], causal_context=True, **changes)


def ar_of(model: Model) -> Model:
    plain = {"edge": "none", "edge_second_rank": 0, "causal_context": False}
    twin = Model(replace(model.config, family="ar", **plain)).eval()
    own = weights(twin).keys()
    set_weights(twin, {name: tensor for name, tensor in weights(model).items() if name in own}, "the test")
    return twin


@every_way
def test_texts_are_those_of_an_ar_model_with_the_same_weights(kind: str, settings: str):
    """Token by token, cached and not, all side by side and each alone."""
    model, how = causal(kind), {"max_new_tokens": 14, "seed": 5, **SETTINGS[settings]}
    truth = generate(ar_of(model), PROMPTS, **how)
    found = generate(model, PROMPTS, mode="ar", **how)
    assert found == truth and len({tuple(text) for text in truth.tokens}) > 1
    assert generate(model, PROMPTS, mode="ar", cache=False, **how).tokens == truth.tokens
    assert generate(model, PROMPTS, mode="ar", batch_size=2, **how) == truth
    for i, prompt in enumerate(PROMPTS):
        alone = generate(model, [prompt], mode="ar", **how | {"seed": 5 + i})
        assert alone.tokens == [truth.tokens[i]] and alone.forward_passes == [truth.forward_passes[i]]


@every_kind
def test_diffusion_is_the_same_with_and_without_a_cache(kind: str):
    """Blocks that are committed, and prompts that end inside a block, are read causally into the cache."""
    model, how = causal(kind), {"max_new_tokens": 18, "seed": 5, "sampler": "random", "steps": 2}
    truth = generate(model, PROMPTS, cache=False, **how)
    assert generate(model, PROMPTS, **how).tokens == truth.tokens
    for i, prompt in enumerate(PROMPTS):
        assert generate(model, [prompt], **how | {"seed": 5 + i}).tokens == [truth.tokens[i]]


def test_committed_blocks_leave_the_keys_of_an_ar_model():
    model = silence_eot(causal("bd3lm"))
    [ids] = generate(model, prompt_of(8), max_new_tokens=16, seed=1).tokens
    engine = Engine(model, graphs=False)
    request = Request(ids=tuple(prompt_of(8)), settings=DecodeSettings(max_new_tokens=16), seed=1)
    row = engine.add(request)
    while row.first < 16:
        engine.step()
    engine.step()  # begins the next block, and so writes the last one
    cache, text = engine.slots.cache, torch.tensor([[*prompt_of(8), *ids][:16]])
    assert cache is not None
    for layer, (k, v) in enumerate(_keys(ar_of(model), text)):
        torch.testing.assert_close(cache.k[layer, :1, :16], k, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(cache.v[layer, :1, :16], v, atol=1e-5, rtol=1e-5)


def _keys(model: Model, text: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    context = Context()
    with torch.no_grad():
        model.read(text, context)
    return [context[layer] for layer in range(model.config.layers)]


def test_both_modes_take_turns():
    """The two engines of a model share what is kept of its weights."""
    model = causal("published")
    diffusion, ar = (generate(model, PROMPTS, seed=3, mode=mode) for mode in ("diffusion", "ar"))
    assert diffusion.tokens != ar.tokens
    running = stream(model, PROMPTS[2], seed=3 + 2)
    next(running)
    assert model.backbone.keepers == 1
    assert generate(model, PROMPTS, seed=3, mode="ar") == ar and model.backbone.modulation.kept is not None
    assert list(running)
    assert model.backbone.keepers == 0 and model.backbone.modulation.kept is None
    assert generate(model, PROMPTS, seed=3) == diffusion
    release_engine(model)
    assert not model.engines and not in_mode(model, "ar").engines


def test_the_steps_of_mode_ar_are_single_tokens():
    events = list(stream(causal("dadlm"), prompt_of(5), mode="ar", max_new_tokens=6, seed=1))
    assert all(len(event.ids) == 1 and len(event.top_tokens[0]) == 1 for event in events)


def test_dropout_is_off_in_mode_ar_too():
    model = causal("dadlm", dropout=0.5)
    truth = generate(model, PROMPTS, seed=3, mode="ar")
    assert generate(model.train(), PROMPTS, seed=3, mode="ar") == truth
    assert model.training and model.backbone.layers[0].training


def test_ar_models_take_both_modes():
    model = tiny("ar")
    assert generate(model, PROMPTS, seed=3, mode="ar") == generate(model, PROMPTS, seed=3)


@pytest.mark.parametrize("family", ["mdlm", "bd3lm", "dadlm"])
def test_other_models_refuse_it_with_what_to_do(family: str):
    model = tiny(family)
    for call in (generate, stream):
        with pytest.raises(ConfigError, match=r"mode ar .*--model\.causal-context --train\.ar-weight 1"):
            call(model, prompt_of(3), mode="ar")


def test_what_mode_ar_cannot_do_is_refused():
    model = causal("bd3lm")
    with pytest.raises(ConfigError, match="cannot fill gaps"):
        fill_gaps(model, prompt_of(9), [(3, 2)], mode="ar")
    with pytest.raises(ConfigError, match="unknown mode 'left'; choose one of diffusion, ar"):
        generate(model, prompt_of(3), mode="left")
    with pytest.raises(ConfigError, match="in_mode"):
        Engine(model).add(Request(ids=(1,), settings=DecodeSettings(mode="ar"), seed=0))
