"""What one client can do to the others: large bodies, silent connections, too many requests."""

import json
import socket
import threading
import time
from collections import Counter
from contextlib import ExitStack
from typing import Any

import pytest
from pydantic import ValidationError
from tests.serve.fakes import FakeScheduler, committed, finished, serving
from tests.serve.running import Running, until

from dadlm.serve.schemas import CompletionBody, FillGapsBody
from dadlm.serve.server import _RESERVE, connections_possible

NAMES = {f"k{i}": 1 for i in range(90_000)}
HOSTILE: dict[str, Any] = {
    "ids": (CompletionBody, {"prompt": [[-1] * 5459] * 64}),
    "floats": (CompletionBody, {"prompt": [[1.5] * 4000] * 64}),
    "texts": (CompletionBody, {"prompt": [1] + ["x"] * 200_000}),
    "unknown": (CompletionBody, {"prompt": "x"} | NAMES),
    "options": (CompletionBody, {"prompt": "x", "stream": True, "stream_options": NAMES}),
    "bias": (CompletionBody, {"prompt": "x", "logit_bias": dict.fromkeys(NAMES, "x")}),
    "stop": (CompletionBody, {"prompt": "x", "stop": [1] * 300_000}),
    "gap": (FillGapsBody, {"parts": [{"gap": 1} | NAMES]}),
    "parts": (FillGapsBody, {"parts": [{"gap": 0}] * 256}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_few_errors_are_built_for_many_faults(name: str) -> None:
    schema, body = HOSTILE[name]
    with pytest.raises(ValidationError) as caught:
        schema.model_validate(body)
    assert caught.value.error_count() <= 8


@pytest.mark.parametrize("name", ["ids", "unknown"])
def test_large_wrong_bodies_do_not_keep_the_server_from_answering(name: str) -> None:
    """An error for each fault of one such body took the event loop 2.6 s and 590 MB."""
    body = json.dumps(HOSTILE[name][1], separators=(",", ":")).encode()
    answers: list[Any] = []
    with serving(FakeScheduler(committed("ab"), finished())) as server:

        def send() -> None:
            answers.append(server.ask("POST", "/v1/completions", body))

        clients = [threading.Thread(target=send) for _ in range(10)]
        for client in clients:
            client.start()
        longest = 0.0
        while any(client.is_alive() for client in clients):
            begin = time.monotonic()
            assert server.ask("GET", "/healthz")[0] == 200
            longest = max(longest, time.monotonic() - begin)
            time.sleep(0.02)
    assert [answer[0] for answer in answers] == [400] * 10
    assert longest < 2.5, "on a quiet machine it takes a tenth of a second; it was 17 s"


def open_stream(server: Running, address: str = "127.0.0.1") -> socket.socket:
    """A stream that lasts until its job ends."""
    return server.begin(address, prompt="x", stream=True)


def status_of(opened: socket.socket) -> int:
    return int(opened.recv(12).split()[1])


def test_silent_connections_are_closed_for_new_ones() -> None:
    with ExitStack() as stack:
        server = stack.enter_context(serving(FakeScheduler(committed("ab"), finished()), max_connections=8))
        for _ in range(60):
            stack.enter_context(server.connect())
        until(lambda: len(server.server.server_state.connections) >= 8 + _RESERVE)
        time.sleep(0.5)  # new ones might be about to ask
        assert server.ask("GET", "/healthz")[0] == server.ask("GET", "/readyz")[0] == 200
        assert server.post("/v1/completions", prompt="x")[0] == 200
        assert len(server.server.server_state.connections) <= 8 + _RESERVE


def test_silent_connections_are_closed_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dadlm.serve.server._FIRST_BYTE", 0.2)
    with serving(FakeScheduler()) as server, server.connect() as silent, server.connect() as slow:
        slow.sendall(b"GET /healthz HTTP/1.1\r\n")
        assert silent.recv(1) == b""
        slow.sendall(b"host: localhost\r\n\r\n")
        assert status_of(slow) == 200, "once it has sent something it has all of `patience`"


def test_one_request_too_many_is_503() -> None:
    with ExitStack() as stack:
        server = stack.enter_context(serving(FakeScheduler(), max_connections=4, max_per_address=4))
        streams = [stack.enter_context(open_stream(server)) for _ in range(4)]
        assert [status_of(stream) for stream in streams] == [200] * 4
        status, headers, answer = server.ask("POST", "/v1/completions", {"prompt": "x"})
        assert status == 503 and headers["retry-after"] and answer["error"]["code"] == "busy"
        assert server.ask("GET", "/healthz")[0] == server.ask("GET", "/readyz")[0] == 200
        for job in server.service.schedulers["fake"].jobs:
            job.put(finished())
        until(lambda: server.ask("GET", "/v1/models")[0] == 200)


def test_one_address_cannot_take_all() -> None:
    """Of 60 at once as many are served as one address may have, and another address still is."""
    with ExitStack() as stack:
        server = stack.enter_context(serving(FakeScheduler(), max_connections=40))
        streams = [stack.enter_context(open_stream(server)) for _ in range(60)]
        assert Counter(map(status_of, streams)) == {200: 30, 503: 30}
        assert status_of(stack.enter_context(open_stream(server, "127.0.0.2"))) == 200


@pytest.mark.parametrize(("hard", "possible"), [(4096, 1024), (600, 440), (100, 1)])
def test_connections_need_open_files(monkeypatch: pytest.MonkeyPatch, hard: int, possible: int) -> None:
    granted: list[Any] = []
    monkeypatch.setattr("resource.getrlimit", lambda kind: (256, hard))
    monkeypatch.setattr("resource.setrlimit", lambda kind, limits: granted.append(limits))
    assert connections_possible(1024) == possible
    assert granted == [(min(hard, 1024 + 160), hard)]
