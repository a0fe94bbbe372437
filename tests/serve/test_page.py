"""The playground in a real browser: what it shows is what `generate` and `stream` give."""

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

import pytest
from tests.decode.tiny import silence_eot, tiny
from tests.serve.fakes import FakeScheduler, committed, fake_service, finished
from tests.serve.page_browser import chromium, faint_texts, nameless, tab_stops, visit
from tests.serve.running import letter_model, running, settings, until

from dadlm import Model, StepEvent, generate, stream
from dadlm.decode import fill_gaps
from dadlm.decode.samplers import SAMPLERS
from dadlm.serve.service import Service
from dadlm.tokens.vocabularies import word_level
from dadlm.tour.language import make_language

PROMPT = "the red fox "
RANDOM = {"sampler": "random", "steps": 2, "infill": (1, 0.5)}
LINK = {"prompt": PROMPT, "max_tokens": 13, "seed": 5, "sampler": "random", "steps": 2, "path": "sample"}
LINK |= {"infill_k": 1, "infill_r": 0.5, "temperature": 1, "top_p": 0.9, "nucleus": "standard"}
LINK |= {"trace": 1, "in_turn": 1}
EMPTY = "#-"  # not a link, and without the example that the page opens with
GROUND = "getComputedStyle(document.body).backgroundColor"
IN_VIEW = """one => {
  const { top, bottom } = document.querySelector(one).getBoundingClientRect();
  return top >= 0 && bottom <= innerHeight;
}"""
SCRIPT = "<img src=x onerror=document.title='run'>"
WORDS = f"the a one red blue river runs under over slow bridge and then fox owl {SCRIPT}".split()


@pytest.fixture(scope="module")
def browser() -> Iterator:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    """Every family but MDLM; their texts run to the limit. Some of their words are HTML."""
    shape = {"vocab": len(WORDS) + 2, "tokenizer": word_level(WORDS)}
    return {family: silence_eot(tiny(family, **shape)) for family in ("dadlm", "bd3lm", "ar")}


@pytest.fixture(scope="module")
def url(models: dict[str, Model]) -> Iterator[str]:
    with running(Service(models, settings())) as server:
        yield f"{server.url}/"


@contextmanager
def faked(browser, models, *events, hash_: str = EMPTY, refused: bool = False) -> Iterator:
    """(server, its scheduler, the page of a browser) with a scheduler that gives these events."""
    scheduler = FakeScheduler(*events)
    with (
        running(fake_service(models["dadlm"], scheduler)) as server,
        visit(browser, f"{server.url}/", hash_, refused) as page,
    ):
        yield server, scheduler, page


def text_of(model: Model, **options) -> str:
    return PROMPT + generate(model, PROMPT, max_new_tokens=13, seed=5, **options).texts[0]


def steps_of(model: Model, **options) -> list[StepEvent]:
    return list(stream(model, PROMPT, max_new_tokens=13, seed=5, **options))


def hash_of(task: str = "write", **more) -> str:
    return "#" + urlencode({"task": task, "model": "dadlm"} | LINK | more)


def until_done(page) -> None:
    """The run is over, and its last step is drawn: that waits for the browser's next frame."""
    page.wait_for_selector("#exports:not([hidden])")
    page.wait_for_selector("#stop:disabled")
    page.evaluate("new Promise(requestAnimationFrame)")


def press_run(page) -> None:
    """Run what a link has filled in."""
    page.get_by_text("settings are filled in").wait_for()
    page.locator("#run").click()


def until_loaded(page) -> None:
    """The models are there: nothing moves under the pointer any more, and no example comes between the two
    steps in which playwright fills a field (select all, then type)."""
    page.locator("[name=model] option").first.wait_for(state="attached")


def write(page, loaded: bool = True) -> None:
    if loaded:
        until_loaded(page)
    page.get_by_label("Prompt").fill(PROMPT)
    page.get_by_role("button", name="Write").click()


def run_link(page) -> None:
    press_run(page)
    until_done(page)


def until_at(page, step: int, count: int) -> None:
    shown = "n => document.querySelector('#count').textContent === n"
    page.wait_for_function(shown, arg=f"{step + 1} / {count}")


def test_writes_what_generate_writes(browser, url, models) -> None:
    with visit(browser, url, EMPTY) as page:
        until_loaded(page)
        page.get_by_label("Prompt").fill(PROMPT)
        page.get_by_label("Model").select_option("dadlm")
        page.get_by_label("Sampler").select_option("random")
        page.get_by_label("Nucleus per").select_option("standard")
        page.locator("[name=steps]").fill("2")
        for name, value in {"Tokens": 13, "Infill gaps up to": 1, "once known": 0.5}.items():
            page.get_by_label(name, exact=True).fill(str(value))
        page.get_by_label("Seed", exact=True).fill("5")
        page.get_by_role("button", name="Write").click()
        until_done(page)
        assert page.locator("#text").text_content() == text_of(models["dadlm"], **RANDOM)
        out = generate(models["dadlm"], PROMPT, max_new_tokens=13, seed=5, **RANDOM)
        figures = page.locator("#figures dd").all_text_contents()
        assert figures[:3] == ["13", str(out.forward_passes[0]), f"{out.tokens_per_forward[0]:.2f}"]
        assert "all tokens" in page.locator("#status").inner_text()


