"""The HTTP server's answers, refusals and limits, with a fake scheduler."""

import json
import logging
import random
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.datastructures import Headers
from tests.serve.fakes import FakeScheduler, committed, finished, serving
from tests.serve.running import Running, events, settings, until

from dadlm.decode import StepEvent
from dadlm.errors import ConfigError
from dadlm.serve import respond
from dadlm.serve.middleware import Guard
from dadlm.serve.refusals import Refusal
from dadlm.serve.request import Committed, QueueFull, ShuttingDown, TokenLogprob
from dadlm.serve.settings import ServeSettings

KEY = "a-key-of-tests"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    scheduler = FakeScheduler(committed("ab"), committed("cd"), finished())
    with serving(scheduler) as here:
        yield here


BAD_VALUES: dict[str, list[Any]] = {
    "prompt": [5, None, [], [[]], [True], [10**30], [270], {"a": 1}, "x" * 64, ["x"] * 65],
    "max_tokens": [64, 0, 2.5, "4"],
    "temperature": [-1, float("nan"), float("inf"), True],
    "top_p": [0, 1.01],
    "top_k": [0, 1.5],
    "n": [0],
    "seed": [2**64],
    "stop": ["", "a" * 101],
    "logprobs": [6],
    "stream": ["yes"],
    "trace": [True],
    "stream_options": [{"include_usage": True}],
    "sampler": ["best"],
    "steps": [5],  # more than the block has tokens
    "threshold": [0.5],  # of another sampler than the default
    "infill": [[1], [0, 0.5], [1, 2]],
    "path": [1],
    "suffix": ["y"],
    "best_of": [2],
    "presence_penalty": [0.1],
    "logit_bias": [{"5": 1}],
    "model": [5],
    "colour": ["red"],
}
BAD_PARTS: dict[str, list[Any]] = {  # message: values
    "list": ["text"],
    "at least 1": [[]],
    "no gap": [["no gap"]],
    "greater than": [[{"gap": 0}]],
    "context": [[{"gap": 64}], ["a", {"gap": 100_000}], ["x" * 60, {"gap": 5}]],
    "parts": [[{"gap": 1, "more": 2}], [None]],
}
BAD = [
    ({}, "prompt", "prompt"),
    ({"prompt": "half a character: \ud83d"}, "prompt", "prompt"),
    ({"prompt": "x" * 100_001}, "prompt", "prompt"),
    ({"prompt": [-1]}, "prompt", "greater than or equal"),
    ({"prompt": [1, "a"]}, "prompt", "matches none of the accepted forms"),
    ({"prompt": ["x"] * 60, "n": 2}, "n", "n"),
    ({"prompt": "x", "stop": ["a"] * 5}, "stop", "stop: List should have at most 4 items"),
    ({"prompt": "x", "logprobs": 1, "echo": True}, "echo", "echo"),
    ({"prompt": "x", "stream": True, "stream_options": {"other": True}}, "stream_options", "stream_options"),
    ({"prompt": "x", "sampler": "random", "steps": 5}, "steps", "steps"),  # more than the block has tokens
]
BAD += [({"prompt": "x", name: value}, name, name) for name, values in BAD_VALUES.items() for value in values]
BAD += [({"parts": value}, "parts", message) for message, values in BAD_PARTS.items() for value in values]


