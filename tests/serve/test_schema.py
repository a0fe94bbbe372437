"""schemathesis reads the project's own OpenAPI and sends what that allows and forbids: no 5xx, no hang."""

from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import schemathesis
from hypothesis import given
from schemathesis import Case, GenerationMode
from schemathesis.checks import CheckFunction, not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.decode.test_turn_end import speaker
from tests.decode.tiny import tiny
from tests.serve.running import WAIT, Running, letter_model, running, settings

from dadlm.decode import settings_for
from dadlm.decode.samplers import SAMPLERS
from dadlm.serve.service import Service

# Not among them: that everything that fits the schema is accepted. What exceeds a model's context is refused.
CHECKS: list[CheckFunction] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
PLACES = [
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/fill_gaps",
    "/v1/infill",
    "/v1/models",
    "/v1/models/{name}",
]
PLACES += ["/healthz", "/readyz", "/metrics"]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    models = {"dadlm": letter_model("dadlm", context=32), "ar": letter_model("ar", context=32)}
    models["talker"] = speaker("ar", True, context=32)
    with running(Service(models, settings())) as here:
        yield here


def search(server: Running, place: str, cases: int, **how: Any) -> int:
    """Send up to so many cases of what the description allows, and of what it forbids; how many were sent."""
    sent = 0
    refusals = {"negative_data_rejection": {"expected-statuses": [400, 404, 413]}}
    config = schemathesis.Config.from_dict({"checks": refusals})
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json", config=config)
    [operation] = schema[place].values()
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
        if mode == GenerationMode.NEGATIVE and operation.method == "get":
            continue  # nothing can be wrong with what takes nothing

        @given(case=operation.as_strategy(generation_mode=mode))
        @hypothesis.settings(
            max_examples=cases, deadline=None, suppress_health_check=list(hypothesis.HealthCheck), **how
        )
        def send(case: Case) -> None:
            nonlocal sent
            sent += 1
            case.call_and_validate(checks=CHECKS, timeout=WAIT)

        send()
    return sent


@pytest.mark.parametrize("place", PLACES)
def test_some_cases(server: Running, place: str) -> None:
    assert search(server, place, 5, derandomize=True, database=None)


@pytest.mark.acceptance
def test_thousands_of_cases(server: Running) -> None:
    sent = {place: search(server, place, 700) for place in PLACES[:2]}
    print(f"cases sent: {sent}")
    assert sum(sent.values()) >= 2000


def test_everything_is_described(server: Running) -> None:
    schema = server.ask("GET", "/openapi.json")[2]
    assert list(schema["paths"]) == PLACES
    fields = schema["components"]["schemas"]["CompletionBody"]
    assert fields["additionalProperties"] is False
    assert {"prompt", "max_tokens", "sampler", "infill", "trace"} <= set(fields["properties"])
    told = fields["properties"]["sampler"]["description"]
    assert all(name in told for name in SAMPLERS)
    assert told.endswith(f". Default: {settings_for(tiny('bd3lm').config, {}).sampler}")
    assert fields["properties"]["max_tokens"]["anyOf"][0]["maximum"] == 31, "what the context leaves"
    assert fields["properties"]["top_k"]["anyOf"][0]["maximum"] > 31, "it counts words of a vocabulary"
    assert server.post("/v1/completions", prompt="a", max_tokens=1, top_k=100)[0] == 200
    old = [path for path, methods in schema["paths"].items() if methods.get("post", {}).get("deprecated")]
    assert old == ["/v1/infill"]