def test_only_controls_that_apply_are_shown(browser, url) -> None:
    def shown() -> set[str]:
        visible = page.locator("[data-field]:not([hidden])")
        return set(visible.evaluate_all("all => all.map(field => field.dataset.field)"))

    def without_effect() -> str:
        return page.locator("#unused").inner_text()

    always = {"prompt", "seed", "temperature", "top_p", "trace"}
    with visit(browser, url, EMPTY) as page:
        page.get_by_label("Model").select_option("ar")
        assert shown() == always | {"model", "max_tokens", "mode"}
        assert "writes token by token: Sampler, Path, Nucleus per, Infill gaps up to" in without_effect()
        page.get_by_label("Model").select_option("bd3lm")
        assert shown() == always | {"model", "max_tokens", "sampler", "infill_k", "steps"}
        assert "one candidate per position: Path, Nucleus per." in without_effect()
        listed = page.get_by_label("Sampler").locator("option").all_text_contents()
        assert listed == list(SAMPLERS)
        for name, sampler in SAMPLERS.items():
            page.get_by_label("Sampler").select_option(name)
            options = set(sampler.options) - {"transition_weight"}  # there are no transitions
            assert shown() == always | {"model", "max_tokens", "sampler", "infill_k", *options}
            assert sampler.summary.split("`")[0] in page.locator("#sampler-summary").inner_text()
        page.get_by_label("Model").select_option("dadlm")
        page.get_by_label("Sampler").select_option("confidence")
        assert page.get_by_label("Threshold").input_value() == "0.9" and without_effect() == ""
        page.get_by_label("Temperature").fill("0")
        assert page.get_by_label("Nucleus (top p)").is_disabled()
        assert "temperature 0 takes the most probable token: Nucleus (top p)" in without_effect()
        page.get_by_label("Temperature").fill("1")
        page.get_by_label("Path").select_option("viterbi")
        assert page.get_by_label("Temperature").is_disabled()
        page.get_by_label("Path").select_option("sample")
        page.get_by_label("Sampler").select_option(name)
        page.get_by_label("Infill gaps up to").fill("2")
        page.get_by_label("Fill gaps", exact=True).check()
        assert shown() == always | {
            "model",
            "sampler",
            "infill_k",
            "infill_r",
            "path",
            *sampler.options,
            "nucleus",
        }
        page.get_by_role("radio", name="Race").check()
        assert "model" not in shown() and {"in_turn", "lane"} < shown()


def test_graph_and_text_of_every_step(browser, url, models) -> None:
    model, events = models["dadlm"], steps_of(models["dadlm"], **RANDOM)
    assert any(any(event.infilled) for event in events) and any(any(event.anchor) for event in events)
    tokens = generate(model, PROMPT, max_new_tokens=13, seed=5, **RANDOM).tokens[0]
    with visit(browser, url, hash_of()) as page:
        run_link(page)
        assert page.locator("#slider").get_attribute("max") == str(len(events) - 1)
        for number, event in enumerate(events):
            page.locator("#slider").fill(str(number))
            until_at(page, number, len(events))
            masked = [position for position, known in enumerate(event.anchor) if not known]
            assert page.locator("#graph .anchor").count() == len(event.anchor) - len(masked)
            assert page.locator("#graph g.candidate").count() == 2 * len(masked)  # of three, one is lit
            lit = page.locator("#graph g.lit").evaluate_all(
                "all => all.map(n => [n.dataset.group, n.dataset.node])"
            )
            assert lit == [[str(position), str(event.path[position])] for position in masked]
            below = "".join(page.locator("#graph svg > g:not([tabindex])").all_text_contents())
            assert below.count("◆") == sum(event.infilled)
            assert below.count("✓") == sum(event.fixed) - sum(event.infilled)
            assert below.count("↺") == len(masked) - sum(event.fixed)
            if event.block and sum(event.fixed) < len(
                masked
            ):  # the first one begins with words of the prompt
                left = [id_ for id_ in event.ids if id_ != model.config.mask_id]
                shown = page.locator("#text .token").all_text_contents()
                assert shown == [model.tokenizer.token_text(id_) for id_ in left]
                assert page.locator("#text .mask").count() == 4 - len(left)
                written = tokens[: 4 * event.block - 3]  # blocks of four, and three words of prompt
                assert page.locator("#text .text").text_content() == model.tokenizer.decode(written)