@pytest.mark.parametrize(("body", "param", "message"), BAD, ids=lambda value: ascii(value)[:40])
def test_bad_field_is_refused_by_name(
    server: Running, body: dict[str, Any], param: str, message: str
) -> None:
    """And a message is about the form that was sent."""
    begun = len(server.service.schedulers["fake"].jobs)  # type: ignore[attr-defined]
    status, answer = server.post("/v1/fill_gaps" if "parts" in body else "/v1/completions", **body)
    assert status == 400 and answer["error"]["param"] == param
    assert message in answer["error"]["message"] and param in answer["error"]["message"]
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert len(server.service.schedulers["fake"].jobs) == begun  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe\x00", b'{"prompt": "\xff"}', b"[" * 200_000),
        *(b'{"prompt": ' + b"9" * 10_000 + b"}", b'{"a":' * 50_000, b'{"prompt": "a"} {}', b"\x00"),
    ],
    ids=lambda body: ascii(body[:12]),
)
def test_a_body_that_is_no_object_is_refused(server: Running, body: bytes) -> None:
    status, _, answer = server.ask("POST", "/v1/completions", body)
    assert status == 400 and "body" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        *(("text/plain", 400), ("", 400), ("application/x-www-form-urlencoded", 400)),
        *(("application/json; charset=utf-8", 200), ("application/x+json", 200)),
    ],
)
def test_only_json_is_accepted(server: Running, kind: str, status: int) -> None:
    """A page of another origin can send the first three without a preflight."""
    body = json.dumps({"prompt": "x"}).encode()
    assert server.ask("POST", "/v1/completions", body, {"content-type": kind})[0] == status


def test_neutral_values_of_what_is_not_supported_are_accepted(server: Running) -> None:
    neutral = {"best_of": 1, "frequency_penalty": 0.0, "presence_penalty": 0, "logit_bias": {}}
    neutral |= {"user": "someone"} | dict.fromkeys(("suffix", "n", "stop", "temperature"))
    assert server.post("/v1/completions", prompt="x", **neutral)[0] == 200


def test_a_large_body_is_refused_and_the_server_goes_on(server: Running) -> None:
    for size in ((1 << 20) + 1, 3 << 20):
        status, _, answer = server.ask("POST", "/v1/completions", b" " * size)
        assert status == 413 and answer["error"]["param"] == "body"
    assert server.post("/v1/completions", prompt="x")[0] == 200


def test_unknown_places_and_methods(server: Running) -> None:
    assert server.ask("GET", "/v2")[0] == 404
    assert server.ask("GET", "/v1/completions")[0] == 405
    status, answer = server.post("/v1/chat/completions", messages=[])
    assert status == 404 and answer["error"]["code"] == "chat_not_supported"
    assert (
        "POST /v1/completions" in answer["error"]["message"] and "base models" in answer["error"]["message"]
    )
    assert server.ask("GET", "/static/../settings.py")[0] == 404
    status, answer = server.post("/v1/completions", prompt="x", model="another")
    assert status == 404 and answer["error"]["param"] == "model" and "fake" in answer["error"]["message"]


def test_random_bytes_do_no_harm(server: Running) -> None:
    chance = random.Random(0)
    for size in (1, 10, 1000, 100_000):
        with server.connect() as opened:
            try:
                opened.sendall(chance.randbytes(size) + b"\r\n\r\n")
                opened.recv(1000)
            except ConnectionError:
                pass  # closed on us, as it should be
    assert server.ask("GET", "/healthz")[0] == 200


