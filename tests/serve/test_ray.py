"""`dadlm serve --replicas 2` on Ray Serve: one is killed under load, and later requests succeed."""

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest
from tests.serve.running import Running, events, letter_model, until

import dadlm
from dadlm import Model

pytestmark = pytest.mark.acceptance
PROMPT = "the cat "
START = 120.0  # seconds that Ray gets to start on a busy machine


def model() -> Model:
    """A head whose bias can be saved: end-of-text is silenced by it. It has token edges."""
    shape = {"architecture": "bd3lm", "tie_embedding": False, "edge": "bilinear", "edge_rank": 8}
    return letter_model("bd3lm", context=256, **shape)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Two copies behind one port; afterwards SIGTERM, and nothing may be left of them."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    dadlm.save(model(), folder)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    words = ["serve", "--model", str(folder), "--port", str(free), "--replicas", "2", "--grace", "10"]
    command = [sys.executable, "-m", "dadlm.cli", *words, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        try:
            assert started.stdout is not None
            late = threading.Timer(START, started.kill)
            late.start()
            assert json.loads(started.stdout.readline())["models"] == ["tiny"]
            late.cancel()
            yield Running("127.0.0.1", free, None, None)  # type: ignore[arg-type]
            everyone = family()
            started.send_signal(signal.SIGTERM)
            assert started.wait(60) == 0
            assert not psutil.wait_procs(everyone, timeout=20)[1]
        finally:
            if started.poll() is None:
                started.kill()


def family() -> list[psutil.Process]:
    """The processes of this test only."""
    return psutil.Process().children(recursive=True)


def title_of(process: psutil.Process) -> str:
    try:
        return f"{process.name()} {' '.join(process.cmdline())}"
    except psutil.Error:
        return ""


def copies() -> list[psutil.Process]:
    return [one for one in family() if "ServeReplica" in title_of(one)]


def test_all_of_ray_stays_on_loopback(server: Running) -> None:
    seen = []
    for process in family():
        with suppress(psutil.Error):
            seen += [(title_of(process), one) for one in process.net_connections(kind="inet")]
    for title, connection in seen:
        for address in filter(None, (connection.laddr, connection.raddr)):
            assert address.ip in ("127.0.0.1", "::ffff:127.0.0.1", "::1"), (title, connection)
    assert len(seen) > 10, "nothing was looked at"


def test_one_is_killed_and_later_requests_do_not_notice(server: Running) -> None:
    want = [dadlm.generate(model(), PROMPT, seed=seed, max_new_tokens=24).texts[0] for seed in range(8)]
    assert len(copies()) == 2
    killed, over = threading.Event(), threading.Event()
    before: list[bool] = []
    after: list[tuple[int, str]] = []
    right: list[bool] = []

    def client(number: int) -> None:
        while not over.is_set():
            late, stream = killed.is_set(), number % 2 == 0
            fields = {"prompt": PROMPT, "seed": number, "max_tokens": 24, "stream": stream}
            try:
                status, _, content = server.ask("POST", "/v1/completions", fields)
            except (OSError, http.client.HTTPException) as error:
                status, content = 0, repr(error)
            if not late:
                before.append(status == 200)
            elif status != 200:
                after.append((status, content))
            else:
                chunks = events(content) if stream else [content]
                right.append("".join(chunk["choices"][0]["text"] for chunk in chunks) == want[number])

    clients = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for one in clients:
        one.start()
    time.sleep(3)
    copies()[0].kill()
    killed.set()
    time.sleep(10)
    over.set()
    for one in clients:
        one.join(60)
        assert not one.is_alive()
    assert sum(before) > 8, "no load before"
    assert not after, after[:3]
    assert len(right) > 8 and all(right)
    until(lambda: len(copies()) == 2)  # Ray starts another