def test_play_keyboard_and_hint(browser, url, models) -> None:
    events = steps_of(models["dadlm"], **RANDOM)
    count, first = len(events), events[0].anchor.index(False)
    with visit(browser, url, hash_of()) as page:
        run_link(page)
        page.keyboard.press("ArrowLeft")
        until_at(page, count - 2, count)
        page.get_by_role("button", name="Play the steps").click()
        until_at(page, count - 1, count)
        page.get_by_role("button", name="Play the steps").wait_for()  # no longer "Pause"
        page.mouse.move(0, 0)  # where it points at nothing when the page scrolls
        page.locator("#slider").focus()
        page.keyboard.press("Home")
        until_at(page, 0, count)
        assert page.locator('#graph [tabindex="0"]').count() == 1  # one stop; the arrows go on from there
        page.locator('#graph [tabindex="0"]').focus()
        page.keyboard.press("ArrowLeft")
        assert page.evaluate("document.activeElement.dataset.group") == str(first - 1)
        assert page.locator("#hint").is_visible()
        page.keyboard.press("Escape")
        assert page.locator("#hint").is_hidden()
        page.locator(f'#graph [data-group="{first}"][data-node="1"]').hover()
        top = events[0].top_tokens[first][1]
        lines = page.locator("#hint li").all_inner_texts()
        assert [line.split("\n")[0] for line in lines[-len(top) :]] == [text for _, text, _ in top]
        assert f"{round(100 * top[0][2])}%" in lines[-len(top)]
        place = next(i for i, id_ in enumerate(events[0].drawn) if id_ is not None)
        page.locator(f'#graph [data-group="{place}"].lit').hover()
        assert page.locator("#hint p").first.inner_text().startswith("Drawn: ")
        drawn = page.locator(f'#graph [data-group="{place}"].lit text').first.text_content()
        assert drawn.rstrip("…") in events[0].drawn_texts[place]
        page.get_by_label("Prompt").focus()
        with page.expect_response("**/v1/completions"):
            page.keyboard.press("Control+Enter")
        until_done(page)


def test_a_node_of_a_model_with_edges_shows_both_probabilities(browser) -> None:
    shape = {"vocab": len(WORDS) + 2, "tokenizer": word_level(WORDS), "edge": "bilinear", "edge_rank": 8}
    model = silence_eot(tiny("dadlm", **shape))
    event = steps_of(model, **RANDOM)[0]
    place = next(i for i, p in enumerate(event.probability) if p is not None and p != event.alone[i])
    with (
        running(Service({"dadlm": model}, settings())) as server,
        visit(browser, f"{server.url}/", hash_of(step=0)) as page,
    ):
        run_link(page)
        until_at(page, 0, int(page.locator("#slider").get_attribute("max")) + 1)
        node = page.locator(f'#graph [data-group="{place}"].lit')
        node.hover()
        both = [f"{round(100 * p)}%" for p in (event.probability[place], event.alone[place])]
        rows = page.locator("#hint .drawn li").all_inner_texts()
        assert [row.split("\n")[0] for row in rows] == ["after the token to its left", "without it"]
        assert [row.split("\n")[-1] for row in rows] == both
        assert " · ".join(both).replace("%", "", 1) in node.locator("text").all_text_contents()
        assert page.get_by_text("given the token to its left · without it").is_visible()
        assert "token edges" in page.get_by_label("Model").locator("option").first.inner_text()


def test_race(browser, url, models) -> None:
    with visit(browser, url, hash_of("race")) as page:
        run_link(page)
        for name, model in models.items():
            lane = page.get_by_role("article", name=name, exact=True)
            options = {} if name == "ar" else RANDOM
            out = generate(model, PROMPT, max_new_tokens=13, seed=5, **options)
            assert lane.locator(".prose").text_content() == text_of(model, **options)
            numbers = [number.removesuffix(" ★") for number in lane.locator(".bars b").all_inner_texts()]
            assert numbers[1:] == [str(out.forward_passes[0]), f"{out.tokens_per_forward[0]:.2f}", "13"]
        times = {
            name: page.get_by_role("article", name=name, exact=True).locator(".bars b").first.inner_text()
            for name in models
        }
        shown = {name: float(time.split()[0]) for name, time in times.items()}
        [best] = [name for name, time in times.items() if "★" in time]
        assert shown[best] == min(shown.values()), "what is shown is rounded: two may look alike"
        colours = page.locator(".bars").evaluate_all(
            "all => all.map(b => getComputedStyle(b.querySelector('.bar'), '::before').backgroundColor)"
        )
        assert len(set(colours)) == 2 and colours.count(colours[list(models).index(best)]) == 1
        page.get_by_label("Prompt").fill("one blue owl ")  # the steps are those of the race all the same
        page.get_by_role("article", name="bd3lm").get_by_role("button").click()
        page.wait_for_selector("#steps-card svg")
        until_done(page)
        assert page.locator("#text").text_content() == text_of(models["bd3lm"], **RANDOM)


def test_a_race_counts_while_it_runs(browser, models) -> None:
    events = committed("ab", [1, 2], passes=3), committed("c", [3], passes=6)
    with faked(browser, models, *events, hash_=hash_of("race")) as (_, _, page):
        press_run(page)
        page.get_by_text("abc").wait_for()
        page.wait_for_function("() => document.querySelectorAll('.bars b')[1].textContent === '6'")
        assert page.locator(".bars b").all_inner_texts()[1:] == ["6", "0.50", "3"]
        page.get_by_role("button", name="Stop").click()
        page.get_by_text("Stopped.").wait_for()


def test_a_race_says_who_could_not_finish(browser, url) -> None:
    with visit(browser, url, hash_of("race", prompt="the unicorn"), refused=True) as page:
        press_run(page)
        page.get_by_text(" could not finish.").wait_for()
        assert page.get_by_text("all models have finished").count() == 0


