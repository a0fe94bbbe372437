"""The real `openai` client against a real server with tiny models: answers are those of `dadlm.generate`."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import openai
import pytest
import torch
from tests.serve.running import WAIT, Running, letter_model, letters, running, settings
from tests.tokens.test_growing_text import byte_fallback

import dadlm
from dadlm.decode import DecodeSettings, fill_gaps, settings_for
from dadlm.decode.samplers import SAMPLERS
from dadlm.serve.request import TokenLogprob
from dadlm.serve.routes import Choice, Completion
from dadlm.serve.service import Service
from dadlm.tokens import Tokenizer
from dadlm.tokens.growing_text import TextStream

FAMILIES = ("dadlm", "bd3lm", "ar")
PROMPT = "the cat "


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    models = {family: letter_model(family) for family in FAMILIES}
    with running(Service(models, settings(max_rows=8))) as here:
        yield here


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=WAIT, max_retries=0) as connected:
        yield connected


def suited(family: str, **options: Any) -> DecodeSettings:
    """What the server decodes with where only these options are named."""
    return settings_for(letter_model(family).config, options)


def alone(family: str, prompt: Any = PROMPT, seed: Any = None, **options: Any) -> dadlm.Generated:
    return dadlm.generate(letter_model(family), prompt, seed=seed, settings=suited(family, **options))


@pytest.mark.parametrize("family", FAMILIES)
def test_text_is_that_of_generate_whole_and_streamed(client: openai.OpenAI, family: str) -> None:
    want = alone(family, seed=5, max_new_tokens=14)
    answer = client.completions.create(model=family, prompt=PROMPT, seed=5, max_tokens=14)
    assert answer.choices[0].text == want.texts[0]
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None and answer.usage.completion_tokens == 14
    assert answer.usage.prompt_tokens == len(letters().encode(PROMPT))
    cost = answer.model_extra["dadlm"]  # type: ignore[index]
    assert cost["forward_passes"] == want.forward_passes[0]
    assert cost["cache_passes"] == want.cache_passes[0]
    assert cost["seed"] == 5
    options: Any = {"stream": True, "stream_options": {"include_usage": True}}
    pieces, reasons, usages = [], [], []
    for chunk in client.completions.create(model=family, prompt=PROMPT, seed=5, max_tokens=14, **options):
        pieces += [choice.text for choice in chunk.choices]
        reasons += [choice.finish_reason for choice in chunk.choices if choice.finish_reason]
        usages += [chunk.usage] if chunk.usage else []
    assert "".join(pieces) == want.texts[0]
    assert len([piece for piece in pieces if piece]) > 2, "one piece is no stream"
    assert reasons == ["length"] and usages[-1].completion_tokens == 14


def test_our_options(client: openai.OpenAI) -> None:
    options = {"sampler": "random", "steps": 2, "path": "viterbi", "infill": [2, 0.25]}
    want = alone("dadlm", seed=1, max_new_tokens=12, temperature=0.7, **options | {"infill": (2, 0.25)})
    answer = client.completions.create(
        model="dadlm", prompt=PROMPT, seed=1, max_tokens=12, temperature=0.7, extra_body=options
    )
    assert answer.choices[0].text == want.texts[0]
    assert answer.model_extra["dadlm"]["forward_passes"] == want.forward_passes[0]  # type: ignore[index]


def test_top_k(client: openai.OpenAI) -> None:
    how = {"seed": 3, "top_p": 1.0}
    answer = client.completions.create(
        model="dadlm", prompt=PROMPT, max_tokens=14, extra_body={"top_k": 2}, **how
    )
    assert answer.choices[0].text == alone("dadlm", max_new_tokens=14, top_k=2, **how).texts[0]
    assert answer.choices[0].text != alone("dadlm", max_new_tokens=14, **how).texts[0]


def test_several_prompts_and_choices_have_the_seeds_of_rows(client: openai.OpenAI) -> None:
    prompts = ["the ", "a dog"]
    want = alone("dadlm", [p for p in prompts for _ in range(2)], seed=20, max_new_tokens=8).texts
    answer = client.completions.create(model="dadlm", prompt=prompts, n=2, seed=20, max_tokens=8)
    assert [choice.text for choice in answer.choices] == want
    ids = [letters().encode(prompt) for prompt in prompts]
    answer = client.completions.create(model="dadlm", prompt=ids, n=2, seed=20, max_tokens=8)
    assert [choice.text for choice in answer.choices] == want
    texts = [""] * 4
    for chunk in client.completions.create(
        model="dadlm", prompt=prompts, n=2, seed=20, max_tokens=8, stream=True
    ):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == want


@pytest.mark.parametrize("prompt", ["", PROMPT])
def test_empty_prompt_and_echo(client: openai.OpenAI, prompt: str) -> None:
    answer = client.completions.create(model="ar", prompt=prompt, seed=3, max_tokens=5, echo=True)
    assert answer.choices[0].text == prompt + alone("ar", prompt, seed=3, max_new_tokens=5).texts[0]


def test_stop_cuts_before_it(client: openai.OpenAI) -> None:
    whole = alone("bd3lm", seed=9, max_new_tokens=24).texts[0]
    stop = next(whole[i : i + 2] for i in range(4, 20) if whole[i : i + 2].isascii())
    want = whole[: whole.index(stop)]
    answer = client.completions.create(model="bd3lm", prompt=PROMPT, seed=9, max_tokens=24, stop=[stop, "§§"])
    assert answer.choices[0].text == want and answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs(client: openai.OpenAI, stream: bool) -> None:
    """AR at its first token: the network's own distribution after the prompt."""
    options: dict[str, Any] = {"seed": 4, "max_tokens": 6, "logprobs": 3, "model": "ar", "prompt": PROMPT}
    answer = client.completions.create(stream=stream, **options)
    answers: Any = answer if stream else [answer]
    parts: list[Any] = [one.choices[0].logprobs for one in answers if one.choices[0].logprobs]
    tokens, scores, tops, offsets = (
        [value for part in parts for value in getattr(part, name)]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    )
    want = alone("ar", seed=4, max_new_tokens=6)
    texts = [letters().decode([id_]) for id_ in want.tokens[0]]
    whole = [i for i, text in enumerate(texts) if "\ufffd" not in text]
    assert whole and [tokens[i] for i in whole] == [texts[i] for i in whole]
    assert offsets == sorted(offsets) and offsets[0] == 0
    assert all(want.texts[0][offsets[i] :].startswith(texts[i]) for i in whole)
    model = letter_model("ar")
    with torch.inference_mode():
        hidden = model.read(torch.tensor([letters().encode(PROMPT)]))
        logp = model.head.token_logits(hidden[0, -1:], 0)[0].log_softmax(-1)
    assert scores[0] == pytest.approx(logp[want.tokens[0][0]].item(), abs=1e-4)
    assert sorted(tops[0].values(), reverse=True) == pytest.approx(logp.topk(3).values.tolist(), abs=1e-4)
    assert all(len(top) == 3 for top in tops)


