"""One call for four families: twins token by token, company, seeds, any prompt, end-of-text, counts."""

import dataclasses

import pytest
import torch
from tests.decode.naive import Naive
from tests.decode.tiny import BLOCK_FAMILIES, FAMILIES, force_eot, prompt_of, silence_eot, tiny

from dadlm import DecodeSettings, Model, generate, stream
from dadlm.tokens.vocabularies import word_level

N = 4
SETTINGS = {
    "first-hitting": {},
    "first-hitting, infilling": {"infill": (2, 0.25)},
    "first-hitting, viterbi": {"path": "viterbi"},
    "random": {"sampler": "random", "top_p": 0.7},
    "random, infilling, viterbi": {"sampler": "random", "path": "viterbi", "infill": (3, 0.0)},
    "dilated": {"sampler": "dilated", "top_p": 0.7},
    "dilated, infilling": {"sampler": "dilated", "infill": (2, 0.5)},
    "confidence": {"sampler": "confidence", "threshold": 0.5},
    "confidence, tempered": {
        "sampler": "confidence",
        "threshold": 0.2,
        "transition_weight": 0.0,
        "temperature": 0.5,
        "top_p": 0.6,
    },
    "confidence, viterbi, infilling": {
        "sampler": "confidence",
        "path": "viterbi",
        "threshold": 0.4,
        "transition_weight": 0.3,
        "infill": (1, 0.0),
    },
    "confidence, lookahead, padded": {
        "sampler": "confidence",
        "path": "lookahead",
        "threshold": 0.4,
        "padded": True,
    },
    "entropy": {"sampler": "entropy", "bound": 3.0},
    "entropy, viterbi, infilling": {
        "sampler": "entropy",
        "bound": 1.5,
        "path": "viterbi",
        "infill": (1, 0.0),
    },
    "entropy, padded": {"sampler": "entropy", "bound": 2.0, "path": "lookahead", "padded": True},
    "first-hitting, padded": {"padded": True, "infill": (2, 0.25)},
    "random, lookahead, padded": {"sampler": "random", "path": "lookahead", "padded": True},
    "tempered": {"temperature": 0.5, "top_p": 1.0},
    "nucleus of the position": {"nucleus": "position", "top_p": 0.5, "temperature": 1.3},
    "random, nucleus of the position": {"sampler": "random", "nucleus": "position", "top_p": 0.7},
    "confidence, nucleus of the position": {
        "sampler": "confidence",
        "threshold": 0.2,
        "transition_weight": 0.0,
        "nucleus": "position",
        "temperature": 0.5,
        "infill": (1, 0.0),
    },
    "cold": {"sampler": "random", "temperature": 0.0},
}
every_settings = pytest.mark.parametrize("options", SETTINGS.values(), ids=SETTINGS)
every_family = pytest.mark.parametrize("family", FAMILIES)


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    return {family: silence_eot(tiny(family, block=N)) for family in FAMILIES}


def rows(count: int = 6) -> list[list[int]]:
    """Prompts of different lengths, every remainder modulo N and the empty one among them."""
    return [prompt_of(length, seed) for seed, length in enumerate([5, 0, 8, 3, 14, 1, 2, 9][:count])]


# --- twins ----------------------------------------


@every_settings
@pytest.mark.parametrize("family", ["ar", *BLOCK_FAMILIES])
def test_cached_and_uncached_agree_token_by_token(models, family: str, options: dict):
    how = {"max_new_tokens": 11, "seed": 3, **options}
    cached, uncached = (generate(models[family], rows(), cache=cache, **how) for cache in (True, False))
    assert cached.tokens == uncached.tokens
    assert cached.forward_passes == uncached.forward_passes


@pytest.mark.parametrize(
    "shape",
    [
        {"expand_at": 1},
        {"transition": "gated"},
        {"candidate_offset": 0.5, "track_bias": None},
        {"architecture": "bd3lm", "tie_embedding": False},
    ],
    ids=str,
)
def test_other_forms_of_dadlm_have_the_same_twins(shape: dict):
    model = silence_eot(tiny("dadlm", block=N, **shape))
    how = {"max_new_tokens": 10, "seed": 3, "sampler": "random"}
    cached, uncached = (generate(model, rows(3), cache=cache, **how) for cache in (True, False))
    assert cached == uncached
    naive, settings = Naive(model), DecodeSettings(sampler="random")
    assert cached.tokens == [naive.complete(row, 3 + i, settings, 10).tokens for i, row in enumerate(rows(3))]