def test_infill(browser, url, models) -> None:
    model = models["dadlm"]
    ids = model.tokenizer.encode("the red a a a river a a fox")
    filled = fill_gaps(model, ids, [(2, 3), (6, 2)], seed=5, **RANDOM)
    gaps = [model.tokenizer.decode(gap) for gap in filled.gaps]
    text = "the red [[3]] river [[2]] fox"
    with visit(browser, url, hash_of("infill", prompt=text, step=0)) as page:
        run_link(page)
        decided = page.locator("#text .token").count()
        assert 0 < decided < 5 and page.locator("#text .mask").count() == 5 - decided
        page.locator("#slider").press("End")
        page.wait_for_function("() => !document.querySelector('#text .mask')")
        assert page.locator("#text").text_content() == f"the red {gaps[0]} river {gaps[1]} fox"
        assert page.get_by_label("Model").locator("option[value=ar]").is_disabled()


def test_stop_cancels_at_the_server(browser, models) -> None:
    with faked(browser, models, committed("half a text")) as (_, scheduler, page):
        write(page)
        page.get_by_text("half a text").wait_for()
        page.get_by_role("button", name="Stop").click()
        page.get_by_text("Stopped.").wait_for()
        until(lambda: scheduler.cancelled == [True])
        assert page.get_by_text("half a text").is_visible()


def test_write_before_the_models_are_known(browser, models) -> None:
    """The page asks for them once. When they come, nothing typed is lost, and one run begins, not two."""
    held: list = []

    def hold_first(route) -> None:
        held.append(route)
        if len(held) > 1:
            route.continue_()

    with faked(browser, models, committed("half a text")) as (_, scheduler, page):
        page.route("**/v1/models", hold_first)
        page.reload()
        page.get_by_label("Tokens", exact=True).fill("5")
        write(page, loaded=False)
        page.get_by_text("Waiting for the server").wait_for()
        page.evaluate("new Promise((done) => setTimeout(done, 500))")  # a second question has its answer
        with page.expect_response("**/v1/models"):
            held[0].continue_()
        page.get_by_text("half a text").wait_for()
        page.evaluate("new Promise((done) => setTimeout(done, 500))")  # another run would have begun
        page.get_by_role("button", name="Stop").click()
        page.get_by_text("Stopped.").wait_for()
        until(lambda: all(scheduler.cancelled))
        assert [job.request.settings.max_new_tokens for job in scheduler.jobs] == [5]


def test_exports(browser, url, models, tmp_path: Path) -> None:
    def saved(name: str) -> Path:
        with page.expect_download() as download:
            page.get_by_role("button", name=name).click()
        file = tmp_path / download.value.suggested_filename
        download.value.save_as(file)
        return file

    events = steps_of(models["dadlm"], **RANDOM)
    with visit(browser, url, hash_of(step=1)) as page:
        run_link(page)
        svg = ET.parse(saved("Step as SVG")).getroot()
        nodes = [part for part in svg.iter("{http://www.w3.org/2000/svg}g") if part.get("data-node")]
        assert len(nodes) == sum(1 if known else 3 for known in events[1].anchor)
        assert "var(" not in ET.tostring(svg, encoding="unicode")  # it stands on its own
        png = saved("Step as PNG").read_bytes()
        assert png[:8] == b"\x89PNG\r\n\x1a\n"
        assert int.from_bytes(png[16:20], "big") == 2 * int(svg.attrib["width"])
        run = json.loads(saved("Run as JSON").read_text())
        assert [step["path"] for step in run["steps"]] == [event.path for event in events]
        assert [step["ids"] for step in run["steps"]] == [event.ids for event in events]
        assert PROMPT + run["text"] == text_of(models["dadlm"], **RANDOM)
        assert run["request"]["seed"] == 5 and run["request"]["infill"] == [1, 0.5]


def test_link_makes_the_run_again(browser, url, models) -> None:
    with visit(browser, url, hash_of(), permissions=["clipboard-read", "clipboard-write"]) as page:
        run_link(page)
        count = len(steps_of(models["dadlm"], **RANDOM))
        page.locator("#slider").fill("2")
        until_at(page, 2, count)
        page.get_by_role("button", name="Copy link").click()
        page.wait_for_function("() => document.querySelector('#status').textContent.includes('opied')")
        link = page.evaluate("navigator.clipboard.readText()")
        picture = page.locator("#graph").inner_html()
        text = page.locator("#text").inner_html()
    with visit(browser, url, link.removeprefix(url)) as page:
        run_link(page)
        until_at(page, 2, count)
        assert page.locator("#graph").inner_html() == picture
        assert page.locator("#text").inner_html() == text


def test_html_is_shown_and_never_run(browser, url) -> None:
    with visit(browser, url, hash_of(prompt=f"the {SCRIPT} fox", max_tokens=24)) as page:
        run_link(page)
        assert page.locator("#text .prompt").text_content() == f"the {SCRIPT} fox"
        assert page.title() == "dadlm playground" and page.locator("main img").count() == 0