def test_trace_carries_every_step(server: Running) -> None:
    fields = {"model": "dadlm", "prompt": PROMPT, "seed": 8, "max_tokens": 8}
    chunks = server.chunks("/v1/completions", trace=True, **fields)
    steps = [chunk["dadlm"]["step"] for chunk in chunks if "step" in chunk.get("dadlm", {})]
    want = list(
        dadlm.stream(letter_model("dadlm"), PROMPT, seed=8, settings=suited("dadlm", max_new_tokens=8))
    )
    assert [set(step) for step in steps] == [set(event.to_json()) for event in want]
    for name in ("block", "step", "ids", "texts", "anchor", "path", "fixed", "infilled"):
        assert [step[name] for step in steps] == [getattr(event, name) for event in want], name
    shown = [p for step in steps for group in step["top_tokens"] for node in group for *_, p in node]
    assert shown == [round(p, 5) for p in shown]


def test_blocks_carry_passes_and_tokens_so_far(server: Running) -> None:
    chunks = server.chunks("/v1/completions", model="bd3lm", prompt=PROMPT, seed=8, max_tokens=9)
    so_far = [(chunk["dadlm"]["forward_passes"], chunk["dadlm"].get("tokens")) for chunk in chunks]
    steps = list(
        dadlm.stream(letter_model("bd3lm"), PROMPT, seed=8, settings=suited("bd3lm", max_new_tokens=9))
    )
    lasts = [
        i for i, (one, two) in enumerate(pairwise([*steps, None]), 1) if not two or one.block < two.block
    ]
    start, end = len(letters().encode(PROMPT)), len(letters().encode(PROMPT)) + 9
    ends = [min(end, 4 * (steps[last - 1].block + 1)) - start for last in lasts]
    assert so_far[:-1] == list(zip(lasts, ends, strict=True))
    assert so_far[-1][0] == lasts[-1] and chunks[-1]["usage"]["completion_tokens"] == 9
    chunks = server.chunks("/v1/fill_gaps", model="bd3lm", parts=["the cat ", {"gap": 6}, " mat"], seed=8)
    assert [chunk["dadlm"]["forward_passes"] for chunk in chunks][-1] == chunks[-2]["dadlm"]["forward_passes"]
    assert chunks[-2]["dadlm"]["tokens"] == 6