@every_settings
@every_family
def test_every_row_is_what_plain_loops_give(models, family: str, options: dict):
    """Against `naive`: no batch, no cache, dense attention, loops over paths, tokens and gaps."""
    out = generate(models[family], rows(4), max_new_tokens=9, seed=11, **options)
    naive, settings = Naive(models[family]), DecodeSettings(**options)
    for index, prompt in enumerate(rows(4)):
        text = naive.complete(prompt, 11 + index, settings, 9)
        assert out.tokens[index] == text.tokens
        assert out.forward_passes[index] == text.forward_passes
        assert out.cache_passes[index] == text.cache_passes


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "dadlm"])
def test_with_one_candidate_the_position_is_the_candidate(models, family: str):
    how = {"max_new_tokens": 9, "seed": 2, "top_p": 0.4}
    assert generate(models[family], rows(4), nucleus="position", **how) == generate(
        models[family], rows(4), **how
    )


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
@pytest.mark.parametrize("family", BLOCK_FAMILIES)
def test_random_steps_are_what_plain_loops_give(models, family: str, steps: int):
    settings = DecodeSettings(sampler="random", steps=steps)
    out = generate(models[family], rows(4), max_new_tokens=9, seed=5, sampler="random", steps=steps)
    naive = Naive(models[family])
    for index, prompt in enumerate(rows(4)):
        text = naive.complete(prompt, 5 + index, settings, 9)
        assert (out.tokens[index], out.forward_passes[index]) == (text.tokens, text.forward_passes)


def test_ar_viterbi_is_greedy(models):
    model, prompt = models["ar"], prompt_of(6)
    text = list(prompt)
    with torch.inference_mode():
        for _ in range(20):
            text.append(int(model.head.logits(model.read(torch.tensor([text]))[0, -1]).argmax()))
    out = generate(model, prompt, max_new_tokens=20, path="viterbi")
    assert out.tokens == [text[6:]] and len(set(text[6:])) > 5


@pytest.mark.parametrize(
    "options",
    [{}, {"sampler": "random", "steps": 3}, {"sampler": "confidence", "threshold": 0.3}, {"path": "viterbi"}],
    ids=str,
)
def test_dadlm_with_one_silent_candidate_is_bd3lm(options: dict):
    dadlm = silence_eot(tiny("dadlm", block=N, candidates=1, seed=4))
    with torch.no_grad():
        dadlm.graph.candidate.zero_()  # type: ignore[union-attr]
    bd3lm = silence_eot(Model(dataclasses.replace(dadlm.config, family="bd3lm")).eval())
    own = bd3lm.state_dict()
    bd3lm.load_state_dict({name: tensor for name, tensor in dadlm.state_dict().items() if name in own})
    how = {"max_new_tokens": 18, "seed": 1, **options}
    assert generate(dadlm, rows(8), **how) == generate(bd3lm, rows(8), **how)


# --- company and seeds ----------------------------------------


@pytest.mark.parametrize(
    "options", [SETTINGS[name] for name in ("first-hitting, infilling", "random", "confidence")], ids=str
)
@every_family
def test_a_row_never_feels_its_company(models, family: str, options: dict):
    prompts, seeds, model = rows(6), [40, 7, 7, -3, 2**62, 0], models[family]
    how = {"max_new_tokens": 11, **options}
    together = generate(model, prompts, seed=seeds, **how)
    assert len({tuple(tokens) for tokens in together.tokens}) == 6
    order = [4, 1, 5, 0, 3, 2]
    mixed = generate(model, [prompts[i] for i in order], seed=[seeds[i] for i in order], batch_size=4, **how)
    for place, i in enumerate(order):
        alone = generate(model, [prompts[i]], seed=[seeds[i]], **how)
        for other in (alone.tokens[0], mixed.tokens[place]):
            assert other == together.tokens[i]
        assert alone.forward_passes[0] == mixed.forward_passes[place] == together.forward_passes[i]
        assert alone.cache_passes[0] == mixed.cache_passes[place] == together.cache_passes[i]