def test_refusals_are_shown(browser, url) -> None:
    with visit(browser, url, hash_of(prompt="the unicorn"), refused=True) as page:
        press_run(page)
        page.wait_for_selector("#problem:not([hidden])")
        assert "unicorn" in page.get_by_role("alert").inner_text()
        page.wait_for_function(IN_VIEW, arg="#problem")  # though the page has gone on to the result
        page.get_by_label("Prompt").fill(PROMPT)
        page.get_by_label("Tokens", exact=True).fill("9999")
        page.get_by_role("button", name="Write").click()
        page.get_by_text("Tokens: 9999, but after").wait_for()  # not max_tokens, which is not on the page
        busy = {"status": 429, "headers": {"retry-after": "7"}, "body": "{}"}
        page.route("**/v1/completions", lambda route: route.fulfill(**busy))
        page.get_by_role("button", name="Write").click()
        page.get_by_text("The server is busy. Try again in 7 s.").wait_for()
        page.unroute("**/v1/completions")
        page.route("**/v1/completions", lambda route: route.abort())
        page.get_by_role("button", name="Write").click()
        page.get_by_text("The server cannot be reached.").wait_for()


def test_links_from_elsewhere_do_no_harm(browser, url) -> None:
    with visit(browser, url, hash_of(step="x")) as page:
        run_link(page)
        assert page.locator("#count").inner_text().startswith("1 /")
        foreign = hash_of("dance", model="unicorn", sampler="magic", seed=99)
        page.evaluate("hash => { location.hash = hash }", foreign)
        press_run(page)
        page.get_by_text("This server does not have the model of this link.").wait_for()
        page.get_by_role("button", name="Copy link").click()  # that of the run on the page
        page.wait_for_function("() => location.hash.includes('seed=5')")
        page.get_by_label("Model").select_option("dadlm")
        page.get_by_label("Sampler").select_option("random")
        page.get_by_role("button", name="Write").click()
        page.wait_for_selector("#save-svg:enabled")


def sent_by(page) -> list[dict]:
    """What the page asks for from now on."""
    bodies: list[dict] = []
    page.on("request", lambda request: request.method == "POST" and bodies.append(request.post_data_json))
    return bodies


def untraced(bodies: list[dict]) -> list[dict]:
    return [body for body in bodies if "trace" not in body]


def test_a_link_fills_in_and_waits(browser, url) -> None:
    with visit(browser, url, hash_of(seed=77)) as page:
        bodies = sent_by(page)
        page.get_by_text("settings are filled in").wait_for()
        page.wait_for_timeout(300)  # a run would have begun
        assert page.locator("#seed").input_value() == "77" and page.locator("#stage").is_hidden()
        assert not bodies
        page.get_by_role("button", name="Write").click()
        until_done(page)
        assert [body["seed"] for body in bodies] == [77, 77]


def test_a_link_that_is_opened_during_a_run_ends_it(browser, models) -> None:
    with faked(browser, models, committed("half a text")) as (_, scheduler, page):
        write(page)
        page.get_by_text("half a text").wait_for()
        page.evaluate("hash => { location.hash = hash }", hash_of(seed=77))
        page.get_by_text("settings are filled in").wait_for()
        until(lambda: scheduler.cancelled == [True])
        page.wait_for_selector("#stop:disabled")
        assert "filled in" in page.locator("#status").inner_text() and len(scheduler.jobs) == 1


def test_the_run_that_is_timed_is_not_traced(browser, url) -> None:
    with visit(browser, url, hash_of()) as page:
        bodies, seconds = sent_by(page), page.locator("#figures div").filter(has_text="seconds")

        def slow(route) -> None:
            traced = "trace" in route.request.post_data_json
            answer = route.fetch()
            body = re.sub(r'"seconds": [^,]+', '"seconds": 999', answer.text()) if traced else answer.text()
            route.fulfill(response=answer, body=body)

        page.route("**/v1/completions", slow)
        run_link(page)
        assert [body.get("trace") for body in bodies] == [None, True]
        assert "999" not in seconds.inner_text()
        page.get_by_label("Draw every step").uncheck()
        page.get_by_role("button", name="Write").click()
        until_done(page)
        assert len(bodies) == 3 and "trace" not in bodies[2] and page.locator("#steps-card").is_hidden()


@pytest.mark.parametrize("typed", [None, "one blue owl "])
def test_a_link_is_followed_once_the_key_is_there_unless_something_is_typed(browser, models, typed) -> None:
    with (
        running(Service(models, settings()), "open sesame") as server,
        visit(browser, f"{server.url}/", hash_of(seed=77), True) as page,
    ):
        bodies = sent_by(page)
        page.get_by_label("API key").fill("open sesame")
        if typed:
            page.get_by_label("Prompt").fill(typed)
        page.get_by_role("button", name="Write").click()
        if not typed:
            press_run(page)
        page.wait_for_selector("#save-svg:enabled")
        expected = (typed, 1) if typed else (PROMPT, 77)
        assert [(body["prompt"], body["seed"]) for body in untraced(bodies)] == [expected]
        assert "sesame" not in page.url
        assert page.evaluate("localStorage.length + sessionStorage.length") == 0


