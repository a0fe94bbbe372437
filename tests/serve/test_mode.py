"""Models that can do both, served: each request says in which mode it is decoded."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlencode

import pytest
from tests.serve.page_browser import chromium, visit
from tests.serve.running import Running, letter_model, running, settings

from dadlm import generate
from dadlm.decode import settings_for
from dadlm.serve.service import Service

PROMPT, HOW = "the cat ", {"max_tokens": 13, "seed": 5}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    models = {name: letter_model(name) for name in ("bd3lm", "ar")}
    both = letter_model("dadlm", causal_context=True, candidate_offset=0.5)
    with running(Service({"both": both, **models}, settings())) as started:
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


def test_what_a_model_cannot_do_is_refused(server: Running) -> None:
    for fields, words in (({"model": "bd3lm", "mode": "ar"}, "blocks only"), ({"mode": "left"}, "diffusion")):
        status, answer = server.post("/v1/completions", prompt=PROMPT, **fields)
        assert status == 400 and answer["error"]["param"] == "mode" and words in answer["error"]["message"]
    status, answer = server.post("/v1/fill_gaps", model="both", mode="ar", parts=["the ", {"gap": 2}, " sat"])
    assert status == 400 and "cannot fill gaps" in answer["error"]["message"]


def test_modes_are_listed_and_counted(server: Running) -> None:
    cards = server.ask("GET", "/v1/models")[2]["data"]
    modes = {card["id"]: card["dadlm"]["modes"] for card in cards}
    assert modes == {"both": ["diffusion", "ar"], "bd3lm": ["diffusion"], "ar": ["ar"]}
    text(server, model="both", mode="ar")
    assert b'dadlm_submitted_total{model="both (ar)"}' in server.ask("GET", "/metrics")[2]


def test_the_page_decodes_in_both_modes(server: Running) -> None:
    link = {"mode": "write", "prompt": PROMPT, "model": "both", "temperature": 1, "top_p": 0.9, **HOW}
    link |= {"sampler": "first-hitting"}
    with chromium() as browser:
        for more in ({}, {"as_ar": 1}):
            with visit(browser, f"{server.url}/", f"#{urlencode(link | more)}") as page:
                page.wait_for_selector("#exports:not([hidden])")
                mode = {"mode": "ar"} if more else {"mode": "diffusion", "sampler": "first-hitting"}
                expected = text(server, model="both", **mode)
                assert page.inner_text("#text") == PROMPT + expected
                assert page.is_visible("select[name=sampler]") == (not more)
                page.select_option("select[name=model]", "bd3lm")
                assert not page.is_visible("input[name=as_ar]") and page.is_visible("select[name=sampler]")