@pytest.mark.parametrize("batch_size", [1, 2, 5, 100])
def test_batch_size_changes_nothing(models, batch_size: int):
    how = {"max_new_tokens": 10, "seed": 9}
    whole = generate(models["dadlm"], rows(5), **how)
    assert generate(models["dadlm"], rows(5), batch_size=batch_size, **how) == whole


def test_a_row_that_ends_early_does_not_disturb_the_others():
    """Rows leave the batch at end-of-text; the others must keep their own keys and values."""
    model = tiny("dadlm", block=N, vocab=8, seed=2)  # end-of-text is one of seven tokens
    prompts = [prompt_of(3 + i % 5, i, vocab=8) for i in range(24)]
    how = {"max_new_tokens": 30, "top_p": 1.0, "sampler": "random"}
    out = generate(model, prompts, seed=0, **how)
    lengths = set(map(len, out.tokens))
    assert len(lengths) > 4, "rows must end at different times for this to mean anything"
    naive, settings = Naive(model), DecodeSettings(sampler="random", top_p=1.0)
    for i, prompt in enumerate(prompts):
        text = naive.complete(prompt, i, settings, 30)
        assert (out.tokens[i], out.forward_passes[i]) == (text.tokens, text.forward_passes)


@every_family
def test_an_int_seed_counts_up_row_by_row(models, family: str):
    prompts = [prompt_of(5)] * 3
    how = {"max_new_tokens": 12}
    counted = generate(models[family], prompts, seed=20, **how)
    assert counted == generate(models[family], prompts, seed=[20, 21, 22], **how)
    assert counted.seeds == [20, 21, 22]
    assert len({tuple(tokens) for tokens in counted.tokens}) == 3, "another seed, another text"
    assert counted == generate(models[family], prompts, seed=20, **how), "the same seed, the same text"


def test_without_a_seed_texts_differ_and_can_be_had_again(models):
    prompt, how = [prompt_of(5)], {"max_new_tokens": 20}
    first, second = (generate(models["dadlm"], prompt, **how) for _ in range(2))
    assert first.tokens != second.tokens
    assert generate(models["dadlm"], prompt, seed=first.seeds, **how) == first


def test_seeds_of_the_whole_range_work(models):
    seeds = [-(2**63), 2**63 - 1, -1, 0]
    out = generate(models["bd3lm"], [prompt_of(5)] * 4, seed=seeds, max_new_tokens=12)
    assert len({tuple(tokens) for tokens in out.tokens}) == 4 and out.seeds == seeds


@pytest.mark.parametrize("family", FAMILIES)
def test_dropout_is_off_whatever_mode_the_model_is_in(family: str):
    """A row's text depends on seed, prompt and settings only: not on torch's global generator."""
    model = silence_eot(tiny(family, block=N, dropout=0.5))
    how = {"max_new_tokens": 12, "seed": 1}
    expected = generate(model, prompt_of(5), **how)
    torch.manual_seed(0)
    assert generate(model.train(), prompt_of(5), **how) == expected
    assert model.training, "and the mode is left as it was"


@every_family
def test_autocast_of_the_caller_changes_nothing(models, family: str):
    """The weights' own type counts, in the first step and in all that follow."""
    how = {"max_new_tokens": 20, "seed": 1}
    plain = generate(models[family], rows(24), **how)
    with torch.autocast("cpu", torch.bfloat16):
        assert generate(models[family], rows(24), **how) == plain
        assert torch.ones(2, 2).matmul(torch.ones(2, 2)).dtype == torch.bfloat16, "theirs goes on"


def test_texts_that_overlap_leave_the_model_in_training():
    model, how = silence_eot(tiny("bd3lm", dropout=0.5)).train(), {"max_new_tokens": 12, "seed": 1}
    alone = [event.ids for event in stream(model, [3], **how)]
    short, long = stream(model, [1, 2], max_new_tokens=4, seed=1), stream(model, [3], **how)
    next(short)
    first = next(long)
    list(short)  # its end must not switch dropout on for the other
    assert model.training, "between steps it is the caller's"
    assert [first.ids, *(event.ids for event in long)] == alone and model.training
    going_on = stream(model, [3], **how)
    next(going_on)
    model.eval()
    list(going_on)
    assert not model.training, "as the caller has left it"


# --- prompts ----------------------------------------


