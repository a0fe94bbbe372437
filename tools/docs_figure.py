"""The figure of docs/concepts.md, in which a reader goes through real denoising steps: one page of HTML.

    python -m tools.docs_figure docs/pictures/steps.html tour-dadlm tour-bd3lm

Both models of the tour write the block after each of the language's first phrases, in one and in two steps.
"""

import json
import sys
from pathlib import Path
from typing import Any

import dadlm
from dadlm.decode import StepEvent
from dadlm.model import Model
from dadlm.tour.language import LENGTH, Language, make_language

MODELS = ("DA-DLM", "BD3LM")
STEPS = (1, 2)
PHRASES, SEED = 8, 0
PLACE = "null /* runs */"
SHOWN = 0.005  # less probable tokens and transitions are left out


def steps_of(model: Model, language: Language, phrase: int, steps: int) -> list[dict[str, Any]]:
    """The denoising steps of the block after a phrase, as the page draws them."""
    prompt = language.tokenizer.decode(language.phrases[phrase].tolist())
    events = dadlm.stream(
        model, prompt, max_new_tokens=LENGTH, sampler="random", steps=steps, top_p=1.0, seed=SEED + phrase
    )
    return [_drawable(event, language) for event in events]


def _drawable(event: StepEvent, language: Language) -> dict[str, Any]:
    nodes = [
        [[(text, round(p, 3)) for _, text, p in node if p >= SHOWN] for node in group if node]
        for group in event.top_tokens
    ]
    edges = [
        (i, j, k, round(p, 3))
        for i, group in enumerate(event.transition)
        for j, row in enumerate(group[: 1 if i == 0 else len(nodes[i - 1])])
        for k, p in enumerate(row[: len(nodes[i])])
        if p >= SHOWN
    ]
    words = [None if id_ is None else language.tokenizer.decode([id_]) for id_ in event.drawn]
    names = ("block", "step", "texts", "anchor", "path", "fixed")
    return {name: getattr(event, name) for name in names} | {"nodes": nodes, "edges": edges, "drawn": words}


def page(models: dict[str, Model]) -> str:
    """The template with the runs of the models and the language's true successors in it."""
    language = make_language()
    text = [language.tokenizer.decode(phrase.tolist()) for phrase in language.phrases]
    follow = {text[i]: [text[j] for j in row] for i, row in enumerate(language.successors.tolist())}
    runs = {
        name: {steps: [steps_of(model, language, i, steps) for i in range(PHRASES)] for steps in STEPS}
        for name, model in models.items()
    }
    content = {"prompts": text[:PHRASES], "follow": follow, "runs": runs}
    template = Path(__file__).with_suffix(".html").read_text(encoding="utf-8")
    return template.replace(PLACE, json.dumps(content, ensure_ascii=False).replace("</", "<\\/"))


if __name__ == "__main__":
    named = {name: dadlm.load(folder) for name, folder in zip(MODELS, sys.argv[2:4], strict=True)}
    Path(sys.argv[1]).write_text(page(named), encoding="utf-8")
