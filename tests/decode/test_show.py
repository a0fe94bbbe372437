"""A step in the terminal: nothing breaks, nothing is lost, tokens are not read as markup."""

import dataclasses
import io
import re

import pytest
from rich.console import Console
from tests.decode.test_chain import edge_model
from tests.decode.tiny import FAMILIES, prompt_of, silence_eot, tiny

from dadlm import StepEvent, stream
from dadlm.decode.show import show_step

ALL = {"sampler": "random", "steps": 1}
ODD = ["[bold]", "[/]", "$x_1$", "a_b", "\\", "↵", "[mask]", "{}", "中", "<E4>"]


def shown(event: StepEvent, texts: list[str], width: int = 400) -> str:
    out = io.StringIO()
    show_step(dataclasses.replace(event, texts=texts), Console(file=out, width=width))
    return out.getvalue()


def texts_of(event: StepEvent, mask: int) -> list[str]:
    return ["[mask]" if id_ == mask else str(id_) for id_ in event.ids]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "options", [{}, {"sampler": "random", "infill": (2, 0.0)}, {"path": "viterbi"}], ids=str
)
def test_every_step_of_every_family_prints(family: str, options: dict):
    model = silence_eot(tiny(family, context=20))
    for event in stream(model, prompt_of(6), max_new_tokens=6, seed=0, **options):
        text = shown(event, texts_of(event, model.config.mask_id))
        assert f"block {event.block}, step {event.step}" in text
        words = set(re.findall(r"\d+", text))
        assert {str(id_) for id_ in event.ids if id_ != model.config.mask_id} <= words
        assert text.count("▢") == event.ids.count(model.config.mask_id)
        assert text.count("◆") - 1 == sum(event.infilled)  # one stands in the legend


def test_eighty_columns_are_enough():
    model = silence_eot(tiny("dadlm", candidates=4, block=16, context=48))
    event = next(iter(stream(model, prompt_of(6), max_new_tokens=20, seed=0)))
    text = shown(event, ["a long token here"] * len(event.ids), width=80)
    rows = [line for line in text.splitlines() if re.match(r" \d", line)]
    assert [row.split()[0] for row in rows] == [str(i) for i in range(len(event.ids))]
    assert all("a long" in row or "▢" in row for row in rows)
    assert max(map(len, text.splitlines())) <= 80 and "…" not in "".join(row[:60] for row in rows)


def test_eighty_columns_show_whole_words():
    """Four candidates of nine letters each, with both numbers."""
    model = silence_eot(tiny("dadlm", candidates=4, block=4, context=48))
    event = next(iter(stream(model, prompt_of(8), max_new_tokens=4, seed=0)))
    top = [[[(id_, "mountains", p) for id_, _, p in node] for node in group] for group in event.top_tokens]
    text = shown(dataclasses.replace(event, top_tokens=top), ["mountains"] * 4, width=80)
    assert text.count("mountains") >= 16
    for k, p in enumerate(event.transition[1][event.path[0]]):
        assert f"{p:.2f} {event.top_tokens[1][k][0][2]:.2f}" in text


def test_every_candidate_stands_with_probability_and_transition():
    model = silence_eot(tiny("dadlm", candidates=3))
    event = next(iter(stream(model, prompt_of(6), max_new_tokens=6, seed=0)))
    text = shown(event, texts_of(event, model.config.mask_id))
    for i in (2, 3):
        for k in range(3):
            id_, _, p = event.top_tokens[i][k][0]
            for number in (p, event.transition[i][event.path[i - 1]][k]):
                assert f"{number:.2f}".lstrip("0") in text
            assert str(id_) in text


def test_a_drawn_token_stands_with_both_of_its_probabilities():
    event = next(iter(stream(edge_model(N=4, vocab=30), prompt_of(8), max_new_tokens=4, seed=0, **ALL)))
    text = shown(event, texts_of(event, 29), width=80)
    for given, alone in zip(event.probability, event.alone, strict=True):
        assert f"{given:.2f} ({alone:.2f})" in text
    event = next(iter(stream(silence_eot(tiny("bd3lm")), prompt_of(8), max_new_tokens=4, seed=0, **ALL)))
    text = shown(event, texts_of(event, 29), width=80)
    assert all(f"{p:.2f}" in text for p in event.probability) and "(" not in text


def odd_event() -> StepEvent:
    model = silence_eot(tiny("dadlm", block=4, candidates=2))
    event = next(iter(stream(model, prompt_of(6), max_new_tokens=2, seed=0)))
    tokens = iter(ODD * 3)
    top = [[[(id_, next(tokens), p) for id_, _, p in node] for node in group] for group in event.top_tokens]
    return dataclasses.replace(event, top_tokens=top)


def test_tokens_are_shown_literally():
    event = odd_event()
    text = shown(event, ["[bold]", "[/]", "$", "_"])
    for group in event.top_tokens:
        for node in group:
            for _, token, _ in node[:1]:
                assert token in text


def test_a_wide_block_stays_readable_in_a_narrow_terminal():
    """16 positions in 80 columns: each decided token must still be legible."""
    model = silence_eot(tiny("dadlm", block=16, candidates=4, context=64))
    event = list(stream(model, prompt_of(16), max_new_tokens=16, seed=0, sampler="random", steps=2))[-1]
    words = [f"word{i:02}" for i in range(16)]
    text = shown(event, words, width=80)
    assert all(word in text for word in words)