@pytest.mark.parametrize("length", range(10))
@every_family
def test_a_prompt_of_any_length_alone(models, family: str, length: int):
    model = models[family]
    out = generate(model, [prompt_of(length)], max_new_tokens=6, seed=length)
    text = Naive(model).complete(prompt_of(length), length, DecodeSettings(), 6)
    assert out.tokens == [text.tokens] and len(text.tokens) == 6
    assert out.forward_passes == [text.forward_passes]


@every_family
def test_an_empty_prompt_is_one_end_of_text(models, family: str):
    model = models[family]
    how = {"max_new_tokens": 9, "seed": 2}
    assert generate(model, [[]], **how) == generate(model, [[model.config.eot_id]], **how)


def test_end_of_text_in_the_prompt_does_not_end_the_completion(models):
    eot = models["dadlm"].config.eot_id
    out = generate(models["dadlm"], [[3, eot, 5, eot], [eot, 3, eot]], max_new_tokens=9, seed=2)
    assert [len(tokens) for tokens in out.tokens] == [9, 9]


@every_family
def test_text_and_ids_are_the_same_prompt(family: str):
    words = ["to", "be", "or", "not"]
    model = tiny(family, vocab=6, tokenizer=word_level(words))
    how = {"max_new_tokens": 8, "seed": 3}
    out = generate(model, ["to be or", ""], **how)
    assert out == generate(model, [[0, 1, 2], [model.config.eot_id]], **how)
    for text, tokens in zip(out.texts, out.tokens, strict=True):
        assert text == " ".join(words[id_] for id_ in tokens if id_ != model.config.eot_id)
    assert generate(model, "to be or", **how).tokens == out.tokens[:1], "a single prompt needs no list"
    assert generate(model, [0, 1, 2], **how).tokens == out.tokens[:1]


@pytest.mark.parametrize("new", [1, 2, 3, 4, 5, 8])
@every_family
def test_the_limit_need_not_be_a_multiple_of_the_block(models, family: str, new: int):
    out = generate(models[family], rows(4), max_new_tokens=new, seed=6)
    assert [len(tokens) for tokens in out.tokens] == [new] * 4
    if family != "mdlm":  # there the window ends with the text, so the limit is part of the question
        longer = generate(models[family], rows(4), max_new_tokens=13, seed=6)
        assert out.tokens == [tokens[:new] for tokens in longer.tokens]


@every_family
def test_the_context_can_be_filled_to_the_last_token(models, family: str):
    room = models[family].config.context - 5
    for limit in (room, None):
        out = generate(models[family], [prompt_of(5)], max_new_tokens=limit, seed=0, path="viterbi")
        assert len(out.tokens[0]) == room
    last = generate(models[family], [prompt_of(models[family].config.context - 1)], seed=0)
    assert len(last.tokens[0]) == 1


def test_the_default_limit_is_128():
    model = silence_eot(tiny("ar", context=200, layers=1))
    assert len(generate(model, [prompt_of(5)], seed=0).tokens[0]) == 128


# --- end-of-text and what is emitted ----------------------------------------


@every_family
def test_certain_end_of_text_gives_one_token(family: str):
    model = force_eot(tiny(family, block=N))
    out = generate(model, [prompt_of(5), prompt_of(8)], max_new_tokens=12, seed=0)
    assert out.tokens == [[model.config.eot_id]] * 2 and out.texts == ["", ""]
    naive, prompts = Naive(model), [prompt_of(5), prompt_of(8)]
    passes = [
        naive.complete(prompt, i, DecodeSettings(), 12).forward_passes for i, prompt in enumerate(prompts)
    ]
    whole = {"ar": [1, 1], "mdlm": [12, 12], "bd3lm": [3, 4], "dadlm": [3, 4]}[family]  # blocks to their end
    assert all(few <= many for few, many in zip(passes, whole, strict=True))
    assert passes != whole or family == "ar"
    assert out.forward_passes == passes and out.cache_passes == [0, 0]
    assert out.tokens_per_forward == [1 / n for n in passes]


