"""One forward pass as an animated SVG: words drawn independently, beside words drawn along a path.

Both panels show the same context; each frame is one draw, with seeds 0, 1, 2, …
"""

from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

import torch

from dadlm.decode import StepEvent, stream
from dadlm.model import Model
from dadlm.tour.language import LENGTH, Language

FRAMES, SECONDS, _DRAW = 8, 1.8, 0.22  # draws; seconds of each; seconds between its words
_COLUMN, _ROW, _WIDTH, _HEIGHT = 92, 42, 82, 28  # distances and size of the boxes, in pixels
_PANEL, _TOP = 400, 84
_SUBTITLES = {"BD3LM": "draws the four words independently", "DA-DLM": "draws them along a path of a graph"}
_STYLE = """\
text { font: 13px ui-sans-serif, system-ui, sans-serif; fill: #212529; text-anchor: middle }
.l { text-anchor: start } .b { font-weight: 600; font-size: 15px } .s { fill: #495057 }
.n { fill: #f1f3f5; stroke: #ced4da } .t { stroke: #868e96; fill: none }
.on rect { fill: #fff3bf; stroke: #f08c00; stroke-width: 2.5 }
.on path { stroke: #f08c00; stroke-width: 4; fill: none }
.yes { fill: #2b8a3e; font-weight: 600 } .no { fill: #c92a2a; font-weight: 600 }"""


def animate(
    models: Mapping[str, Model],
    language: Language,
    walk: torch.Tensor,
    shares: Mapping[str, float],
    file: Path,
) -> None:
    """Draw what each model writes after the phrases numbered walk [G], and its share of valid blocks."""
    parts = [*_head(language.tokenizer.decode(language.phrases[walk[-1]].tolist()))]
    for at, (name, model) in enumerate(models.items()):
        parts.append(f'<g transform="translate({20 + at * _PANEL} 0)">')
        parts += _panel(name, list(_events(model, language, walk)), language, walk[-1:], shares[name])
        parts.append("</g>")
    file.write_text("\n".join([*parts, "</svg>\n"]), encoding="utf-8")


def _events(model: Model, language: Language, walk: torch.Tensor) -> Iterator[StepEvent]:
    prompt = language.phrases[walk].flatten().tolist()
    how: dict[str, Any] = {"max_new_tokens": LENGTH, "sampler": "random", "steps": 1, "top_p": 1.0}
    for seed in range(FRAMES):
        yield next(iter(stream(model, prompt, seed=seed, top_tokens=LENGTH, **how)))


def _head(before: str) -> Iterator[str]:
    width, height = 2 * _PANEL + 10, _TOP + 4 * _ROW + 76
    total, end = FRAMES * SECONDS, 100 / FRAMES
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="BD3LM draws words independently and mixes phrases; DA-DLM draws them along a path">'
    )
    yield f"<style>\n{_STYLE}"
    for place in range(LENGTH + 1):
        start = 100 * place * _DRAW / total
        off, on = "{ opacity: 0 }", "{ opacity: 1 }"
        shown = f"{start + 0.3:.2f}%, {end:.2f}% {on} {end + 0.2:.2f}%, 100% {off}"
        yield f"@keyframes k{place} {{ 0%, {start:.2f}% {off} {shown} }}"
        yield f".k{place} {{ opacity: 0; animation: k{place} {total:g}s linear infinite }}"
    yield from (f".f{frame} * {{ animation-delay: {frame * SECONDS:.1f}s }}" for frame in range(FRAMES))
    yield "@media (prefers-reduced-motion) { .on * { animation: none } .f0 * { opacity: 1 } }\n</style>"
    yield f'<rect width="{width}" height="{height}" rx="10" fill="white"/>'
    said = f"After “{before}” one of four phrases follows. Four words, one forward pass:"
    yield f'<text x="20" y="28" class="l">{escape(said)}</text>'


def _panel(
    name: str, events: list[StepEvent], language: Language, before: torch.Tensor, share: float
) -> Iterator[str]:
    rest = f'<tspan class="s" font-size="13" font-weight="400">{_SUBTITLES[name]}</tspan>'
    yield f'<text x="0" y="58" class="l b">{name} {rest}</text>'
    words = _words(events[0])
    if len(events[0].top_tokens[0]) > 1:
        yield from _transitions(events[0])
    for place, column in enumerate(words):
        yield from (_box(place, row, word) for row, word in enumerate(column))
    for frame, event in enumerate(events):
        drawn = torch.tensor([event.drawn])
        valid = bool(language.valid(before, drawn))
        said = " ".join(language.tokenizer.decode([token]) for token in drawn[0].tolist())
        yield f'<g class="on f{frame}">'
        yield from _lit(event, words, language)
        look, mark = ("yes", "✓") if valid else ("no", "✗")
        place = f'x="{2 * _COLUMN}" y="{_TOP + 4 * _ROW + 22}"'
        yield f'<text {place} class="k{LENGTH} {look}">{escape(said)} {mark}</text></g>'
    tally = f"{share:.1%} of the phrases are valid"
    yield f'<text x="{2 * _COLUMN}" y="{_TOP + 4 * _ROW + 52}" class="b">{tally}</text>'


def _words(event: StepEvent) -> list[list[str]]:
    """[N][4]: the best token of each node, or the best tokens of a single node."""
    nodes = [group if len(group) > 1 else [[token] for token in group[0]] for group in event.top_tokens]
    return [[node[0][1].strip() for node in group] for group in nodes]


def _lit(event: StepEvent, words: list[list[str]], language: Language) -> Iterator[str]:
    """The drawn words, and the path if there is one."""
    graph, previous = len(event.top_tokens[0]) > 1, None
    for place, token in enumerate(event.drawn):
        assert token is not None, "one step draws all"
        word = language.tokenizer.decode([token]).strip()
        row = event.path[place] if graph else words[place].index(word) if word in words[place] else None
        if graph and previous is not None:
            yield f'<path class="k{place}" d="{_line(place, previous, event.path[place])}"/>'
        if row is not None:
            yield _box(place, row, words[place][row], f' class="k{place}"')
        previous = row


def _transitions(event: StepEvent) -> Iterator[str]:
    for place in range(1, LENGTH):
        for source, row in enumerate(event.transition[place]):
            for target, p in enumerate(row):
                if p >= 0.02:
                    look = f'stroke-width="{0.5 + 3 * p:.1f}" opacity="{0.25 + 0.5 * p:.2f}"'
                    yield f'<path class="t" {look} d="{_line(place, source, target)}"/>'


def _line(place: int, source: int, target: int) -> str:
    """From the right side of a box to the left side of one in the next column."""
    x, y = (place - 1) * _COLUMN + _WIDTH, _TOP + _HEIGHT // 2
    return f"M{x} {y + source * _ROW}L{place * _COLUMN} {y + target * _ROW}"


def _box(place: int, row: int, word: str, look: str = ' class="w"') -> str:
    x, y = place * _COLUMN, _TOP + row * _ROW
    box = f'<rect class="n" x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="6"/>'
    return f'<g{look}>{box}<text x="{x + _WIDTH // 2}" y="{y + 19}">{escape(word)}</text></g>'
