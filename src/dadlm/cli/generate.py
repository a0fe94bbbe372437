"""dadlm generate: prompts → texts, a look at every step, or a loop at the terminal."""

import json
import secrets
import sys
from dataclasses import dataclass, field, replace
from typing import Annotated

import tyro
from rich.console import Console

from dadlm.cli.interactive import converse
from dadlm.cli.options import (
    ModelOptions,
    cost_line,
    input_lines,
    numbers_last,
    open_draft,
    open_model,
    parse,
    show,
    suited_settings,
)
from dadlm.decode import DecodeSettings, generate, stream
from dadlm.decode.picture import check_name, draw_step
from dadlm.decode.settings import SUITED_SAMPLER
from dadlm.decode.show import show_step
from dadlm.errors import ConfigError
from dadlm.model import Model
from dadlm.model.pretrained import DEFAULT


@dataclass(frozen=True)
class Options(ModelOptions):
    prompts: tyro.conf.Positional[tuple[str, ...]] = ()
    """Prompts to complete ("" is the empty prompt).
    If none: an interactive loop at a terminal, otherwise one prompt per line of standard input."""
    model: str = DEFAULT
    """Name of a shipped model (see `dadlm models`), folder of a model or
    of a training run (uses its best checkpoint), or Hugging Face name."""
    draft: str = ""
    """Mode lossless: the model that drafts, or lookup (copies
    what followed the same tokens earlier in the text).
    Empty: the model itself if it can draft, bd3lm-edges for the shipped ar, otherwise lookup."""
    seed: tuple[int, ...] = ()
    """A single seed s gives prompt i the seed s + i; several give each prompt its own. If none: random."""
    batch_size: int = 32
    """Prompts decoded at once; affects speed, not the texts."""
    device: str = "auto"
    """cpu, cuda, or auto (cuda if available)."""
    show: bool = False
    """Print every denoising step of the first prompt with its graph."""
    picture: str | None = None
    """Save the graph of one step of the first prompt to this file (.svg, .png or .pdf)."""
    picture_step: int = 0
    """Which step to draw, counted from 0 over all blocks."""
    decoding: Annotated[DecodeSettings, tyro.conf.arg(name="")] = field(
        default_factory=lambda: DecodeSettings(sampler=SUITED_SAMPLER)
    )


def run(words: list[str]) -> int:
    options = parse(Options, numbers_last(words, {"--seed": len(words), "--infill": 2}), "generate")
    if options.picture:
        check_name(options.picture)
    model = open_model(options.model, options.device, options.dtype)
    draft = open_draft(options.draft, options.model, options.decoding, options.device, options.dtype)
    options = replace(options, decoding=suited_settings(model, options.decoding, words))
    # Nobody named a prompt, and somebody sits at the terminal to type one.
    for_files = options.prompts or options.json or options.picture
    if not for_files and sys.stdin.isatty() and sys.stdout.isatty():
        if options.decoding.mode == "lossless":
            raise ConfigError(
                "mode lossless needs prompts: name some, or use --mode ar, which writes the same"
            )
        return converse(model, options.decoding, options.seed, options.show)
    prompts = list(options.prompts) or _lines()
    seeds = list(options.seed)
    if len(seeds) < 2:
        first = seeds[0] if seeds else secrets.randbits(31)
        seeds = [first + row for row in range(len(prompts))]
    if options.show or options.picture:
        _look(model, prompts[0], seeds[0], options)
    how = {"batch_size": options.batch_size, "settings": options.decoding, "draft": draft}
    out = generate(model, prompts, seed=seeds, **how)
    lossless = options.decoding.mode == "lossless"
    if options.json:
        names = ("texts", "forward_passes", "tokens_per_forward", "cache_passes", "seeds")
        names += ("cycles", "tokens_per_cycle") if lossless else ()
        print(json.dumps({name: getattr(out, name) for name in names}, ensure_ascii=False))
        return 0
    console = Console(highlight=False, soft_wrap=True)
    for prompt, ids, text in zip(prompts, out.tokens, out.texts, strict=True):
        show(_continued(model, prompt, ids, text) + "\n", console, prompt)
    tokens, cycles = sum(map(len, out.tokens)), sum(out.cycles)
    cost = cost_line(tokens, sum(out.forward_passes), cycles)
    if lossless and options.decoding.tree is None and tokens < 1.1 * cycles:
        cost = f"{tokens} tokens one by one: drafting does not pay here (--tree 16 drafts all the same)"
    if not console.is_terminal:  # texts alone go into a file
        console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"{cost}; seed {' '.join(map(str, out.seeds))}", style="dim")
    return 0


def _continued(model: Model, prompt: str, ids: list[int], text: str) -> str:
    """A text as it follows its prompt: between words a tokenizer of words writes a space."""
    assert model.tokenizer is not None, "the prompt was a text"
    whole = model.tokenizer.decode([*model.tokenizer.encode(prompt), *ids])
    return whole.removeprefix(prompt) if prompt and whole.startswith(prompt) else text


def _lines() -> list[str]:
    """Prompts from standard input; an empty line is an empty prompt, so that texts and lines go in pairs."""
    if sys.stdin.isatty():
        print("prompts, one per line; Ctrl-D ends them", file=sys.stderr)
    prompts = list(input_lines())
    if not prompts:
        raise ConfigError('no prompt: name some ("" is the empty one), or write lines to standard input')
    return prompts


def _look(model, prompt: str, seed: int, options: Options) -> None:
    """Decode the first prompt step by step, in the terminal or as a picture."""
    console = Console(stderr=options.json)
    drawn, index = False, -1
    for index, event in enumerate(stream(model, prompt, seed=seed, settings=options.decoding)):
        if options.show:
            show_step(event, console)
        if options.picture and index == options.picture_step:
            draw_step(event, options.picture)
            console.print(f"step {index} is drawn in {options.picture}", markup=False)
            drawn = True
            if not options.show:
                break
    if options.picture and not drawn:
        wanted = options.picture_step
        raise ConfigError(f"--picture-step is {wanted}, but decoding took only {index + 1} steps")
