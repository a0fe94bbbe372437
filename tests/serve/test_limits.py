"""What one client can do to the others: large bodies, silent connections, too many requests."""

import json
import threading
import time
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from tests.serve.fakes import FakeScheduler, committed, fake_service, finished
from tests.serve.running import letter_model, running

from dadlm.serve.schemas import CompletionBody, InfillBody

NAMES = {f"k{i}": 1 for i in range(90_000)}
HOSTILE = {
    "ids": (CompletionBody, {"prompt": [[-1] * 5459] * 64}),
    "floats": (CompletionBody, {"prompt": [[1.5] * 4000] * 64}),
    "texts": (CompletionBody, {"prompt": [1] + ["x"] * 200_000}),
    "unknown": (CompletionBody, {"prompt": "x"} | NAMES),
    "options": (CompletionBody, {"prompt": "x", "stream": True, "stream_options": NAMES}),
    "bias": (CompletionBody, {"prompt": "x", "logit_bias": dict.fromkeys(NAMES, "x")}),
    "stop": (CompletionBody, {"prompt": "x", "stop": [1] * 300_000}),
    "gap": (InfillBody, {"parts": [{"gap": 1} | NAMES]}),
    "parts": (InfillBody, {"parts": [{"gap": 0}] * 256}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_few_errors_are_built_for_many_faults(name: str) -> None:
    schema: type[BaseModel]
    schema, body = HOSTILE[name]
    with pytest.raises(ValidationError) as caught:
        schema.model_validate(body)
    assert caught.value.error_count() <= 8


@pytest.mark.parametrize("name", ["ids", "unknown"])
def test_large_wrong_bodies_do_not_keep_the_server_from_answering(name: str) -> None:
    """An error for each fault of one such body took the event loop 2.6 s and 590 MB."""
    body = json.dumps(HOSTILE[name][1], separators=(",", ":")).encode()
    answers: list[Any] = []
    with running(fake_service(letter_model("dadlm"), FakeScheduler(committed("ab"), finished()))) as server:

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
