"""`stream`: every denoising step as plain data, consistent in itself and with `generate`."""

import dataclasses
import json

import pytest
import torch
from tests.decode.test_chain import edge_model
from tests.decode.tiny import FAMILIES, prompt_of, silence_eot, tiny

from dadlm import Model, StepEvent, generate, stream
from dadlm.noise import Noise
from dadlm.tokens.vocabularies import train_bpe

OF_POSITIONS = ["ids", "texts", "anchor", "top_tokens", "transition", "path", "fixed", "infilled"]
OF_POSITIONS += ["drawn", "drawn_texts", "probability", "alone"]
FIELDS = ["block", "step", *OF_POSITIONS]
OPTIONS = {
    "first-hitting": {"infill": (2, 0.25)},
    "random": {"sampler": "random", "steps": 1},
    "confidence": {"sampler": "confidence", "path": "viterbi", "threshold": 0.4},
    "entropy": {"sampler": "entropy", "bound": 6.0, "nucleus": "position"},
}
every_family = pytest.mark.parametrize("family", FAMILIES)
every_sampler = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    tokenizer = train_bpe(["$x_1 = \n[b]{y}\t% & 中文 🙂"] * 3, 300, show_progress=False)
    vocab = tokenizer.vocab_size + 1
    made = {family: tiny(family, vocab=vocab, tokenizer=tokenizer) for family in FAMILIES}
    for family, model in made.items():
        config = dataclasses.replace(model.config, eot_id=tokenizer.eot_id)
        made[family] = silence_eot(_with(model, config))
    return made


def _with(model: Model, config) -> Model:
    new = Model(config, model.tokenizer).eval()
    new.load_state_dict(model.state_dict())
    return new


def events_of(model: Model, options: dict, length: int = 6, **more) -> list[StepEvent]:
    return list(stream(model, prompt_of(length), max_new_tokens=7, seed=4, **options, **more))


def nodes_of(model: Model, anchor: bool) -> int:
    return 1 if anchor else model.config.nodes_per_mask


@every_sampler
@every_family
def test_fields_and_shapes(models, family: str, options: dict):
    model = models[family]
    K = model.config.nodes_per_mask
    N = {"ar": 1, "mdlm": 13}.get(family, 4)
    for event in events_of(model, options):
        assert [field.name for field in dataclasses.fields(event)] == FIELDS
        assert isinstance(event.block, int) and isinstance(event.step, int)
        for name in OF_POSITIONS:
            assert len(getattr(event, name)) == N, name
        assert all(type(id_) is int for id_ in event.ids + event.path)
        assert all(type(flag) is bool for flag in event.anchor + event.fixed + event.infilled)
        for group, anchor in zip(event.top_tokens, event.anchor, strict=True):
            assert len(group) == K
            assert [len(tokens) for tokens in group] == ([1] + [0] * (K - 1) if anchor else [3] * K)
        assert all(len(rows) == K and all(len(row) == K for row in rows) for rows in event.transition)


@every_sampler
@every_family
def test_json_has_the_same_names_and_survives_a_round_trip(models, family: str, options: dict):
    for event in events_of(models[family], options):
        content = json.loads(json.dumps(event.to_json(), allow_nan=False))
        assert list(content) == FIELDS
        tuples = [[[tuple(token) for token in node] for node in group] for group in content["top_tokens"]]
        assert StepEvent(**{**content, "top_tokens": tuples}) == event


@every_sampler
@every_family
def test_transitions_are_probabilities_and_the_path_walks_along_them(models, family: str, options: dict):
    model = models[family]
    for event in events_of(model, options):
        source = 0  # the start-of-block node
        sources = [0]
        for i, (rows, k) in enumerate(zip(event.transition, event.path, strict=True)):
            count = nodes_of(model, event.anchor[i])
            for j in sources:
                assert sum(rows[j]) == pytest.approx(1.0, abs=1e-5)
                assert all(p >= 0 for p in rows[j]) and not any(rows[j][count:]), (
                    "none towards inactive nodes"
                )
            assert k < count, "the path takes nodes that exist"
            assert rows[source][k] > 0
            source, sources = k, list(range(count))


@every_family
def test_top_tokens_are_the_most_probable_first(models, family: str):
    model = models[family]
    for event in events_of(model, {}, top_tokens=5):
        for i, group in enumerate(event.top_tokens):
            if event.anchor[i]:
                ((id_, text, p),) = group[0]
                assert (id_, p) == (event.ids[i], 1.0)
                assert text == model.tokenizer.token_text(id_)
                continue
            for tokens in group:
                p = [p for _, _, p in tokens]
                assert len(tokens) == 5 and p == sorted(p, reverse=True) and 0 < sum(p) <= 1 + 1e-6
                assert [text for _, text, _ in tokens] == [
                    model.tokenizer.token_text(i) for i, _, _ in tokens
                ]


def test_viterbi_shows_the_token_it_takes(models):
    for event in events_of(models["dadlm"], {"path": "viterbi"}):
        for i, k in enumerate(event.path):
            if event.fixed[i]:
                assert event.top_tokens[i][k][0][0] == event.ids[i]