@every_family
def test_texts_end_at_their_own_first_end_of_text(family: str):
    model = tiny(family, block=N, vocab=6, context=40)
    eot = model.config.eot_id
    out = generate(model, [prompt_of(5, i, vocab=6) for i in range(40)], max_new_tokens=20, seed=0, top_p=1.0)
    ended = [tokens for tokens in out.tokens if tokens[-1] == eot]
    assert len({len(tokens) for tokens in ended}) > 5
    for tokens in out.tokens:
        assert eot not in tokens[:-1]
        assert tokens[-1] == eot or len(tokens) == 20


@every_family
def test_the_mask_is_never_emitted(family: str):
    """Even where the head likes it best, at any temperature."""
    model = tiny(family, block=N, vocab=6, tie_embedding=False, context=200)
    with torch.no_grad():
        model.head.linear.weight[:5] = 0.0
        model.head.linear.weight[5] = 100.0
    for options in ({"temperature": 5.0, "top_p": 1.0}, {"path": "viterbi"}, {"temperature": 0.0}):
        out = generate(model, [prompt_of(i, i, vocab=6) for i in range(1, 9)], max_new_tokens=24, **options)
        assert max(max(tokens) for tokens in out.tokens) <= 4


# --- counting ----------------------------------------


@every_family
def test_passes_and_tokens_per_forward(models, family: str):
    """First-hitting: one pass per token, and some for those behind the limit that are revealed before the
    last."""
    out = generate(models[family], rows(6), max_new_tokens=10, seed=0)
    for prompt, tokens, passes, cache_passes, tpf in zip(
        rows(6), out.tokens, out.forward_passes, out.cache_passes, out.tokens_per_forward, strict=True
    ):
        start = len(prompt) or 1
        end = start + 10 if family in ("ar", "mdlm") else -(-(start + 10) // N) * N
        assert len(tokens) == 10 and 10 <= passes <= end - start
        blocks = end // N - start // N if family in BLOCK_FAMILIES else 1
        assert cache_passes == blocks - 1
        assert tpf == 10 / passes
    assert out.mean_tokens_per_forward == 60 / sum(out.forward_passes)


def test_a_set_is_all_tokens_over_all_passes(models):
    out = generate(models["dadlm"], rows(6), max_new_tokens=11, seed=0, sampler="random", steps=2)
    assert len(set(out.tokens_per_forward)) > 1
    assert out.mean_tokens_per_forward == pytest.approx(66 / sum(out.forward_passes))
    assert out.mean_tokens_per_forward != pytest.approx(sum(out.tokens_per_forward) / 6)


@every_settings
def test_ar_takes_one_pass_per_token(models, options: dict):
    out = generate(models["ar"], rows(3), max_new_tokens=7, seed=0, **options)
    assert out.tokens_per_forward == [1.0] * 3 and out.mean_tokens_per_forward == 1.0
    assert out.cache_passes == [0] * 3


@pytest.mark.parametrize("family", ["mdlm", "bd3lm", "dadlm"])
def test_one_step_fixes_a_whole_block(models, family: str):
    out = generate(models[family], [prompt_of(8)], max_new_tokens=12, seed=0, sampler="random", steps=1)
    passes = 1 if family == "mdlm" else 3
    assert out.forward_passes == [passes] and out.tokens_per_forward == [12 / passes]


@pytest.mark.parametrize(("threshold", "passes"), [(0.0, 3), (1.0, 12)])
def test_confidence_between_all_and_one(models, threshold: float, passes: int):
    out = generate(
        models["dadlm"], [prompt_of(8)], max_new_tokens=12, seed=0, sampler="confidence", threshold=threshold
    )
    assert out.forward_passes == [passes]


def test_mdlm_takes_at_most_as_many_steps_as_it_has_new_tokens(models):
    out = generate(models["mdlm"], rows(5), max_new_tokens=10, seed=0, sampler="random")
    assert all(1 < passes < 10 for passes in out.forward_passes), "T = 10, idle steps skipped"


def test_settings_can_be_given_as_one_object(models):
    settings = DecodeSettings(max_new_tokens=6, sampler="random", steps=2)
    out = generate(models["dadlm"], rows(2), seed=1, settings=settings)
    assert out == generate(models["dadlm"], rows(2), seed=1, max_new_tokens=6, sampler="random", steps=2)


def test_the_model_is_left_as_it_was(models):
    model = models["dadlm"]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    generate(model, rows(2), max_new_tokens=6, seed=1)
    list(stream(model, rows(1)[0], max_new_tokens=6, seed=1))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
