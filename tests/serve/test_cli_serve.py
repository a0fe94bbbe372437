"""`dadlm serve` as a process: models, keys, signals, errors."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from tests.commands import Cli, refused
from tests.serve.running import WAIT, events, letter_model, until

import dadlm
from dadlm import Model
from dadlm.cli.serve import _sources

PROMPT = "the cat "


def long_model() -> Model:
    """Long enough a context that a signal comes in the midst of a text; a head whose bias can be saved."""
    return letter_model("bd3lm", context=2048, architecture="bd3lm", tie_embedding=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("models") / "long"
    dadlm.save(long_model(), where)
    return where


@contextmanager
def process(*words: object) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The server and its port."""
    command = [sys.executable, "-m", "dadlm.cli", "serve", "--port", "0", "--json", *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        try:
            assert started.stdout is not None and started.stderr is not None
            line = started.stdout.readline()
            assert line, started.stderr.read()
            yield started, int(json.loads(line)["url"].rsplit(":", 1)[1].strip("/"))
        finally:
            if started.poll() is None:
                started.kill()


class Client(threading.Thread):
    """Asks for a long text; keeps whatever came."""

    def __init__(self, port: int, seed: int, tokens: int, stream: bool) -> None:
        super().__init__()
        self.port, self.stream = port, stream
        self.fields = {"prompt": PROMPT, "seed": seed, "max_tokens": tokens, "stream": stream}
        self.begun = threading.Event()
        self.status, self.content = 0, b""

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT)
        headers = {"content-type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(self.fields), headers)
        if not self.stream:
            self.begun.set()
        answer = connection.getresponse()
        self.status = answer.status
        while piece := answer.read1(1000):
            self.begun.set()
            self.content += piece
        connection.close()

    @property
    def chunks(self) -> list[Any]:
        return events(self.content) if self.stream else [json.loads(self.content)]


def submitted(port: int) -> float:
    """How many texts the server has been asked for: a request that is sent has not arrived yet."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=WAIT) as answer:
        text = answer.read().decode()
    return float(re.findall(r"^dadlm_submitted_total\{.*\} (.*)$", text, re.M)[0])


def end_under_load(port: int, server: subprocess.Popen[str], tokens: int) -> list[Client]:
    """Send SIGTERM when every client's text is being written; wait for all of them and for the server."""
    clients = [Client(port, seed, tokens, stream=seed % 4 > 0) for seed in range(8)]
    for client in clients:
        client.start()
    for client in clients:
        assert client.begun.wait(WAIT)
    until(lambda: submitted(port) == len(clients))
    assert any(client.is_alive() for client in clients), "this is no load"
    server.send_signal(signal.SIGTERM)
    for client in clients:
        client.join(WAIT)
        assert not client.is_alive(), "a client waits for ever"
    assert server.wait(WAIT) == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=WAIT)
    return clients


def test_sigterm_lets_texts_finish(folder: Path) -> None:
    want = dadlm.generate(long_model(), [PROMPT] * 8, seed=0, max_new_tokens=160).texts
    with process("--model", folder, "--grace", WAIT) as (server, port):
        clients = end_under_load(port, server, 160)
    for client, text in zip(clients, want, strict=True):
        assert client.status == 200
        assert "".join(chunk["choices"][0]["text"] for chunk in client.chunks) == text


def test_sigterm_reports_texts_it_cannot_finish(folder: Path) -> None:
    with process("--model", folder, "--grace", 0.2) as (server, port):
        clients = end_under_load(port, server, 2000)
        assert server.stderr is not None
        log = server.stderr.read()
    for client in clients:
        assert client.chunks[-1]["error"]["code"] == "shutdown"
        assert client.status == (200 if client.stream else 503)
    assert PROMPT.strip() not in log and "Traceback" not in log


def test_clear_errors(cli: Cli, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(cli("serve", "--model", folder, folder), "NAME=FOLDER")
    refused(cli("serve", "--model", "=x"), "NAME=FOLDER")
    refused(cli("serve", "--port", 0, "--model", f"a={tmp_path}"), "not a model folder")
    refused(cli("serve", "--model", folder, "--replicas", 0), "replicas")
    refused(cli("serve", "--model", folder, "--max-rows", 0), "max_rows")
    refused(cli("serve", "--model", folder, "--api-key-file", tmp_path / "absent"), "absent")
    (tmp_path / "short").write_text("key\n")
    refused(cli("serve", "--model", folder, "--api-key-file", tmp_path / "short"), "8 characters")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        refused(cli("serve", "--model", folder, "--port", taken.getsockname()[1]), "in use")
    refused(cli("serve", "--model", folder, "--replicas", 2, "--port", 0), "--port")
    monkeypatch.setitem(sys.modules, "ray", None)
    refused(cli("serve", "--model", folder, "--replicas", 2), r"pip install 'dadlm\[serve,ray\]'")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "dadlm.serve.server")
    refused(cli("serve", "--model", folder), r"pip install 'dadlm\[serve\]'")


def test_warns_if_others_can_call_without_a_key(
    cli: Cli, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[Any] = []
    monkeypatch.setattr("dadlm.cli.serve._serve", lambda *given: served.append(given))
    assert "no API key" in cli("serve", "--model", folder, "--host", "0.0.0.0").err
    (tmp_path / "key").write_text("a-key-of-tests \n")  # without the white space
    words = ["--model", f"a={folder}", folder, "--host", "0.0.0.0", "--api-key-file", "key"]
    assert cli("serve", *words) == (0, "", "")
    monkeypatch.setenv("DADLM_API_KEY", "another-key ")
    assert cli("serve") == (0, "", "")
    sources, keys = [given[1] for given in served], [given[2] for given in served]
    assert keys == [None, "a-key-of-tests", "another-key"]
    assert sources[2] == {name: name for name in ("dadlm", "bd3lm", "ar")}, "all that ship"
    assert sources[1] == {"a": str(folder), "long": str(folder)}


def test_a_folder_is_called_by_its_own_name(tmp_path: Path) -> None:
    """A path may contain an equals sign, and a link is not followed."""
    folder = tmp_path / "lr=3e-4" / "step-00000400"
    folder.mkdir(parents=True)
    best = folder.with_name("best")
    best.symlink_to(folder)
    assert _sources((str(best), "name=dadlm", "ar")) == {"best": str(best), "name": "dadlm", "ar": "ar"}
