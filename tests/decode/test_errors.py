"""Bad input: a `ConfigError` that names the option, the value and what is allowed."""

import re

import numpy as np
import pytest
import torch
from tests.decode.tiny import FAMILIES, prompt_of, tiny

from dadlm import ConfigError, DadlmError, DecodeSettings, Model, generate, stream


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny("dadlm", block=4, context=32)


BAD_SETTINGS = {
    "steps 0": ({"sampler": "random", "steps": 0}, ["steps", "at least 1", "0"]),
    "steps -3": ({"sampler": "random", "steps": -3}, ["steps", "at least 1", "-3"]),
    "steps with first-hitting": ({"steps": 2}, ["steps", "random", "first-hitting"]),
    "steps with confidence": (
        {"sampler": "confidence", "steps": 2},
        [
            "steps belongs to the random and dilated samplers",
            "confidence",
            "choose the sampler random or dilated",
        ],
    ),
    "sampler": ({"sampler": "greedy"}, ["sampler", "greedy", "first-hitting, random, confidence"]),
    "path": ({"path": "beam"}, ["path", "beam", "sample, viterbi"]),
    "nucleus": ({"nucleus": "wide"}, ["nucleus", "wide", "standard, bd3lm"]),
    "top_p 0": ({"top_p": 0.0}, ["top_p", "(0, 1]"]),
    "top_p 1.1": ({"top_p": 1.1}, ["top_p", "(0, 1]", "1.1"]),
    "top_k 0": ({"top_k": 0}, ["top_k", "at least 1", "0"]),
    "top_k 1.5": ({"top_k": 1.5}, ["top_k", "whole number", "1.5"]),
    "top_p nan": ({"top_p": float("nan")}, ["top_p", "nan"]),
    "bound -1": ({"sampler": "entropy", "bound": -1}, ["bound", "[0, 1000000]", "-1"]),
    "bound NaN": ({"sampler": "entropy", "bound": float("nan")}, ["bound", "[0, 1000000]", "nan"]),
    "bound true": ({"sampler": "entropy", "bound": True}, ["bound", "True"]),
    "threshold 2": ({"sampler": "confidence", "threshold": 2}, ["threshold", "[0, 1]", "2"]),
    "threshold -1": ({"threshold": -1.0}, ["threshold", "[0, 1]"]),
    "transition_weight": ({"transition_weight": 1.5}, ["transition_weight", "[0, 1]", "1.5"]),
    "temperature": ({"temperature": -0.1}, ["temperature", "-0.1"]),
    "max_new_tokens": ({"max_new_tokens": 0}, ["max_new_tokens", "at least 1", "0"]),
    "infill length 0": ({"infill": (0, 0.5)}, ["infill", "gap length k", "got 0"]),
    "infill length 1.5": ({"infill": (1.5, 0.5)}, ["infill", "gap length k"]),
    "infill ratio": ({"infill": (2, 1.5)}, ["infill", "r", "[0, 1]", "1.5"]),
    "infill alone": ({"infill": (2,)}, ["infill", "k", "r"]),
    "infill of three": ({"infill": (2, 0.5, 1)}, ["infill", "k", "r"]),
}


@pytest.mark.parametrize(("options", "says"), BAD_SETTINGS.values(), ids=BAD_SETTINGS)
def test_settings_are_checked_where_they_are_born(model, options: dict, says: list[str]):
    for call in (
        lambda: DecodeSettings(**options),
        lambda: generate(model, prompt_of(5), **options),
        lambda: list(stream(model, prompt_of(5), **options)),
    ):
        with pytest.raises(ConfigError) as caught:
            call()
        for words in says:
            assert words in str(caught.value)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"infill": 5}, "infill"),
        ({"infill": ("two", 0.5)}, "infill"),
        ({"infill": (float("inf"), 0.5)}, "infill"),
        ({"infill": (float("nan"), 0.5)}, "infill"),
        ({"top_p": "most"}, "top_p"),
        ({"temperature": None}, "temperature"),
        ({"steps": 1.5, "sampler": "random"}, "steps"),
        ({"max_new_tokens": 2.5}, "max_new_tokens"),
        ({"max_new_tokens": "many"}, "max_new_tokens"),
    ],
    ids=str,
)
def test_a_value_of_the_wrong_kind_is_named(model, options: dict, name: str):
    with pytest.raises(ConfigError, match=name) as caught:
        generate(model, prompt_of(5), **options)
    assert "unknown" not in str(caught.value), "the option is known; its value is not"


def test_an_unknown_option_is_named(model):
    with pytest.raises(ConfigError, match=r"unknown.*min_p"):
        generate(model, prompt_of(5), min_p=0.1)
    with pytest.raises(ConfigError, match=r"unknown.*cadence"):
        list(stream(model, prompt_of(5), cadence=5))


def test_settings_and_options_do_not_mix(model):
    with pytest.raises(ConfigError, match=r"either.*top_p"):
        generate(model, prompt_of(5), settings=DecodeSettings(), top_p=0.5)


