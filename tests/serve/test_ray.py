"""`dadlm serve --replicas 2` on Ray Serve: one is killed under load, and later requests succeed."""

import http.client
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest
from tests.serve.running import Running, events, model_to_save, process, until

import dadlm
from dadlm.decode import settings_for

pytestmark = pytest.mark.acceptance
PROMPT = "the cat "


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Two copies behind one port; afterwards SIGTERM, and nothing may be left of them."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    dadlm.save(model_to_save(256), folder)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    words = ["--model", folder, "--replicas", 2, "--grace", 10]
    with process(*words, port=free) as (started, server):
        yield server
        everyone = family()
        started.send_signal(signal.SIGTERM)
        assert started.wait(60) == 0
        assert not psutil.wait_procs(everyone, timeout=20)[1]


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
    for child in family():
        with suppress(psutil.Error):
            seen += [(title_of(child), one) for one in child.net_connections(kind="inet")]
    for title, connection in seen:
        for address in filter(None, (connection.laddr, connection.raddr)):
            assert address.ip in ("127.0.0.1", "::ffff:127.0.0.1", "::1"), (title, connection)
    assert len(seen) > 10, "nothing was looked at"


def test_one_is_killed_and_later_requests_do_not_notice(server: Running) -> None:
    model = model_to_save(256)
    how = settings_for(model.config, {"max_new_tokens": 24})
    want = [dadlm.generate(model, PROMPT, seed=seed, settings=how).texts[0] for seed in range(8)]
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
