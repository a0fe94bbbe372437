"""Models that can do both, served: each request says in which mode it is decoded."""

import http.client
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from tests.serve.running import WAIT, Running, letter_model, running, settings

from dadlm import generate
from dadlm.decode import settings_for
from dadlm.serve.service import Service

PROMPT, HOW = "the cat ", {"max_tokens": 13, "seed": 5}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    models = {name: letter_model(name) for name in ("bd3lm", "ar")}
    both = letter_model("dadlm", causal_context=True, candidate_offset=0.5)
    with running(Service({"both": both, **models}, settings(), draft="bd3lm")) as started:
        yield started


def text(server: Running, **fields) -> str:
    status, answer = server.post("/v1/completions", prompt=PROMPT, **HOW, **fields)
    assert status == 200, answer
    return answer["choices"][0]["text"]


def test_texts_of_both_modes_are_those_of_generate(server: Running) -> None:
    model = server.service.schedulers["both"].model
    modes = ["diffusion", "ar"] * 4
    with ThreadPoolExecutor(8) as pool:  # side by side, in two threads of the server
        found = list(pool.map(lambda mode: text(server, model="both", mode=mode), modes))
    for mode, one in zip(modes, found, strict=True):
        how = settings_for(model.config, {"mode": mode, "max_new_tokens": 13})
        assert [one] == generate(model, PROMPT, seed=5, settings=how).texts
    assert text(server, model="both") == found[0] != found[1]
    status, answer = server.post("/v1/completions", model="both", prompt=PROMPT, mode="ar", logprobs=2, **HOW)
    assert status == 200 and answer["dadlm"]["forward_passes"] == 13
    assert all(p <= 0 for p in answer["choices"][0]["logprobs"]["token_logprobs"])


def test_ar_models_take_both_modes(server: Running) -> None:
    assert (
        text(server, model="ar", mode="ar")
        == text(server, model="ar")
        == text(server, model="ar", mode="diffusion")
    )


def test_lossless_texts_are_those_of_mode_ar(server: Running) -> None:
    """Side by side, with and without a draft model; the answer says what drafting was worth."""
    with ThreadPoolExecutor(6) as pool:
        asked = [("both", 4), ("ar", 4), ("both", None)] * 2
        found = list(pool.map(lambda one: text(server, model=one[0], mode="lossless", tree=one[1]), asked))
    for (name, _), one in zip(asked, found, strict=True):
        assert one == text(server, model=name, mode="ar")
    status, answer = server.post(
        "/v1/completions", model="both", prompt=PROMPT, mode="lossless", tree=6, **HOW
    )
    assert status == 200 and 1 <= answer["dadlm"]["tokens_per_cycle"] <= 4
    ask = {"model": "both", "prompt": PROMPT, "mode": "lossless", "drawn": True, **HOW}
    assert server.post("/v1/completions", tree=6, **ask)[0] == 200
    status, answer = server.post("/v1/completions", **ask)
    assert status == 400 and "give its size" in answer["error"]["message"]
    status, answer = server.post("/v1/completions", model="both", prompt=PROMPT, mode="ar", **HOW)
    assert answer["dadlm"]["tokens_per_cycle"] is None
    for more, words in (
        ({"mode": "lossless", "logprobs": 1}, "logprobs"),
        ({"mode": "ar", "tree": 3}, "tree"),
    ):
        status, answer = server.post("/v1/completions", model="both", prompt=PROMPT, **more)
        assert status == 400 and answer["error"]["param"] == words


def test_a_trace_of_lossless_decoding_has_its_drafts(server: Running) -> None:
    fields = {"model": "both", "prompt": PROMPT, "mode": "lossless", "tree": 6, "trace": True}
    chunks = server.chunks("/v1/completions", **fields, **HOW)
    steps = [chunk["dadlm"]["step"] for chunk in chunks if "step" in chunk.get("dadlm", {})]
    assert [step["block"] for step in steps] == [*range(len(steps))]
    # Each cycle gives its accepted tokens and one of the target's own.
    assert sum(sum(step["accepted"]) + 1 for step in steps) == 13
    assert all(len(step["drafted"]) == len(step["drafted_texts"]) for step in steps) and steps[0]["drafted"]
    for step in steps:
        assert sorted(step["accepted"], reverse=True) == step["accepted"]
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"])
    assert (
        text
        == generate(
            server.service.schedulers["both"].model, PROMPT, mode="ar", max_new_tokens=13, seed=5
        ).texts[0]
    )


def test_what_a_model_cannot_do_is_refused(server: Running) -> None:
    for fields, words in (({"model": "bd3lm", "mode": "ar"}, "blocks only"), ({"mode": "left"}, "diffusion")):
        status, answer = server.post("/v1/completions", prompt=PROMPT, **fields)
        assert status == 400 and answer["error"]["param"] == "mode" and words in answer["error"]["message"]
    status, answer = server.post("/v1/fill_gaps", model="both", mode="ar", parts=["the ", {"gap": 2}, " sat"])
    assert status == 400 and "cannot fill gaps" in answer["error"]["message"]


def test_modes_are_listed_and_counted(server: Running) -> None:
    cards = server.ask("GET", "/v1/models")[2]["data"]
    modes = {card["id"]: card["dadlm"]["modes"] for card in cards}
    assert modes == {
        "both": ["diffusion", "ar", "lossless"],
        "bd3lm": ["diffusion"],
        "ar": ["ar", "lossless"],
    }
    text(server, model="both", mode="ar")
    assert b'dadlm_submitted_total{model="both (ar)"}' in server.ask("GET", "/metrics")[2]


def test_schedulers_of_other_modes_are_made_when_asked_for() -> None:
    """Memory by need: most clients never ask for a second mode."""
    service = Service({"both": letter_model("bd3lm", causal_context=True)}, settings())
    service.start()
    try:
        assert list(service.all_schedulers) == ["both"]
        _, first = service.find("both", "ar")
        assert service.find("both", "ar")[1] is first is service.all_schedulers["both (ar)"]
        assert first.alive and first is not service.find("both")[1]
    finally:
        service.close(0)
    assert not first.alive


def test_others_are_answered_while_a_mode_is_made() -> None:
    """On a GPU that takes the memory for all its rows, and may find what shortlists need."""
    service = Service({"both": letter_model("bd3lm", causal_context=True)}, settings())
    begun, go_on, make = threading.Event(), threading.Event(), service._make

    def make_slowly(model, mode):
        begun.set()
        assert go_on.wait(WAIT)
        return make(model, mode)

    service._make = make_slowly
    with running(service) as server, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(text, server, model="both", mode="ar")
        try:
            assert begun.wait(WAIT)
            with closing(http.client.HTTPConnection(server.host, server.port, timeout=5)) as connection:
                connection.request("GET", "/metrics")
                assert connection.getresponse().status == 200
        finally:
            go_on.set()
        assert asked.result()
