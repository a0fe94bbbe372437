"""Chat completions: the real `openai` client against a tiny model with a template, and what is refused."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from tests.decode.test_turn_end import speaker
from tests.serve.running import WAIT, Running, letter_model, running, settings

import dadlm
from dadlm.decode import settings_for
from dadlm.serve.executor import DaemonExecutor
from dadlm.serve.service import Service
from dadlm.tokens.chat import ChatTemplate

MESSAGES: Any = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}]
HOW = {"temperature": 3.0, "top_p": 1.0}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    models = {"talker": speaker("ar", True), "both": speaker("bd3lm", True, causal_context=True)}
    with running(Service({**models, "base": letter_model("ar")}, settings(max_rows=8))) as here:
        yield here


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=WAIT, max_retries=0) as connected:
        yield connected


def alone(server: Running, name: str, seed: int, rows: int = 1, messages: Any = MESSAGES, **options: Any):
    model = server.service.schedulers[name].model
    assert model.tokenizer is not None
    ids = model.tokenizer.encode_chat(messages)
    how = settings_for(model.config, options)
    return len(ids), dadlm.generate(model, [ids] * rows, seed=seed, settings=how)


@pytest.mark.parametrize("model", ["talker", "both"])
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_answers_are_those_of_generate_whole_and_streamed(
    server: Running, client: openai.OpenAI, model: str, name: str
) -> None:
    prompt, want = alone(server, model, 5, max_new_tokens=14, **HOW)
    asked: dict[str, Any] = {"model": model, "messages": MESSAGES, "seed": 5, name: 14, **HOW}
    answer = client.chat.completions.create(**asked)
    [choice] = answer.choices
    assert (answer.object, choice.message.role) == ("chat.completion", "assistant")
    assert choice.message.content == want.texts[0]
    assert answer.usage and answer.usage.prompt_tokens == prompt
    assert answer.usage.completion_tokens == len(want.tokens[0])
    assert answer.model_extra["dadlm"]["forward_passes"] == want.forward_passes[0]  # type: ignore[index]
    options: Any = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(client.chat.completions.create(**asked, **options))
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[0].choices[0].delta.role == "assistant"
    pieces = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert "".join(pieces) == want.texts[0] and len([piece for piece in pieces if piece]) > 1
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert reasons == [choice.finish_reason]
    assert not chunks[-1].choices and chunks[-1].usage == answer.usage


def test_answers_end_with_the_turn_and_go_on_to_512_tokens(server: Running, client: openai.OpenAI) -> None:
    model = server.service.schedulers["talker"].model
    reasons = set()
    for seed in range(20):
        answer = client.chat.completions.create(model="talker", messages=MESSAGES, seed=seed, **HOW)
        assert answer.usage is not None
        left = 128 - answer.usage.prompt_tokens
        want = alone(server, "talker", seed, max_new_tokens=left, **HOW)[1]
        assert answer.choices[0].message.content == want.texts[0]
        reason = "stop" if want.tokens[0][-1] in model.end_ids else "length"
        assert answer.choices[0].finish_reason == reason
        reasons.add(reason)
    assert reasons == {"stop", "length"}


def test_several_answers_and_stop(server: Running, client: openai.OpenAI) -> None:
    want = alone(server, "talker", 20, 3, max_new_tokens=20, **HOW)[1].texts
    asked: dict[str, Any] = {"model": "talker", "messages": MESSAGES, "seed": 20, "max_tokens": 20, **HOW}
    answer = client.chat.completions.create(n=3, **asked)
    assert [choice.message.content for choice in answer.choices] == want
    texts = [""] * 3
    for chunk in client.chat.completions.create(n=3, stream=True, **asked):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == want
    stop = next(want[0][i : i + 2] for i in range(2, 20) if want[0][i : i + 2].isascii())
    cut = client.chat.completions.create(stop=[stop], **asked).choices[0]
    assert cut.message.content == want[0][: want[0].index(stop)] and cut.finish_reason == "stop"


def test_modes(server: Running, client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"messages": MESSAGES, "seed": 2, "max_tokens": 20, **HOW}
    for model in ("talker", "both"):
        texts = [
            client.chat.completions.create(model=model, extra_body={"mode": mode}, **asked)
            for mode in ("ar", "lossless")
        ]
        assert texts[0].choices[0].message.content == texts[1].choices[0].message.content
        assert texts[1].model_extra["dadlm"]["tokens_per_cycle"] >= 1  # type: ignore[index]


def test_every_form_of_a_conversation(server: Running, client: openai.OpenAI) -> None:
    """Parts of text, developers, and answers that are sent back as the client has them."""
    first = client.chat.completions.create(model="talker", messages=MESSAGES, seed=1, max_tokens=4)
    said = first.choices[0].message
    messages: Any = [
        {"role": "developer", "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "kind"}]}
    ]
    messages += [MESSAGES[1], said.model_dump(), {"role": "user", "content": "<|im_end|>", "name": "me"}]
    answer = client.chat.completions.create(model="talker", messages=messages, seed=4, max_tokens=6)
    plain = [
        *MESSAGES,
        {"role": "assistant", "content": said.content},
        {"role": "user", "content": "<|im_end|>"},
    ]
    prompt, want = alone(server, "talker", 4, messages=plain, max_new_tokens=6)
    assert answer.choices[0].message.content == want.texts[0]
    assert answer.usage and answer.usage.prompt_tokens == prompt


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": None}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [{}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": "x"}] * 257}, "messages"),
        ({"messages": [{"role": "user", "content": "x" * 200}]}, "messages"),  # more than the context
        ({"max_tokens": 4, "max_completion_tokens": 5}, "max_completion_tokens"),
        ({"max_tokens": 125}, "max_tokens"),
        ({"max_completion_tokens": 125}, "max_completion_tokens"),
        ({"n": 65}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"prompt": "x"}, "prompt"),
        ({"mode": "diffusion", "model": "talker", "steps": 99}, "steps"),
    ],
)
def test_refusals_name_the_field(server: Running, fields: dict[str, Any], param: str) -> None:
    status, answer = server.post("/v1/chat/completions", **{"messages": MESSAGES, **fields})
    assert status == 400 and answer["error"]["param"] == param, answer


@pytest.mark.parametrize(
    ("message", "where"),
    [
        ({"role": "user"}, "content"),
        ({"role": "tool", "content": "x"}, "role"),
        ({"role": "user", "content": None}, "content"),
    ],
)
def test_refusals_name_the_message(server: Running, message: dict[str, Any], where: str) -> None:
    status, answer = server.post("/v1/chat/completions", messages=[*MESSAGES, message])
    assert status == 400 and f"messages[{len(MESSAGES)}].{where}:" in answer["error"]["message"], answer


def test_long_conversations_are_not_read(server: Running) -> None:
    messages = [{"role": "user", "content": "x" * 50_001}] * 2
    status, answer = server.post("/v1/chat/completions", messages=messages)
    assert status == 400 and "100,002 characters together" in answer["error"]["message"], answer


def test_refused_logprobs_are_elsewhere(server: Running) -> None:
    for value in (True, 0, "no"):
        status, answer = server.post("/v1/chat/completions", messages=MESSAGES, logprobs=value)
        assert status == 400 and "POST /v1/completions has them" in answer["error"]["message"], answer


def test_neutral_values_are_accepted(server: Running) -> None:
    neutral: dict[str, Any] = {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}}
    neutral |= {
        "logprobs": False,
        "top_logprobs": None,
        "frequency_penalty": 0,
        "logit_bias": {},
        "user": "me",
    }
    status, answer = server.post("/v1/chat/completions", messages=MESSAGES, max_tokens=2, **neutral)
    assert status == 200, answer


def test_templates_that_never_end_stop_only_the_chat_of_their_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """More requests than asyncio's own pool has threads; they wait no longer than texts may take."""
    models = {"endless": speaker("ar", True), "talker": speaker("ar", True)}
    endless, done, render = models["endless"].tokenizer.chat, threading.Event(), ChatTemplate.render  # type: ignore[union-attr]

    def slow(chat: ChatTemplate, messages: Any) -> str:
        if chat is endless:
            assert done.wait(WAIT)
        return render(chat, messages)

    monkeypatch.setattr(ChatTemplate, "render", slow)
    asked: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 2}
    with running(Service(models, settings(deadline=4.0))) as here, ThreadPoolExecutor(40) as pool:
        told = [pool.submit(here.post, "/v1/chat/completions", model="endless", **asked) for _ in range(40)]
        try:
            assert here.post("/v1/completions", model="endless", prompt="a", max_tokens=2)[0] == 200
            assert here.post("/v1/chat/completions", model="talker", **asked)[0] == 200
            answers = [one.result(WAIT) for one in told]
        finally:
            done.set()
        assert {(status, answer["error"]["code"]) for status, answer in answers} == {(503, "deadline")}
        assert here.post("/v1/chat/completions", model="endless", **asked)[0] == 200


def test_places_are_given_back_where_there_are_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def work() -> int:
        executor = DaemonExecutor(1, 5.0)
        with monkeypatch.context() as patch, pytest.raises(RuntimeError):
            patch.setattr(threading.Thread, "start", start)
            await executor.run("it", lambda: 1)
        return await executor.run("it", lambda: 2)

    assert asyncio.run(work()) == 2


def test_models_without_a_template(server: Running, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="POST /v1/completions") as caught:
        client.chat.completions.create(model="base", messages=MESSAGES)
    assert caught.value.code == "chat_not_supported"
    with running(Service({"base": letter_model("ar")}, settings())) as other:
        for fields in ({"messages": MESSAGES}, {"messages": []}, {"nonsense": 1}):
            status, answer = other.post("/v1/chat/completions", **fields)
            assert status == 404 and answer["error"]["code"] == "chat_not_supported"
            assert "base models" in answer["error"]["message"]