def test_a_link_holds_all_and_only_what_it_says(browser, url) -> None:
    with visit(browser, url, hash_of()) as page:
        run_link(page)
        bodies = sent_by(page)
        words = urlencode({"model": "dadlm", "seed": 6, "prompt": PROMPT, "sampler": "first-hitting"})
        page.evaluate("hash => { location.hash = hash }", f"#{words}")
        run_link(page)
        assert bodies[0]["seed"] == 6 and not {"steps", "infill"} & set(bodies[0])
        assert bodies[0]["sampler"] == "first-hitting" and "nucleus" not in bodies[0]  # the server chooses
        page.get_by_label("Tokens", exact=True).fill("")
        page.get_by_role("button", name="Write").click()
        until_done(page)
        link = page.url.removeprefix(url)
    with visit(browser, url, link) as page:
        again = sent_by(page)
        run_link(page)
        assert "max_tokens" not in again[0] and again[0] == bodies[1]


def test_a_fault_in_a_hidden_control_does_not_hold_the_button(browser, url) -> None:
    with visit(browser, url, EMPTY) as page:
        bodies = sent_by(page)
        until_loaded(page)
        page.get_by_label("Prompt").fill(PROMPT)
        page.get_by_label("Model").select_option("dadlm")
        page.get_by_label("Sampler").select_option("random")
        page.locator("[name=steps]").fill("0")
        page.get_by_role("button", name="Write").click()
        assert page.evaluate("document.activeElement.name") == "steps" and not bodies  # the browser says why
        page.get_by_label("Sampler").select_option("confidence")
        page.get_by_role("button", name="Write").click()
        until_done(page)
        assert bodies[0]["sampler"] == "confidence"


def test_an_earlier_step_stays_shown_when_the_run_ends(browser, models) -> None:
    events = steps_of(models["dadlm"], **RANDOM)
    with faked(browser, models, *events[:3]) as (_, scheduler, page):
        write(page)
        until(lambda: scheduler.jobs)
        scheduler.jobs[0].put(finished("stop"))  # the one that is timed
        until_at(page, 2, 3)
        page.keyboard.press("ArrowLeft")
        for event in (events[3], finished("stop")):
            scheduler.jobs[1].put(event)
        until_done(page)
        assert page.locator("#count").inner_text() == "2 / 4"


def test_a_gap_that_cannot_be_filled_is_not_drawn(browser, url) -> None:
    with visit(browser, url, hash_of("infill", prompt="2026 [[99999999999]] fox")) as page:
        press_run(page)
        page.get_by_text("The gaps are longer than the context").wait_for()
        page.locator("#prompt").fill("the red" + "[[20]] fox" * 3000)
        page.get_by_role("button", name="Fill the gaps").click()
        page.get_by_text("Waiting").wait_for(state="hidden")
        page.get_by_text("The gaps are longer than the context").wait_for()
        page.locator("#prompt").fill("the red [[2]] fox")
        page.get_by_role("button", name="Fill the gaps").click()
        page.get_by_text("Done: the gaps are filled.").wait_for()


def test_a_broken_connection_is_shown(browser, models) -> None:
    with faked(browser, models, committed("half a text"), refused=True) as (server, _, page):
        write(page)
        page.get_by_text("half a text").wait_for()
        server.drop_connections()
        page.get_by_text("The connection ended before the text did.").wait_for()
        page.get_by_role("button", name="Switch to").click()  # drawn again
        page.evaluate("new Promise(requestAnimationFrame)")
        seconds = page.locator("#figures div").filter(has_text="seconds")
        before = seconds.inner_text()
        page.evaluate("new Promise((done) => setTimeout(done, 300))")
        page.get_by_role("button", name="Switch to").click()
        page.evaluate("new Promise(requestAnimationFrame)")
        assert seconds.inner_text() == before  # the run is over, and so is its time


def test_opens_with_an_example_that_runs(browser, models) -> None:
    language = make_language(0)
    tour = silence_eot(tiny("dadlm", vocab=language.tokenizer.vocab_size + 1, tokenizer=language.tokenizer))
    with (
        running(Service({"dadlm": models["dadlm"], "tour-dadlm": tour}, settings())) as server,
        visit(browser, f"{server.url}/") as page,
    ):
        until_done(page)
        assert page.get_by_label("Model").input_value() == "tour-dadlm"
        assert (
            page.get_by_label("Model")
            .locator("option")
            .all_text_contents()[0]
            .startswith("tour-dadlm: DA-DLM, blocks of 4, 3 candidates, ")
        )
        assert page.locator("#graph svg").is_visible() and "A column is a position" in page.inner_text(
            "#meaning"
        )
        assert page.get_by_role("link", name="DA-DLM: Explicitly Modeling Token Dependencies").is_visible()
        assert page.evaluate("scrollY") == 0 and page.locator("#stage.in-view").count() == 0
        page.get_by_role("radio", name="Race").check()
        checked = page.get_by_role("group", name="In the race").locator(":checked")
        assert checked.evaluate_all("all => all.map(one => one.value)") == ["tour-dadlm diffusion"]


