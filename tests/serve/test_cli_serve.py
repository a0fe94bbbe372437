"""`dadlm serve` as a process: models, keys, signals, errors."""

import re
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from tests.commands import Cli, refused
from tests.serve.running import WAIT, Running, events, model_to_save, process, until

import dadlm
from dadlm import Model
from dadlm.cli.serve import _sources
from dadlm.decode import settings_for
from dadlm.model.pretrained import NAMES

PROMPT = "the cat "


def long_model() -> Model:
    """Long enough a context that a signal comes in the midst of a text."""
    return model_to_save(context=2048)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("models") / "long"
    dadlm.save(long_model(), where)
    return where


def submitted(server: Running) -> float:
    """How many texts the server has been asked for: a request that is sent has not arrived yet."""
    text = server.ask("GET", "/metrics")[2].decode()
    return float(re.findall(r"^dadlm_submitted_total\{.*\} (.*)$", text, re.M)[0])


def end_under_load(started: subprocess.Popen[str], server: Running, tokens: int) -> list[tuple[int, list]]:
    """SIGTERM while 8 texts are written; status and chunks of each, when they and the server have ended."""
    fields = {"prompt": PROMPT, "max_tokens": tokens}
    asked = [fields | {"seed": seed, "stream": seed % 4 > 0} for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        clients = [pool.submit(server.ask, "POST", "/v1/completions", one) for one in asked]
        until(lambda: submitted(server) == len(clients))
        assert not all(client.done() for client in clients), "this is no load"
        started.send_signal(signal.SIGTERM)
        answers = [client.result(WAIT) for client in clients]
    assert started.wait(WAIT) == 0
    with pytest.raises(ConnectionRefusedError):
        server.connect()
    chunks = [events(answer[2]) if isinstance(answer[2], bytes) else [answer[2]] for answer in answers]
    return [(answer[0], some) for answer, some in zip(answers, chunks, strict=True)]


def test_sigterm_lets_texts_finish(folder: Path) -> None:
    how = settings_for(long_model().config, {"max_new_tokens": 160})
    want = dadlm.generate(long_model(), [PROMPT] * 8, seed=0, settings=how).texts
    with process("--model", folder, "--grace", WAIT, stderr=subprocess.PIPE) as (started, server):
        answers = end_under_load(started, server, 160)
    texts = ["".join(chunk["choices"][0]["text"] for chunk in chunks) for _, chunks in answers]
    assert texts == want and {status for status, _ in answers} == {200}


def test_sigterm_reports_texts_it_cannot_finish(folder: Path) -> None:
    with process("--model", folder, "--grace", 0.2, stderr=subprocess.PIPE) as (started, server):
        answers = end_under_load(started, server, 2000)
        assert started.stderr is not None
        log = started.stderr.read()
    assert {chunks[-1]["error"]["code"] for _, chunks in answers} == {"shutdown"}
    assert [status for status, _ in answers] == [503, 200, 200, 200] * 2  # every fourth is not streamed
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
    assert sources[2] == {name: name for name in NAMES}, "all that ship"
    assert sources[1] == {"a": str(folder), "long": str(folder)}


def test_a_folder_is_called_by_its_own_name(tmp_path: Path) -> None:
    """A path may contain an equals sign, and a link is not followed."""
    folder = tmp_path / "lr=3e-4" / "step-00000400"
    folder.mkdir(parents=True)
    best = folder.with_name("best")
    best.symlink_to(folder)
    assert _sources((str(best), "name=dadlm", "ar")) == {"best": str(best), "name": "dadlm", "ar": "ar"}


def test_says_what_it_loads_and_takes_memory_by_need() -> None:
    """The three models that ship took 3.5 GB before anybody asked for anything."""
    words = [sys.executable, "-m", "dadlm.cli", "serve", "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        try:
            assert started.stdout is not None and started.stderr is not None
            lines = [started.stdout.readline().strip() for _ in range(4)]
            loading = [started.stderr.readline().strip() for _ in NAMES]
            memory = psutil.Process(started.pid).memory_info
            idle = memory().rss
            port = int(re.findall(r"http://127.0.0.1:(\d+)/$", lines[1])[0])
            server = Running("127.0.0.1", port, None, None)  # type: ignore[arg-type]
            for name in NAMES[:5]:
                fields = {"model": name, "prompt": "The river", "max_tokens": 17, "n": 4}
                assert server.post("/v1/completions", **fields)[0] == 200
            fields = {"model": "ar", "prompt": "The river", "max_tokens": 12, "temperature": 0, "tree": 8}
            status, lossless = server.post("/v1/completions", mode="lossless", **fields)
            assert status == 200 and lossless["dadlm"]["tokens_per_cycle"] > 1.2  # drafted by a model
            used = memory().rss
        finally:
            started.kill()
    assert re.fullmatch(r"ready after \d+\.\d s; Ctrl-C ends", lines[0])
    assert f"/v1 (models: {', '.join(NAMES)})" in lines[2] and lines[3].endswith("/docs")
    name = "cuda" if torch.cuda.is_available() else "cpu"
    expected = [f"loading {one} on {name} ({i} of {len(NAMES)})" for i, one in enumerate(NAMES, 1)]
    assert loading == expected
    if name == "cpu":
        assert idle < 800e6 and used < 800e6