def test_models(client: openai.OpenAI, server: Running) -> None:
    page = client.models.list()
    cards = list(page)
    assert [card.id for card in cards] == list(FAMILIES)
    assert client.models.retrieve("bd3lm") == cards[1]
    assert server.post("/v1/completions", prompt=PROMPT, max_tokens=4)[1]["model"] == "dadlm", "the first"
    with pytest.raises(openai.NotFoundError, match="unicorn"):
        client.models.retrieve("unicorn")
    model = letter_model("dadlm")
    assert cards[0].model_extra["dadlm"] == {  # type: ignore[index]
        "family": "dadlm",
        "block_size": 4,
        "candidates": 3,
        "edges": False,
        "context": 64,
        "modes": ["diffusion"],
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    for listed, (name, sampler) in zip(page.dadlm["samplers"], SAMPLERS.items(), strict=True):  # type: ignore
        assert (listed["name"], listed["summary"]) == (name, sampler.summary)
        defaults = {option["name"]: option["default"] for option in listed["options"]}
        assert defaults == {option: getattr(DecodeSettings(), option) for option in sampler.options}


def test_errors_are_those_that_the_client_knows(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="another"):
        client.completions.create(model="another", prompt="x")
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="ar", prompt="x", max_tokens=10_000)
    assert caught.value.param == "max_tokens" and caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize("family", ["dadlm", "bd3lm"])
def test_gaps_are_those_of_fill(server: Running, family: str) -> None:
    parts = ["the cat ", {"gap": 5}, " on the ", {"gap": 2}, "."]
    first, middle, last = (letters().encode(text) for text in ("the cat ", " on the ", "."))
    ids = [*first, *[0] * 5, *middle, *[0] * 2, *last]
    gaps = [(len(first), 5), (len(first) + 5 + len(middle), 2)]
    want = fill_gaps(
        letter_model(family), ids, gaps, seed=3, settings=suited(family, sampler="random", steps=2)
    )
    fields = {"model": family, "seed": 3, "parts": parts, "sampler": "random", "steps": 2}
    status, answer = server.post("/v1/fill_gaps", **fields)
    assert status == 200 and answer["object"] == "fill_gaps"
    old = server.post("/v1/infill", **fields)[1]
    assert old["object"] == "infill" and old["text"] == answer["text"]
    assert answer["text"] == want.text
    assert answer["gaps"] == [letters().decode(gap) for gap in want.gaps]
    assert answer["usage"]["completion_tokens"] == 7
    assert answer["dadlm"]["forward_passes"] == want.forward_passes
    chunks = server.chunks("/v1/fill_gaps", **fields)
    assert chunks[-1]["text"] == want.text and chunks[-1]["gaps"] == answer["gaps"]