def test_a_model_that_does_not_know_the_example_asks_for_a_prompt(browser, url) -> None:
    with visit(browser, url, refused=True) as page:
        page.get_by_text("Type a prompt to begin.").wait_for()
        assert page.get_by_label("Prompt").input_value() == "" and page.locator("#problem").is_hidden()


def test_a_result_leaves_with_its_task(browser, url) -> None:
    with visit(browser, url, hash_of()) as page:
        run_link(page)
        page.get_by_role("radio", name="Race").check()
        assert page.locator("#stage").is_hidden() and page.locator("#invitation").is_visible()
        assert page.locator("#status").inner_text() == ""
        page.get_by_role("radio", name="Write").check()
        assert page.locator("#graph svg").is_visible() and page.locator("#invitation").is_hidden()


def test_a_faulty_gap_is_told_in_the_notation_of_the_page(browser, url) -> None:
    with visit(browser, url, hash_of("infill")) as page:
        bodies = sent_by(page)
        page.get_by_text("is a gap of three tokens").wait_for()
        for text, message, selected in [
            ("the red fox", "The text has no gap. Write [[3]] where three tokens are missing.", ""),
            ("the [[x]] fox", "“[[x]]” is not a gap.", "[[x]]"),
            ("the [[0]] fox", "[[0]]: a gap has at least one token.", "[[0]]"),
            ("the [[2 fox", "“[[2 fox” is not a gap.", "[[2 fox"),
        ]:
            page.locator("#prompt").fill(text)
            page.locator("#run").click()
            page.get_by_role("alert").get_by_text(message).wait_for()
            assert page.evaluate("getSelection().toString()") == selected
        assert bodies == []


def test_nothing_is_drawn_after_the_text(browser, url) -> None:
    """A block has four positions; the text with its gap has two, and three."""
    for text, length in {"the [[1]]": 2, "the [[1]] fox": 3}.items():
        with visit(browser, url, hash_of("infill", prompt=text, step=0)) as page:
            run_link(page)
            groups = page.locator("#graph [data-group]").evaluate_all("all => all.map(n => n.dataset.group)")
            assert set(map(int, groups)) == set(range(length))


def test_a_token_that_was_drawn_and_not_kept_is_shown(browser, url, models) -> None:
    options = {"sampler": "confidence", "threshold": 0.9}
    events = list(stream(models["dadlm"], PROMPT, max_new_tokens=13, seed=5, **options))
    number, place = next(
        (n, i)
        for n, event in enumerate(events)
        for i, id_ in enumerate(event.drawn)
        if id_ is not None and not event.fixed[i] and event.drawn_texts[i] not in SCRIPT
    )
    with visit(browser, url, hash_of(sampler="confidence", threshold=0.9, infill_k="", step=number)) as page:
        run_link(page)
        until_at(page, number, len(events))
        node = page.locator(f'#graph [data-group="{place}"].lit')
        assert node.locator("text").first.text_content() == events[number].drawn_texts[place]
        assert node.locator("rect").first.get_attribute("stroke-dasharray")
        node.hover()
        assert page.locator("#hint p").first.inner_text().endswith(", masked again")


def test_both_modes_of_a_model(browser) -> None:
    model = letter_model("dadlm", causal_context=True, candidate_offset=0.5)
    with running(Service({"both": model}, settings())) as server:
        link = hash_of(model="both", sampler="first-hitting", infill_k="", mode="ar")
        with visit(browser, f"{server.url}/", link) as page:
            for mode in ("ar", "diffusion"):
                page.locator("[name=mode]").select_option(mode)
                assert page.locator("[name=sampler]").is_visible() == (mode == "diffusion")
                page.locator("#run").click()
                until_done(page)
                assert page.locator("#text").text_content() == text_of(model, mode=mode)


def test_modes_are_those_of_the_server(browser, url) -> None:
    """Also one that does not exist yet, with drafts that are accepted and refused."""
    drafted = {"drafted": [4, 5, 6], "drafted_texts": ["fox", "owl", "the"]}
    step = {"block": 0, "step": 0, **drafted, "accepted": [True, True, False]}
    chunks = [
        {"choices": [{"text": "fox owl", "finish_reason": "length"}], "dadlm": {"tokens_per_cycle": 2.5}},
        {"choices": [{"text": "", "finish_reason": None}], "dadlm": {"step": step}},
    ]

    def with_modes(route) -> None:
        answer = route.fetch()
        listed = answer.json()
        listed["data"][0]["dadlm"]["modes"] = ["diffusion", "ar", "lossless", "dreaming"]
        route.fulfill(response=answer, json=listed)

    def answer(route) -> None:
        lines = [f"data: {json.dumps(chunk)}" for chunk in chunks] + ["data: [DONE]", ""]
        route.fulfill(content_type="text/event-stream", body="\n\n".join(lines))

    with visit(browser, url, EMPTY) as page:
        page.route("**/v1/models", with_modes)
        page.reload()
        modes = page.locator("[name=mode]")
        modes.locator("option").nth(3).wait_for(state="attached")
        assert modes.locator("option").all_text_contents()[2:] == ["checked drafts (lossless)", "dreaming"]
        modes.select_option("lossless")
        assert page.locator("[data-field=sampler]").is_hidden()
        page.route("**/v1/completions", answer)
        bodies = sent_by(page)
        write(page)
        until_done(page)
        assert bodies[0]["mode"] == "lossless" and "sampler" not in bodies[0]
        assert "2.50" in page.locator("#figures div").filter(has_text="tokens per cycle").inner_text()
        kinds = page.locator("#drafts span").evaluate_all("all => all.map(one => one.className)")
        assert kinds == ["accepted", "accepted", "refused"]
        assert page.locator("#drafts span").all_text_contents() == ["✓ fox", "✓ owl", "✗ the"]
        page.get_by_role("radio", name="Race").check()
        assert page.get_by_label("dadlm, lossless").is_visible()


