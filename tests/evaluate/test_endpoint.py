"""The judge behind HTTP, against a real small server that answers, is busy, breaks and talks nonsense."""

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

import pytest
from tests.evaluate.results import lines

from dadlm.cli import main
from dadlm.errors import ConfigError, DataError, EndpointError
from dadlm.evaluate.endpoint import Endpoint
from dadlm.evaluate.judge import judge
from dadlm.evaluate.pairs import Pair, Pairs
from dadlm.evaluate.question import Question

KEY = "sk-very-secret"
QUESTION = Question("Once", "upon a time", "upon")
Reply = tuple[int, dict[str, str], bytes]


def chat(content: Any, **more: Any) -> Reply:
    usage = {"prompt_tokens": 100, "completion_tokens": 1}
    body = {"choices": [{"message": {"content": content}}], "usage": usage, **more}
    return 200, {}, json.dumps(body).encode()


class Server(ThreadingHTTPServer):
    """Answers with `script`, one reply (or function of the question) after another, the last for ever."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script: list[Any] = [chat("A")]
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.lock, self.truncated = Lock(), 0
        self.inside = self.most = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, *_: Any) -> None:
        """Readers go away here; a word about it would stand in the output of whatever test runs then."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        with server.lock:
            server.requests.append({"path": self.path, **request})
            server.headers.append({name.title(): value for name, value in self.headers.items()})
            reply = server.script.pop(0) if len(server.script) > 1 else server.script[0]
            server.inside += 1
            server.most = max(server.most, server.inside)
        if not isinstance(reply, tuple):
            reply = reply(request["messages"][-1]["content"])
        code, headers, body = reply
        with server.lock:
            server.inside -= 1
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body) + server.truncated), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        with suppress(OSError):  # the reader may have seen enough
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with Server() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.address)
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def endpoint(**options: Any) -> Endpoint:
    return Endpoint(**{"model": "judge-1", "pause": 0.01, "retries": 3, **options})


