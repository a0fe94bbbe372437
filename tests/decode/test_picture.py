"""One step as a picture: files that open, odd tokens shown literally, and clear refusals."""

import dataclasses
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from tests.decode.test_chain import edge_model
from tests.decode.tiny import FAMILIES, prompt_of, silence_eot, tiny

from dadlm import ConfigError, StepEvent, stream
from dadlm.decode.picture import draw_step

matplotlib = pytest.importorskip("matplotlib")


def step(family: str = "dadlm", index: int = 0, **options) -> StepEvent:
    model = silence_eot(tiny(family, block=4, candidates=3, context=20))
    return list(stream(model, prompt_of(5), max_new_tokens=6, seed=0, **options))[index]


def with_tokens(event: StepEvent, token: str) -> StepEvent:
    top = [[[(id_, token, p) for id_, _, p in node] for node in group] for group in event.top_tokens]
    return dataclasses.replace(event, top_tokens=top)


def svg_texts(event: StepEvent, folder: Path, title: str | None = None) -> list[str]:
    """What a reader of the picture sees: text kept as text, formulae broken up into their parts."""
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        draw_step(event, folder / "step.svg", title=title)
    root = ElementTree.parse(folder / "step.svg").getroot()
    return ["".join(node.itertext()) for node in root.iter() if node.tag.endswith("}text")]


@pytest.mark.parametrize("family", FAMILIES)
def test_svg_parses_and_png_is_one(family: str, tmp_path):
    event = step(family)
    draw_step(event, tmp_path / "step.svg")
    draw_step(event, str(tmp_path / "step.PNG"), title="a title")
    root = ElementTree.parse(tmp_path / "step.svg").getroot()
    assert root.tag.endswith("svg") and len(list(root.iter())) > 20
    png = (tmp_path / "step.PNG").read_bytes()
    assert png.startswith(b"\x89PNG\r\n\x1a\n") and len(png) > 2000


def test_drawn_tokens_stand_with_their_probabilities(tmp_path):
    how = {"max_new_tokens": 4, "seed": 0, "sampler": "random", "steps": 1}
    event = next(iter(stream(edge_model(N=4, vocab=30), prompt_of(8), **how)))
    texts = svg_texts(event, tmp_path)
    assert {"given left", "alone"} <= set(texts)
    assert {f"{p:.2f}" for p in event.probability + event.alone if p is not None} <= set(texts)
    texts = svg_texts(step(), tmp_path)
    assert "drawn" in texts and "alone" not in texts


def test_pdf(tmp_path):
    draw_step(step(), tmp_path / "step.pdf")
    assert (tmp_path / "step.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(
    "options", [{"sampler": "random", "steps": 1}, {"path": "viterbi", "infill": (2, 0.0)}]
)
@pytest.mark.parametrize("index", [0, -1])
def test_every_kind_of_step(options: dict, index: int, tmp_path):
    draw_step(step(index=index, **options), tmp_path / "step.svg")
    assert ElementTree.parse(tmp_path / "step.svg").getroot().tag.endswith("svg")


@pytest.mark.parametrize(
    "token", ["$", "$$", "$x_1$", r"$\frac$", r"\$", "_", "^", "a\nb", "{", "%", "<&>", '"']
)
def test_odd_tokens_are_shown_literally(token: str, tmp_path):
    texts = svg_texts(with_tokens(step(), token), tmp_path)
    assert texts.count(token.splitlines()[0]) > 3 * 3, texts  # three groups of three, one anchor


@pytest.mark.parametrize("title", ["costs $5 or $6", r"$\frac$", "$_$", "after “$x_1$”"])
def test_odd_titles_are_shown_literally(title: str, tmp_path):
    assert title in svg_texts(step(), tmp_path, title)


@pytest.mark.parametrize("token", ["中文", "🙂"])
def test_tokens_that_the_font_does_not_know_do_not_warn(token: str, tmp_path):
    """Warnings are errors in these tests; people would see one per token on their terminal."""
    draw_step(with_tokens(step(), token), tmp_path / "far.png")
    assert (tmp_path / "far.png").stat().st_size > 2000


@pytest.mark.parametrize("name", ["step.jpg", "step", "step.svgz", ".png", "step.png.txt"])
def test_an_unknown_ending_is_refused(name: str, tmp_path):
    with pytest.raises(ConfigError, match=r"\.svg, \.png, \.pdf"):
        draw_step(step(), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(ConfigError, match="nowhere"):
        draw_step(step(), tmp_path / "nowhere" / "step.png")


def test_the_same_step_gives_the_same_picture(tmp_path):
    for name in ("a.png", "b.png"):
        draw_step(step(), tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


@pytest.mark.parametrize("name", ["step.svg", "step.png"])
def test_a_full_disk_leaves_the_old_picture(name: str, tmp_path, request):
    (tmp_path / name).write_text("old")
    event = step()
    request.getfixturevalue("full_disk")
    with pytest.raises(ConfigError, match="cannot write"):
        draw_step(event, tmp_path / name)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["old"]


def test_notebooks_draw_the_step_itself(tmp_path, monkeypatch):
    draw_step(step(), tmp_path / "step.svg")
    assert step()._repr_svg_() == (tmp_path / "step.svg").read_text()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert step()._repr_svg_() is None