def test_every_cycle_of_lossless_decoding_is_shown(browser, url) -> None:
    """Also one without a draft: at first nothing has stood in the text before."""
    with visit(browser, url, hash_of(model="ar", mode="lossless", prompt="the red river ")) as page:
        run_link(page)
        for number in range(int(page.locator("#slider").get_attribute("max") or 0) + 1):
            page.locator("#slider").fill(str(number))
            page.locator(f"#count:text-matches('^{number + 1} / ')").wait_for()
            count = page.locator("#drafts span").count()
            caption = page.locator("#caption").inner_text()
            assert caption.startswith(f"Cycle {number + 1}: ") and f" of {count} drafted" in caption


def test_a_lane_that_is_refused_does_not_end_the_race(browser, url) -> None:
    with visit(browser, url, hash_of("race"), refused=True) as page:
        refusal = {"error": {"message": "no such word", "param": "prompt"}}
        page.route(
            "**/v1/completions",
            lambda route: (
                route.fulfill(status=400, json=refusal)
                if route.request.post_data_json["model"] == "bd3lm"
                else route.continue_()
            ),
        )
        run_link(page)
        assert "No such word" in page.get_by_role("article", name="bd3lm").inner_text()
        assert page.get_by_role("article", name="ar", exact=True).get_by_role("button").is_visible()


def test_a_block_of_16_fits_and_the_result_is_in_view(browser) -> None:
    shape = {"vocab": len(WORDS) + 2, "tokenizer": word_level(WORDS), "block": 16, "candidates": 4}
    model = silence_eot(tiny("dadlm", **shape))
    with running(Service({"dadlm": model}, settings())) as server:
        wide, narrow = {"width": 1280, "height": 720}, {"width": 360, "height": 740}
        with visit(browser, f"{server.url}/", hash_of(max_tokens=29), viewport=wide) as page:
            run_link(page)
            assert (
                page.evaluate("graph.scrollWidth <= graph.clientWidth") and page.locator("#more").is_hidden()
            )
            assert page.locator('#graph [data-group="15"]').last.is_visible()
            page.wait_for_function(IN_VIEW, arg="#graph")
        with visit(
            browser, f"{server.url}/", hash_of(max_tokens=29), viewport=narrow, has_touch=True
        ) as page:
            run_link(page)
            assert page.evaluate("graph.scrollWidth > graph.clientWidth")
            assert page.locator("#more").is_visible()  # the cue to scroll
            page.wait_for_function(IN_VIEW, arg="#text")
            page.locator("#graph [data-group].lit").last.tap()
            assert page.locator("#hint").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_looks(browser, url, scheme) -> None:
    """Contrast, names, focus and widths, in every task."""
    look = {"color_scheme": scheme, "reduced_motion": "reduce", "viewport": {"width": 1280, "height": 2400}}
    with visit(
        browser, url, hash_of("infill", prompt="the red [[3]] river [[2]] fox", step=0), **look
    ) as page:
        for task in ("infill", "race", "write"):
            page.locator(f"[name=task][value={task}]").check()
            page.get_by_role("textbox").first.fill("the [[2]] fox" if task == "infill" else PROMPT)
            page.locator("#run").click()
            until_done(page)
            if task == "write":
                page.locator("#slider").fill("1")
                page.locator("#graph g.lit").first.hover()
                page.locator("#hint").wait_for()
            assert faint_texts(page) == []
            assert nameless(page) == []
            reached, missed, unseen = tab_stops(page)
            assert reached > 10 and missed == [] and unseen == []
            for width in (360, 768, 1280, 1600):
                page.set_viewport_size({"width": width, "height": 2400})
                page.wait_for_function("width => document.documentElement.scrollWidth === width", arg=width)
        before, drawn = page.evaluate(GROUND), page.locator("#graph svg > rect").first.get_attribute("fill")
        other = {"light": "dark", "dark": "light"}[scheme]
        page.get_by_role("button", name=f"Switch to {other}", exact=True).click()
        page.get_by_role("button", name=f"Switch to {scheme}", exact=True).wait_for()
        page.wait_for_function(
            "old => document.querySelector('#graph svg > rect').getAttribute('fill') !== old", arg=drawn
        )
        after = page.evaluate(GROUND)
        assert (sum(map(int, before[4:-1].split(","))) > 400) == (scheme == "light")
        assert (sum(map(int, after[4:-1].split(","))) > 400) == (scheme == "dark")
