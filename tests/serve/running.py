"""A real server for tests, in a thread, on a free port of 127.0.0.1."""

import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from tests.decode.tiny import silence_eot, tiny

from dadlm import Model
from dadlm.serve.app import create_app
from dadlm.serve.server import Server, open_socket
from dadlm.serve.service import Service
from dadlm.serve.settings import ServeSettings
from dadlm.tokens import Tokenizer
from dadlm.tokens.vocabularies import train_bpe

WAIT = 60.0  # seconds after which a test gives up; machines may be busy
START = 120.0  # seconds that a process, which may be Ray, has to start


@cache
def letters() -> Tokenizer:
    """Bytes and a few pairs: any text can be a prompt."""
    return train_bpe(["the cat sat on the mat and the dog ran to the hat "] * 3, 270, show_progress=False)


@cache
def letter_model(family: str, context: int = 64, **shape: Any) -> Model:
    """Texts run to their limit: end-of-text is silenced."""
    tokenizer = letters()
    model = tiny(family, vocab=tokenizer.vocab_size + 1, context=context, tokenizer=tokenizer, **shape)
    model.config = replace(model.config, eot_id=tokenizer.eot_id)
    return silence_eot(model)


def model_to_save(context: int) -> Model:
    """As `letter_model`, with a head whose bias, which silences end-of-text, can be saved."""
    return letter_model("bd3lm", context=context, architecture="bd3lm", tie_embedding=False)


class Running(NamedTuple):
    host: str
    port: int
    service: Service
    server: Server

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None):
        """(status, headers, body as JSON if it is, else bytes). bytes are sent as they are."""
        sent = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection = http.client.HTTPConnection(self.host, self.port, timeout=WAIT)
        try:
            connection.request(method, path, sent, {"content-type": "application/json"} | (headers or {}))
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        kind = answer.headers.get("content-type", "")
        return answer.status, answer.headers, json.loads(content) if "json" in kind else content

    def post(self, path: str, headers: dict[str, str] | None = None, /, **fields: Any):
        status, _, content = self.ask("POST", path, fields, headers)
        return status, content

    def chunks(self, path: str, /, **fields: Any) -> list[Any]:
        """The events of a stream, without `[DONE]`."""
        status, headers, content = self.ask("POST", path, fields | {"stream": True})
        assert status == 200, content
        assert headers["content-type"].startswith("text/event-stream")
        return events(content)

    def connect(self, address: str = "127.0.0.1") -> socket.socket:
        return socket.create_connection((self.host, self.port), WAIT, source_address=(address, 0))

    def begin(self, address: str = "127.0.0.1", /, **fields: Any) -> socket.socket:
        """A completion that was asked for; the answer is not read yet."""
        body, opened = json.dumps(fields).encode(), self.connect(address)
        opened.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n" % len(body) + body
        )
        return opened

    def drop_connections(self) -> None:
        """As when the network fails."""
        for one in list(self.server.server_state.connections):
            one.loop.call_soon_threadsafe(one.transport.abort)  # type: ignore[union-attr]


def events(content: bytes) -> list[Any]:
    lines = [line for line in content.decode().split("\n\n") if line and not line.startswith(":")]
    assert all(line.startswith("data: ") for line in lines), lines
    assert lines[-1] == "data: [DONE]", "a stream without an end"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


@contextmanager
def running(service: Service, api_key: str | None = None) -> Iterator[Running]:
    opened = open_socket(service.settings)
    server = Server(create_app(service, api_key), service)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]})
    thread.start()
    try:
        until(lambda: server.started)
        yield Running(*opened.getsockname()[:2], service, server)
    finally:
        server.should_exit = True
        thread.join(WAIT)
        assert not thread.is_alive(), "the server does not end"


@contextmanager
def process(*words: object, port: int = 0, **how: Any) -> Iterator[tuple[subprocess.Popen[str], Running]]:
    """`dadlm serve` as a process of its own, and how to ask it; `how`: options of Popen."""
    command = [sys.executable, "-m", "dadlm.cli", "serve", "--port", str(port), "--json", *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **how) as started:
        late = threading.Timer(START, started.kill)
        late.start()
        try:
            assert started.stdout is not None
            line = started.stdout.readline()
            assert line, started.stderr and started.stderr.read()
            late.cancel()
            port = int(json.loads(line)["url"].rsplit(":", 1)[1].strip("/"))
            yield started, Running("127.0.0.1", port, None, None)  # type: ignore[arg-type]
        finally:
            late.cancel()
            if started.poll() is None:
                started.kill()


def settings(**changes: Any) -> ServeSettings:
    return ServeSettings(**{"port": 0, "grace": 5.0, "patience": 20.0, **changes})


def until(true, seconds: float = WAIT) -> None:
    """Wait for something to become true, but not for ever."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)