def test_a_gap_may_come_first(server: Running) -> None:
    """The text then begins after an end of text, as an empty prompt does."""
    ending = letters().encode(" sat")
    want = fill_gaps(
        letter_model("dadlm"),
        [letters().eot_id, 0, 0, 0, *ending],
        [(1, 3)],
        seed=1,
        settings=suited("dadlm"),
    )
    status, answer = server.post("/v1/fill_gaps", model="dadlm", seed=1, parts=[{"gap": 3}, " sat"])
    assert status == 200 and answer["text"] == want.text and answer["text"].endswith(" sat")
    again = server.post("/v1/fill_gaps", model="dadlm", seed=1, parts=["", {"gap": 3}, " sat"])[1]
    assert again["gaps"] == answer["gaps"]
    status, answer = server.post("/v1/fill_gaps", model="ar", parts=["a", {"gap": 1}])
    assert status == 400 and answer["error"]["param"] == "parts", "an autoregressive model cannot"


def test_many_clients_get_what_each_would_get_alone(server: Running) -> None:
    """More than the rows hold, of all models, streamed and not."""

    def ask(i: int) -> bool:
        family, tokens = FAMILIES[i % 3], 4 + i % 9
        fields = {"model": family, "prompt": PROMPT, "seed": 100 + i, "max_tokens": tokens}
        want = alone(family, seed=100 + i, max_new_tokens=tokens).texts[0]
        if i % 2:
            return server.post("/v1/completions", **fields)[1]["choices"][0]["text"] == want
        chunks = server.chunks("/v1/completions", **fields)
        return "".join(chunk["choices"][0]["text"] for chunk in chunks) == want

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(ask, range(24)))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["<E6>", "<E6>", "o"], [0, 1, 2]),  # two halves of nothing are two characters
        (["<E6>", "<97>", "<A5>", "o"], [0, 0, 0, 1]),
        (["<FF>", "<E6>", "<97>", "<A5>", "o"], [0, 1, 1, 1, 2]),
        (["a", "<E6>", "<|endoftext|>"], [0, 1, 2]),
        (["<E6>", "<97>", "o", "o"], [0, 0, 1, 2]),
    ],
)
def test_text_offsets_after_half_a_character(names: list[str], expected: list[int]) -> None:
    """Each token's place in the whole text, also where bytes never become a character."""
    named = {letters().token_text(id_): id_ for id_ in range(letters().vocab_size)}
    assert offsets_of(letters(), [named[name] for name in names]) == expected


def test_text_offsets_with_byte_fallback() -> None:
    ids = byte_fallback().encode("a日b")
    assert offsets_of(byte_fallback(), ids) == [0, 1, 1, 1, 2]


def offsets_of(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    answer = Completion.__new__(Completion)
    answer.tokenizer = tokenizer
    tokens = [TokenLogprob(id_, -1.0, []) for id_ in ids]
    return answer._logprobs(Choice("", TextStream(tokenizer)), tokens)["text_offset"]


def test_text_offsets_with_split_characters() -> None:
    """A character split between tokens counts once, where it begins."""
    begun = letters().encode("日")[:1]
    ids = [*letters().encode(" in 日本 the cat 🙂 went"), *begun, *letters().encode("on")]
    text = letters().decode(ids)
    answer = Completion.__new__(Completion)
    answer.tokenizer = letters()
    tokens = [TokenLogprob(id_, -1.0, []) for id_ in ids]
    choice = Choice("", TextStream(letters()), 7)
    parts = answer._logprobs(choice, tokens[:5]), answer._logprobs(choice, tokens[5:])
    for token, at in zip(tokens, [at for part in parts for at in part["text_offset"]], strict=True):
        own = letters().decode([token.token])
        assert text[at - 7] in "日本🙂\ufffd" if "\ufffd" in own else text[at - 7 :].startswith(own)