@every_sampler
@every_family
def test_one_event_follows_from_the_other(models, family: str, options: dict):
    """Anchors are what was known, `ids` what is known after, the mask elsewhere; blocks and steps go up."""
    model, prompt = models[family], prompt_of(6)
    mask, text = model.config.mask_id, list(prompt)
    size = {"ar": 1, "mdlm": 13}.get(family, 4)
    state: list[int] | None = None
    place = (-1, -1)
    for event in events_of(model, options):
        assert (event.block, event.step) > place
        place = (event.block, event.step)
        first = event.block * size
        if state is None:
            assert first == len(text) // size * size
            state = text[first:] + [mask] * (size - len(text) + first)
        assert event.anchor == [id_ != mask for id_ in state]
        assert any(event.fixed), "every pass decides something"
        for i, id_ in enumerate(event.ids):
            assert not (event.fixed[i] and event.anchor[i])
            assert not (event.infilled[i] and not event.fixed[i]), "what is infilled is decided"
            assert id_ == state[i] if event.anchor[i] else (id_ != mask) == event.fixed[i]
            assert event.texts[i] == ("" if id_ == mask else model.tokenizer.token_text(id_))
        state = event.ids
        if mask not in state:
            text, state = text[:first] + state, None
    assert state is None, "the last event completes its block"
    out = generate(model, [prompt], max_new_tokens=7, seed=4, **options)
    assert text[6:13] == out.tokens[0], "stream and generate write the same text"
    assert len(events_of(model, options)) == out.forward_passes[0], "one event per pass"


@every_sampler
@every_family
def test_without_edges_a_drawn_token_has_one_probability(models, family: str, options: dict):
    """What is decided was drawn, but for what follows the end of the text."""
    eot = models[family].config.eot_id
    for event in events_of(models[family], options, top_tokens=300):
        assert event.probability == event.alone and not event.has_edges
        for i, id_ in enumerate(event.drawn):
            assert (id_ is None) == (event.probability[i] is None)
            assert not event.fixed[i] or event.ids[i] in (id_, eot)
            assert not (event.anchor[i] and id_ is not None)
            if id_ is not None:
                top = {one: p for one, _, p in event.top_tokens[i][event.path[i]]}
                assert event.probability[i] == pytest.approx(top[id_], abs=1e-6)


@pytest.mark.parametrize("form", ["bilinear", "mlp"])
@pytest.mark.parametrize("family", ["bd3lm", "dadlm"])
@every_sampler
def test_a_drawn_token_has_the_probability_that_the_model_gives_it_there(
    family: str, form: str, options: dict
):
    """Against the model's own score of the block as it was drawn."""
    model = edge_model(family, form, N=4, vocab=30)
    prompt, seen = prompt_of(8), 0
    for event in stream(model, prompt, max_new_tokens=4, seed=1, **options):
        drawn = [id_ is not None for id_ in event.drawn]
        block = [a if d is None else d for a, d in zip(event.ids, event.drawn, strict=True)]
        ids = torch.tensor([prompt + [0 if id_ == model.config.mask_id else id_ for id_ in block]])
        masked = torch.tensor([[False] * 8 + [not anchor for anchor in event.anchor]])
        with torch.no_grad():
            emission = model(ids, Noise.of(masked)).emission_logp[0, -1].exp()
        assert event.drawn_texts == ["" if id_ is None else str(id_) for id_ in event.drawn]
        for i, k in enumerate(event.path):
            assert (event.probability[i] is not None) == drawn[i]
            if drawn[i]:
                assert event.probability[i] == pytest.approx(float(emission[i, k]), rel=1e-4)
                top = {one: p for one, _, p in event.top_tokens[i][k]}
                assert event.drawn[i] not in top or event.alone[i] == pytest.approx(top[event.drawn[i]])
                assert not event.fixed[i] or event.ids[i] == event.drawn[i]
                seen += 1
        assert event.has_edges
    assert seen >= 4


def test_infilled_positions_are_marked(models):
    events = [
        event
        for length in (4, 5, 6, 7)
        for event in events_of(models["dadlm"], {"infill": (2, 0.0)}, length=length)
    ]
    assert any(any(event.infilled) for event in events)
    assert any(any(event.fixed) and not any(event.infilled) for event in events)


@pytest.mark.parametrize("m", [1, 2, 9])
def test_top_tokens_has_the_asked_length(models, m: int):
    event = events_of(models["dadlm"], {}, top_tokens=m)[1]
    masked = [group for group, anchor in zip(event.top_tokens, event.anchor, strict=True) if not anchor]
    assert masked and {len(node) for group in masked for node in group} == {m}


def test_the_mask_is_not_among_the_top_tokens():
    model = tiny("dadlm", vocab=5)
    event = next(iter(stream(model, [1, 2, 0, 1], max_new_tokens=4, seed=0, top_tokens=50)))
    shown = {id_ for group in event.top_tokens for node in group for id_, _, _ in node}
    assert shown == {0, 1, 2, 3}


def test_equally_probable_top_tokens_stand_by_id():
    """So that the first one shown is the one that Viterbi takes."""
    model = tiny("dadlm", tie_embedding=False)
    model.head.linear.weight.data.zero_()
    event = next(iter(stream(model, [1, 2, 0, 1], max_new_tokens=4, seed=0)))
    assert all([id_ for id_, _, _ in node] == [0, 1, 2] for group in event.top_tokens for node in group)


def test_text_prompts_and_models_without_a_tokenizer(models):
    model = models["bd3lm"]
    by_text = [event.ids for event in stream(model, "$x_1", max_new_tokens=5, seed=1)]
    ids = model.tokenizer.encode("$x_1")
    assert by_text == [event.ids for event in stream(model, ids, max_new_tokens=5, seed=1)]
    event = next(iter(stream(tiny("dadlm"), prompt_of(5), max_new_tokens=4, seed=0)))
    assert event.top_tokens[0][0][0][1] == str(event.ids[0])


def test_a_stream_can_be_left_early(models):
    steps = stream(models["dadlm"], prompt_of(6), max_new_tokens=7, seed=4)
    first = next(steps)
    steps.close()
    assert first == events_of(models["dadlm"], {})[0]
