"""With a chat template, what ends a turn ends the text, as end-of-text does."""

import copy
from dataclasses import replace

import pytest
import torch
from tests.decode.naive import Naive
from tests.decode.test_end import WAYS
from tests.decode.tiny import tiny
from tests.tokens.test_chat import talker

from dadlm import DecodeSettings, Model, generate
from dadlm.tokens import Tokenizer

PROMPTS = ["the cat", "sat the cat", "a"]


def speaker(family: str, chat: bool, context: int = 128, **shape) -> Model:
    """Random weights; the end of a turn comes by chance now and then."""
    words = talker()
    if not chat:
        words = Tokenizer(words._inner)
    model = tiny(family, vocab=words.vocab_size + 1, tokenizer=words, context=context, **shape)
    model.config = replace(model.config, eot_id=words.eot_id)
    return model


@pytest.mark.parametrize("family", ["ar", "bd3lm", "dadlm", "mdlm"])
def test_texts_end_with_the_turn(family: str) -> None:
    """Against the same weights with a tokenizer that knows of no turns, cut off by hand."""
    model, plain, ended = speaker(family, True), speaker(family, False), 0
    turn_end, how = talker().turn_end_id, {"max_new_tokens": 100, "temperature": 3.0, "top_p": 1.0}
    assert turn_end is not None
    for seed in range(6):
        told = generate(model, PROMPTS, seed=10 * seed, **how)
        wanted = generate(plain, PROMPTS, seed=10 * seed, **how).tokens
        for found, want, text in zip(told.tokens, wanted, told.texts, strict=True):
            cut = want[: want.index(turn_end) + 1] if turn_end in want else want
            assert found == cut and "<|im_end|>" not in text
            ended += found[-1] == turn_end
    assert ended > 2, "the test must see some"


def likely_to_end(family: str) -> Model:
    """Half of what it says ends a turn, a quarter a text."""
    model = speaker(family, True, block=8, tie_embedding=False)
    bias = torch.zeros(model.config.vocab_size)
    bias[list(model.end_ids)] = torch.tensor([3.0, 4.0])
    model.head.linear.bias = torch.nn.Parameter(bias)
    return model


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("family", ["mdlm", "bd3lm", "dadlm"])
def test_nothing_is_denoised_behind_the_end_of_a_turn(family: str, options: dict) -> None:
    """As in plain loops, passes included."""
    model, ended = likely_to_end(family), 0
    assert model.tokenizer is not None
    options = {"top_p": 1.0} | options
    naive, settings = Naive(model), DecodeSettings(**options)
    prompts = [model.tokenizer.encode(text) for text in (*PROMPTS, *PROMPTS, *PROMPTS)]
    told = generate(model, prompts, seed=5, max_new_tokens=13, **options)
    for row, prompt in enumerate(prompts):
        text = naive.complete(prompt, 5 + row, settings, 13)
        assert (told.tokens[row], told.forward_passes[row]) == (text.tokens, text.forward_passes)
        ended += text.tokens[-1] == model.end_ids[1]
    assert ended > 2, "the test must see some"


@pytest.mark.parametrize("draft", ["lookup", None])
def test_lossless_texts_end_there_too(draft: str | None) -> None:
    model = speaker("bd3lm", True, causal_context=True)
    how = {"max_new_tokens": 100, "temperature": 3.0, "top_p": 1.0, "seed": 3}
    alone = generate(model, PROMPTS * 10, mode="ar", **how)
    told = generate(model, PROMPTS * 10, mode="lossless", draft=draft, tree=6, **how)
    assert told.tokens == alone.tokens
    assert sum(ids[-1] == talker().turn_end_id for ids in told.tokens) > 1
    assert max(map(len, told.tokens)) > 8


def test_with_captured_graphs(as_on_cuda: None) -> None:
    how = {"max_new_tokens": 100, "temperature": 3.0, "top_p": 1.0, "seed": 3}
    told = generate(speaker("ar", True), PROMPTS * 10, **how)
    turn_end = talker().turn_end_id
    wanted = generate(speaker("ar", False), PROMPTS * 10, **how).tokens
    assert sum(ids[-1] == turn_end for ids in told.tokens) > 1
    assert told.tokens == [ids[: ids.index(turn_end) + 1] if turn_end in ids else ids for ids in wanted]
    # Several passes go by before anybody looks: the device itself must have seen the end.
    assert told.forward_passes == [len(ids) for ids in told.tokens]


def test_a_model_that_has_chatted_can_be_copied() -> None:
    model, messages = speaker("ar", True), [{"role": "user", "content": "hello"}]
    assert model.tokenizer is not None
    ids = model.tokenizer.encode_chat(messages)  # type: ignore[arg-type]
    again = copy.deepcopy(model)
    assert again.tokenizer is not None and again.tokenizer.encode_chat(messages) == ids  # type: ignore[arg-type]


def test_a_turn_may_end_as_texts_do() -> None:
    """Llama's own chat models have one token for both, which is named once."""
    words = talker(eos="<|endoftext|>")
    model = tiny("ar", vocab=words.vocab_size + 1, tokenizer=words)
    model.config = replace(model.config, eot_id=words.eot_id)
    assert words.turn_end_id == words.eot_id and model.end_ids == (words.eot_id,)