def test_whole_answer_and_its_account(server: Running) -> None:
    status, answer = server.post("/v1/completions", prompt=["x", "y"], n=2, seed=7, echo=True)
    assert status == 200
    assert [choice["text"] for choice in answer["choices"]] == ["xabcd", "xabcd", "yabcd", "yabcd"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"] == {"prompt_tokens": 6, "completion_tokens": 16, "total_tokens": 22}
    assert [choice["seed"] for choice in answer["dadlm"]["choices"]] == [7, 8, 9, 10]
    assert answer["dadlm"]["forward_passes"] == 8 and answer["dadlm"]["tokens_per_forward"] == 2.0
    assert answer["dadlm"]["seconds"] == 0.75


def test_stream_tells_the_account_with_the_last_reason(server: Running) -> None:
    chunks = server.chunks("/v1/completions", prompt="x", n=2, stream_options={"include_usage": True})
    texts = ["", ""]
    for chunk in chunks[:-1]:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == ["abcd", "abcd"]
    ends = [chunk for chunk in chunks[:-1] if chunk["choices"][0]["finish_reason"]]
    assert [chunk["choices"][0]["finish_reason"] for chunk in ends] == ["length", "length"]
    assert "usage" not in ends[0] and ends[1]["usage"]["completion_tokens"] == 8
    assert ends[1]["dadlm"]["forward_passes"] == 4
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == ends[1]["usage"]


def test_queue_full_is_429_unless_so_many_can_never_wait() -> None:
    scheduler = FakeScheduler(refusal=QueueFull(3, 4.2), accepted=2)
    with serving(scheduler, max_queue=3) as server:
        status, headers, answer = server.ask("POST", "/v1/completions", {"prompt": "x", "n": 3})
        assert status == 429 and headers["retry-after"] == "5" and answer["error"]["code"] == "queue_full"
        assert scheduler.cancelled == [True, True], "all or none"
        status, answer = server.post("/v1/completions", prompt="x", n=4)
        assert status == 400 and answer["error"]["param"] == "n"


@pytest.mark.parametrize(("error", "status"), [(ShuttingDown("going"), 503), (ConfigError("odd"), 400)])
def test_refusals_of_the_scheduler(error: Exception, status: int) -> None:
    with serving(FakeScheduler(refusal=error)) as server:
        got, answer = server.post("/v1/completions", prompt="x")
        assert got == status and str(error) in answer["error"]["message"]


@pytest.mark.parametrize(("reason", "status"), [("error", 500), ("deadline", 503), ("shutdown", 503)])
def test_a_text_that_cannot_be_finished_is_an_error(reason: str, status: int) -> None:
    scheduler = FakeScheduler(committed("ab"), finished(reason, message="it broke"))
    with serving(scheduler) as server:
        got, answer = server.post("/v1/completions", prompt="x")
        assert got == status and answer["error"]["code"] == reason
        chunks = server.chunks("/v1/completions", prompt="x", trace=True)
        assert chunks[0]["choices"][0]["text"] == "ab" and chunks[-1]["error"]["code"] == reason


@pytest.mark.parametrize("options", [{}, {"logprobs": 1}, {"stream": True}, {"stream": True, "trace": True}])
def test_numbers_that_json_cannot_hold_are_an_error(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """A model whose weights are not finite: the client gets an error and does not wait forever."""
    nan = float("nan")
    top = [[[(1, "a", nan)]]]
    step = StepEvent(
        0, 0, [1], ["a"], [False], top, [[[nan]]], [0], [True], [False], [1], ["a"], [nan], [nan]
    )
    block = Committed([1], "a", [TokenLogprob(1, nan, [(1, nan)])], 1)
    with serving(FakeScheduler(step, block, finished())) as server:
        status, _, answer = server.ask("POST", "/v1/completions", {"prompt": "x"} | options)
        if "stream" in options:
            assert status == 200
            answer = events(answer)[-1]
        else:
            assert status == 500
    assert answer["error"]["type"] == "server_error"
    assert "ValueError" in caplog.text, "the log names the error"


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_cancels_its_jobs(stream: bool) -> None:
    scheduler = FakeScheduler(committed("ab"))
    with serving(scheduler) as server:
        with server.begin(prompt="x", n=2, stream=stream) as opened:
            if stream:
                assert opened.recv(1000).startswith(b"HTTP/1.1 200")
            until(lambda: len(scheduler.jobs) == 2)
            assert scheduler.cancelled == [False, False]
        until(lambda: scheduler.cancelled == [True, True], respond._KEEP_ALIVE - 1)  # not by writing in vain


def test_silence_is_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(respond, "_KEEP_ALIVE", 0.05)
    scheduler = FakeScheduler()
    with serving(scheduler) as server, server.begin(prompt="x", stream=True) as opened:
        seen = b""
        while seen.count(b": waiting\n\n") < 2:
            seen += opened.recv(1000)
        scheduler.jobs[0].put(finished())
        while b"[DONE]" not in seen:
            seen += opened.recv(1000)


def test_key(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with serving(FakeScheduler(committed("ab"), finished()), api_key=KEY) as server:
        for header in ({}, {"authorization": f"Bearer {KEY}x"}, {"authorization": KEY}):
            status, headers, answer = server.ask("POST", "/v1/completions", {"prompt": "x"}, header)
            assert status == 401 and answer["error"]["code"] == "invalid_api_key"
            assert headers["www-authenticate"] == "Bearer"
        assert server.ask("GET", "/v1/models")[0] == server.ask("GET", "/metrics")[0] == 401
        for path in ("/healthz", "/readyz", "/", "/docs", "/docs.css", "/openapi.json"):
            assert server.ask("GET", path)[0] == 200
        right = {"authorization": f"Bearer {KEY}"}
        assert server.post("/v1/completions", right, prompt="a secret prompt")[0] == 200
    assert KEY not in caplog.text and "secret" not in caplog.text
    assert "/v1/completions 200" in caplog.text


@pytest.mark.parametrize("stream", [False, True])
def test_an_internal_error_does_not_quote_the_request(caplog: pytest.LogCaptureFixture, stream: bool) -> None:
    caplog.set_level(logging.DEBUG)
    with serving(FakeScheduler(refusal=RuntimeError("a secret prompt"))) as server:
        status, headers, answer = server.ask("POST", "/v1/completions", {"prompt": "x", "stream": stream})
    assert status == 500 and answer["error"]["type"] == "server_error"
    assert "secret" not in json.dumps(answer) + caplog.text
    assert f"{headers['x-request-id']} RuntimeError" in caplog.text and "fakes.py" in caplog.text


def test_paths_in_the_log_are_those_of_this_server(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dadlm.serve")
    ours = {"/": 200, "/v1/models": 200, "/static/main.js": 200, "/v1/completions": 405}
    others = ("/a-secret", "/static/a-secret", "/v1/models/a-secret")
    assert {path: server.ask("GET", path)[0] for path in ours} == ours
    assert all(server.ask("GET", path)[0] == 404 for path in others)
    assert server.ask("GET", "/v1/models", headers={"host": "evil.example"})[0] == 403  # not even looked at
    until(lambda: len(caplog.records) == 8)  # a line follows its answer, and may come after the next one's
    lines = sorted(" ".join(record.getMessage().split(" ")[1:3]) for record in caplog.records)
    expected = [f"{path} {status}" for path, status in ours.items()]
    assert lines == sorted([*expected, *["unknown 404"] * 3, "/v1/models 403"])


@pytest.mark.parametrize(("key", "names"), [(None, ()), (None, ("mine.example",)), (KEY, ())])
def test_open_to_others_without_a_key_names_are_checked(key: str | None, names: tuple[str, ...]) -> None:
    """Or a web page whose name is made to point here could call, and read the answers."""
    settings = ServeSettings(host="0.0.0.0", allowed_host=names)
    guard = Guard(lambda *_: None, key, settings)  # type: ignore[arg-type,return-value]

    def status(host: str) -> int | None:
        try:
            guard._check_access("/healthz", "GET", Headers({"host": host, "origin": f"http://{host}"}))
        except Refusal as refusal:
            return refusal.status

    assert [status(host) for host in ("192.0.2.7:8000", "[2001:db8::1]:8000", "localhost")] == [None] * 3
    assert status("evil.example") == (403 if key is None else None)
    assert status("mine.example:80") == (None if key or names else 403)


def test_host_names_have_no_case() -> None:
    """Browsers write them in small letters, whatever the operator has typed."""
    guard = Guard(lambda *_: None, None, ServeSettings(allowed_host=("Mine.Example",)))  # type: ignore[arg-type,return-value]
    for host in ("mine.example", "MINE.example:80", "LocalHost:8000"):
        guard._check_access("/healthz", "GET", Headers({"host": host}))


def test_other_pages_may_not_call_unless_named(server: Running) -> None:
    for header in ({"host": "evil.example"}, {"origin": "http://evil.example"}, {"origin": "null"}):
        status, headers, _ = server.ask("POST", "/v1/completions", {"prompt": "x"}, header)
        assert status == 403 and "access-control-allow-origin" not in headers
    own = {"origin": server.url}
    assert server.ask("POST", "/v1/completions", {"prompt": "x"}, own)[0] == 200
    assert server.ask("GET", "/healthz", headers={"host": "localhost:1"})[0] == 200
    page = "https://page.example"
    with serving(FakeScheduler(finished()), api_key=KEY, cors_origin=(page,)) as server:
        asks = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
        status, headers, _ = server.ask("OPTIONS", "/v1/completions", headers={"origin": page} | asks)
        assert status == 200 and headers["access-control-allow-origin"] == page
        other = {"origin": "https://x.example"} | asks
        assert server.ask("OPTIONS", "/v1/completions", headers=other)[0] >= 400
        right = {"origin": page, "authorization": f"Bearer {KEY}"}
        status, headers, _ = server.ask("POST", "/v1/completions", {"prompt": "x"}, right)
        assert status == 200 and headers["access-control-allow-origin"] == page


def test_page_has_security_headers(server: Running) -> None:
    status, headers, content = server.ask("GET", "/")
    assert status == 200 and content.startswith(b"<!doctype html>") and len(headers["x-request-id"]) == 32
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


def test_not_ready_when_a_scheduler_has_died_or_the_end_has_come(server: Running) -> None:
    scheduler: Any = server.service.schedulers["fake"]
    assert server.ask("GET", "/readyz")[0] == 200
    scheduler.alive = False
    assert server.ask("GET", "/readyz")[0] == server.ask("GET", "/healthz")[0] == 503
    scheduler.alive = True
    server.service.running = False
    assert server.ask("GET", "/readyz")[0] == 503 and server.ask("GET", "/healthz")[0] == 200
    server.service.running = True


def is_closed(connection: socket.socket, sent: bytes) -> bool:
    """Whether the other side takes no more."""
    time.sleep(0.1)
    try:
        return bool(connection.sendall(sent))
    except ConnectionError:
        return True


def test_slow_heads_and_bodies_are_closed() -> None:
    scheduler = FakeScheduler(finished())
    begin = time.monotonic()
    with serving(scheduler, patience=1.0) as server, server.connect() as head, server.connect() as body:
        body.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{")
        head.sendall(b"GET /healthz HTTP/1.1\r\n")
        until(lambda: is_closed(head, b"x: y\r\n"))  # now and then a little: that does not help
        assert body.recv(1000).startswith(b"HTTP/1.1 408")
        assert time.monotonic() - begin > 0.9


def test_a_connection_refused_before_its_body_is_closed() -> None:
    with serving(FakeScheduler(), api_key="open sesame", patience=1.0) as server, server.connect() as opened:
        opened.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999\r\n\r\n{")
        assert opened.recv(1000).startswith(b"HTTP/1.1 401")
        until(lambda: is_closed(opened, b" "))


def test_a_client_that_does_not_read_is_cancelled() -> None:
    scheduler = FakeScheduler(*[committed("x" * 100_000)] * 100)
    with serving(scheduler, patience=1.0) as server, server.begin(prompt="x", stream=True):
        until(lambda: scheduler.cancelled == [True])


@pytest.mark.parametrize(
    "wrong",
    [
        *({"port": 65536}, {"max_rows": 0}, {"grace": -1}, {"patience": 0}, {"patience": float("nan")}),
        *({"deadline": 0}, {"cors_origin": ("example.org",)}, {"cors_origin": ("https://a.b/c",)}),
    ],
    ids=str,
)
def test_settings_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        settings(**wrong)


def test_loopback() -> None:
    assert all(settings(host=host).loopback for host in ("127.0.0.1", "localhost", "::1", "127.1.2.3"))
    assert not any(settings(host=host).loopback for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"))