@pytest.mark.parametrize("family", FAMILIES)
def test_more_steps_than_tokens(family: str):
    model = tiny(family, block=4, context=32)
    block = {"ar": 1, "mdlm": 32}.get(family, 4)
    with pytest.raises(ConfigError, match=rf"steps is {block + 1}.*{family}.*{block} tokens"):
        generate(model, prompt_of(5), sampler="random", steps=block + 1)
    assert generate(model, prompt_of(5), sampler="random", steps=block, max_new_tokens=2).tokens[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_that_fills_the_context(family: str):
    model = tiny(family, block=4, context=32)
    for length in (32, 33, 100):
        with pytest.raises(ConfigError, match=rf"prompt has {length} tokens.*context of 32"):
            generate(model, [prompt_of(3), prompt_of(length)])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_limit_beyond_the_context(family: str):
    model = tiny(family, block=4, context=32)
    with pytest.raises(ConfigError, match=r"max_new_tokens is 28.*prompt of 5.*context of 32 leaves 27"):
        generate(model, prompt_of(5), max_new_tokens=28)


def test_seeds_must_match_the_prompts(model):
    for seeds, count in (([1], 1), ([1, 2, 3], 3), ([], 0)):
        with pytest.raises(ConfigError, match=f"{count} seeds for 2 prompts"):
            generate(model, [prompt_of(3), prompt_of(4)], seed=seeds)


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, 2**80, [0, 2**63], 2**63 - 1])
def test_seeds_must_fit_into_64_bits(model, seed):
    """The last one fits, but the second row's would not."""
    with pytest.raises(ConfigError, match="64 bits"):
        generate(model, [prompt_of(3), prompt_of(4)], seed=seed)


@pytest.mark.parametrize("seed", [1.5, "seven", [1.5, 2]])
def test_seeds_must_be_whole_numbers(model, seed):
    with pytest.raises(ConfigError, match="seed"):
        generate(model, [prompt_of(3), prompt_of(4)], seed=seed)


@pytest.mark.parametrize("bad", [29, 30, -1, 10**9])
def test_prompt_ids_out_of_range(model, bad: int):
    """29 is the mask: it belongs to the model, not to the text."""
    with pytest.raises(ConfigError, match=re.escape("0..28")):
        generate(model, [[1, bad, 2]])


def test_prompt_ids_must_be_whole_numbers(model):
    with pytest.raises(ConfigError, match="prompt"):
        generate(model, [[1.5, 2.5]])


def test_no_prompts(model):
    with pytest.raises(ConfigError, match="no prompts"):
        generate(model, [])
    with pytest.raises(ConfigError, match="no prompts"):
        generate(model, ())


def test_text_for_a_model_without_a_tokenizer(model):
    with pytest.raises(ConfigError, match="token ids"):
        generate(model, "to be or not")


@pytest.mark.parametrize("size", [0, -1])
def test_batch_size_must_be_positive(model, size: int):
    with pytest.raises(ConfigError, match="batch_size"):
        generate(model, prompt_of(5), batch_size=size)


@pytest.mark.parametrize("count", [0, -1])
def test_top_tokens_must_be_positive(model, count: int):
    with pytest.raises(ConfigError, match="top_tokens"):
        list(stream(model, prompt_of(5), top_tokens=count))


def test_nothing_is_decoded_before_every_prompt_is_checked(model, monkeypatch):
    monkeypatch.setattr(Model, "read", lambda *_, **__: pytest.fail("decoding began"))
    with pytest.raises(DadlmError):
        generate(model, [prompt_of(5), prompt_of(40)])


def test_prompts_of_any_kind(model):
    """Arrays, tensors and what is gone through once; rows of an array are prompts of their own."""
    rows = [prompt_of(5), prompt_of(5)[::-1]]
    told = generate(model, rows, seed=1, max_new_tokens=3).tokens
    for prompts in (np.array(rows), torch.tensor(rows), (row for row in rows), tuple(map(tuple, rows))):
        assert generate(model, prompts, seed=1, max_new_tokens=3).tokens == told
    one = generate(model, rows[:1], seed=1, max_new_tokens=3).tokens
    assert generate(model, torch.tensor(rows[0]), seed=1, max_new_tokens=3).tokens == one
    column = [[id_] for id_ in rows[0]]  # one prompt of one token each
    assert len(generate(model, torch.tensor(column), seed=1, max_new_tokens=1).tokens) == len(column)


@pytest.mark.parametrize(
    "prompts", [None, 5, b"abc", [None], [b"abc"], [[b"a"]], [[1.5]], torch.tensor([1.5])]
)
def test_what_is_no_prompt_is_refused(model, prompts):
    with pytest.raises(ConfigError, match=r"text.* token ids.*got"):
        generate(model, prompts, max_new_tokens=1)


def test_a_stream_has_one_prompt(model):
    with pytest.raises(ConfigError, match=r"a prompt must be a text .*got \['The'\]"):
        stream(model, ["The"])


def test_numbers_of_numpy_are_numbers(model):
    numbers = {"max_new_tokens": np.int64(3), "top_p": np.float32(0.5), "top_k": np.int32(4)}
    plain = {"max_new_tokens": 3, "top_p": 0.5, "top_k": 4}
    assert generate(model, prompt_of(5), seed=1, **numbers) == generate(model, prompt_of(5), seed=1, **plain)


@pytest.mark.parametrize("batch_size", [0, 1.5, None, True])
def test_batch_size_is_a_whole_number(model, batch_size):
    with pytest.raises(ConfigError, match="batch_size must be a whole number of at least 1"):
        generate(model, prompt_of(5), batch_size=batch_size)


def test_settings_are_settings(model):
    with pytest.raises(ConfigError, match="settings must be a DecodeSettings, got dict"):
        generate(model, prompt_of(5), settings={"max_new_tokens": 2})  # type: ignore[arg-type]