class Waits(Event):
    """Nobody stops; the pauses are noted instead of made."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.pauses.append(timeout)
        return False


def ask(stop: Event | None = None, **options: Any):
    return endpoint(**options).ask(QUESTION, stop or Event())


def pairs_of(count: int) -> Pairs:
    made = (Pair(configuration="FH", index=i, prompt="p", a=f"good {i}", b=f"bad {i}") for i in range(count))
    return Pairs(a="one", b="two", pairs=tuple(made))


def by_word(question: str) -> Reply:
    """Prefers "good"."""
    return chat("A" if question.index("good ") < question.index("bad ") else "B")


def test_the_request_is_what_such_servers_expect(server: Server) -> None:
    answer = ask(body={"thinking": {"type": "disabled"}})
    assert (answer.text, answer.requests, answer.prompt_tokens, answer.completion_tokens) == ("A", 1, 100, 1)
    [request] = server.requests
    assert request["path"] == "/v1/chat/completions"
    assert (request["model"], request["temperature"]) == ("judge-1", 0)
    assert request["thinking"] == {"type": "disabled"}
    assert request["messages"] == [{"role": "user", "content": QUESTION.text}]
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    ask(key="", body={"max_tokens": None, "temperature": None, "max_completion_tokens": 16})
    assert server.requests[1].keys() == {"path", "model", "messages", "max_completion_tokens"}
    assert "Authorization" not in server.headers[1]
    assert ask(key="A").text == "A"  # servers without keys are given any: a letter is no secret to hide


@pytest.mark.parametrize("code", [429, 500, 502, 503, 529])
def test_busy_servers_are_asked_again(server: Server, code: int) -> None:
    server.script = [(code, {}, b"busy"), (code, {}, b"busy"), chat("B")]
    answer = ask()
    assert (answer.text, answer.requests, len(server.requests)) == ("B", 3, 3)


@pytest.mark.parametrize("when", ["200", "date", "soon", "-5", "Tue, 99 Foo", "1e999"])
def test_retry_after_is_honoured_unless_it_is_senseless(server: Server, when: str) -> None:
    header = formatdate(time.time() + 200, usegmt=True) if when == "date" else when
    server.script = [(429, {"Retry-After": header}, b""), chat("B")]
    waits = Waits()
    assert ask(waits).text == "B"
    [pause] = waits.pauses
    if when in ("200", "date"):
        assert pause == 200 if when == "200" else 100 < pause <= 200  # until a date it grows shorter
    else:
        assert pause <= 0.01  # that of any first repetition


def test_a_pause_of_hours_is_left_to_a_later_run(server: Server) -> None:
    server.script = [(429, {"Retry-After": "7200"}, b"daily limit")]
    with pytest.raises(EndpointError, match=r"429.*daily limit.*run the same command again"):
        ask()
    assert len(server.requests) == 1


def test_an_answer_that_breaks_off_is_asked_for_again(server: Server) -> None:
    server.truncated = 5  # more is announced than comes

    def whole(_: str) -> Reply:
        server.truncated = 0
        return chat("B")

    server.script = [(200, {}, b'{"choices": [{"mess'), whole]
    assert ask().text == "B"


@pytest.mark.parametrize(
    "body", [b"<html>", b"[]", b"{}", b'{"choices": []}', b'{"choices": [{"message": 1}]}', b""]
)
def test_what_is_no_chat_completion_is_asked_for_again_then_told(server: Server, body: bytes) -> None:
    server.script = [(200, {}, body)]
    with pytest.raises(EndpointError, match="not a chat completion"):
        ask(retries=1)
    assert len(server.requests) == 2


@pytest.mark.parametrize("content", [None, 7, "half \ud83d a character"])
def test_odd_contents_are_answers_that_mean_nothing(server: Server, content: Any, tmp_path: Path) -> None:
    server.script = [chat(content)]
    result = judge(pairs_of(1), endpoint(), out=tmp_path)
    assert (result["unparsed"], result["ties"]) == (2, 1)


def test_no_server_at_all() -> None:
    with Server() as gone:
        address = gone.address
    with pytest.raises(EndpointError, match=r"no answer.*[Rr]efused.*times asked: 2"):
        ask(base_url=address, retries=1)


def test_a_silent_server_is_not_waited_for(server: Server) -> None:
    asked = Event()

    def silent(_: str) -> Reply:
        asked.wait(60)
        return chat("A")

    server.script = [silent]
    with pytest.raises(EndpointError, match="timed out"):
        ask(timeout=0.1, retries=0)
    asked.set()


@pytest.mark.parametrize(
    ("code", "told"),
    [(401, "check OPENAI_API_KEY"), (403, "may use this model"), (404, "judge-1"), (400, "does not accept")],
)
def test_what_cannot_succeed_fails_at_once(server: Server, code: int, told: str) -> None:
    server.script = [(code, {}, f"key {KEY} is\nwrong".encode())]
    with pytest.raises(ConfigError, match=rf"{code}.*key \[key\] is wrong.*{told}") as caught:
        ask()
    assert KEY not in str(caught.value) and len(server.requests) == 1


SECRETS = {"auth": {"token": 'hush "quoted" secret'}, "keys": ["another-secret"], "max_tokens": 3}


@pytest.mark.parametrize("code", [200, 307, 400, 429])
def test_no_secret_is_repeated_in_a_message(server: Server, code: int) -> None:
    """Whatever the server repeats of the request, and wherever: body, reason, address."""
    said = json.dumps({"error": [f"Bearer {KEY}", SECRETS]}).encode()
    server.script = [(code, {"Location": f"http://x/{KEY}"}, said)]
    with pytest.raises((ConfigError, EndpointError)) as caught:
        ask(body=SECRETS, retries=0)
    assert "[key]" in str(caught.value) and "[hidden]" in str(caught.value)
    assert not any(secret in str(caught.value) for secret in (KEY, "hush", "another-secret"))


def test_no_secret_is_kept(server: Server, tmp_path: Path) -> None:
    server.script = [chat(f"{KEY} another-secret")]
    judges = [endpoint(body=SECRETS | {"seed": seed}) for seed in (1, 2)]
    result = judge(pairs_of(1), judges[0], out=tmp_path)
    for text in (repr(judges[0]), *(file.read_text() for file in tmp_path.iterdir())):
        assert not any(secret in text for secret in (KEY, "hush", "another-secret"))
    settings = result["judge_settings"]
    assert (
        settings["body"] == ["auth", "keys", "max_tokens", "seed"] and settings["base_url"] == server.address
    )
    assert settings["temperature"] == 0 and "max_tokens" not in settings
    with pytest.raises(DataError, match="different: judge_settings"):  # another request, another judge
        judge(pairs_of(1), judges[1], out=tmp_path)


def test_redirects_do_not_carry_the_key_away(server: Server) -> None:
    with Server() as other:
        server.script = [(307, {"Location": f"{other.address}/chat/completions"}, b"")]
        with pytest.raises(ConfigError, match="redirects are not followed; set the address to"):
            ask()
        assert not other.requests


@pytest.mark.parametrize("code", [200, 500])
def test_endless_answers_are_not_read(server: Server, code: int) -> None:
    server.script = [(code, {}, b" " * (1 << 21))]
    with pytest.raises(ConfigError, match="more than 1048576 bytes"):
        ask()


# Configuration


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"model": ""}, "name"),
        ({"base_url": "ftp://host/v1"}, "is no address"),
        ({"base_url": "127.0.0.1:80"}, "is no address"),
        ({"base_url": "http://host:port/v1"}, "is no address"),
        ({"base_url": "http://höst/v1"}, "is no address"),
        ({"base_url": "http://me:pass@host/v1"}, "user or password"),
        ({"key": "two words"}, "OPENAI_API_KEY again"),
        ({"key": "line\nbreak"}, "OPENAI_API_KEY again"),
        ({"threads": 0}, "threads must be"),
    ],
)
def test_bad_settings(server: Server, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        endpoint(**options)
    assert "two words" not in str(caught.value) and "pass@" not in str(caught.value)


def test_an_endpoint_has_to_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="set OPENAI_BASE_URL"):
        endpoint()
    monkeypatch.setenv("OPENAI_API_KEY", f"{KEY}\n")  # as files end
    assert endpoint().base_url == "https://api.openai.com/v1" and endpoint().key == KEY
    assert KEY not in repr(endpoint())


# Whole evaluations


def test_questions_are_asked_side_by_side(server: Server) -> None:
    crowd = Event()

    def together(question: str) -> Reply:
        """The first ones wait until there are four."""
        if server.most == 4:
            crowd.set()
        crowd.wait(60)
        return by_word(question)

    server.script = [together]
    result = judge(pairs_of(6), endpoint(threads=4, timeout=120))
    assert (result["wins_a"], result["wins_b"]) == (6, 0)
    assert server.most == 4


def test_a_server_that_dies_half_way_loses_nothing(server: Server, tmp_path: Path) -> None:
    """Seven answers, then nothing but errors; the second start asks for the thirteen others."""
    server.script = [by_word] * 7 + [(500, {}, b"dead")]
    with pytest.raises(EndpointError, match="run the same command again"):
        judge(pairs_of(10), endpoint(retries=1), out=tmp_path)
    answered = {request["messages"][0]["content"] for request in server.requests[:7]}
    server.script, server.requests = [by_word], []
    result = judge(pairs_of(10), endpoint(), out=tmp_path, price_in=1, price_out=10)
    again = [request["messages"][0]["content"] for request in server.requests]
    assert len(again) == len(set(again)) == 13 and not answered & set(again)
    assert (result["wins_a"], result["pairs"], result["requests"]) == (10, 10, 20)
    assert (result["prompt_tokens"], result["completion_tokens"]) == (2000, 20)
    assert result["cost"] == pytest.approx((2000 + 200) / 1e6)


def test_one_dead_question_does_not_hold_up_the_end(server: Server) -> None:
    """The others stop waiting for a better moment as soon as one has failed for good."""
    server.script = [(401, {}, b""), (429, {"Retry-After": "200"}, b"")]
    start = time.monotonic()
    with pytest.raises((ConfigError, EndpointError)):
        judge(pairs_of(4), endpoint(threads=4))
    assert time.monotonic() - start < 100  # they would have waited for 200


def test_the_key_is_in_no_file(server: Server, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    for model in ("x", "y"):
        record = {"model": model, "configuration": "FH", "index": 0, "prompt": "p", "text": model}
        lines(tmp_path / f"{model}.jsonl", record)
    server.script = [chat("I like both")]
    words = ["evaluate", "judge", "--samples", "x.jsonl", "y.jsonl", "--endpoint", "judge-1"]
    assert main([*words, "--price-in", "1", "--price-out", "2"]) == 0
    said = capsys.readouterr()
    assert "I like both" in said.out and "2 requests, 200 + 2 tokens, cost 0.0002" in said.out
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 4
    for text in (said.out, said.err, *(path.read_text() for path in files)):
        assert KEY not in text
    for body in (["--body", json.dumps(SECRETS)], [f"--body={json.dumps(SECRETS)}"]):
        assert main([*words, *body, "--out", "secret"]) == 0
        assert not any("another-secret" in path.read_text() for path in Path("secret").iterdir())
    assert main([*words, "--body", "[1]"]) == 2 and "--body must be" in capsys.readouterr().err
