"""One text in the terminal as it is written: block by block, or every step with its graph."""

import time
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from dadlm.decode import DecodeSettings
from dadlm.decode.block import Step
from dadlm.decode.events import event_of
from dadlm.decode.generate import decode, ids_of, start_rows
from dadlm.decode.rows import Row
from dadlm.decode.show import show_step
from dadlm.model import Model


def write_text(
    model: Model, prompt: str, settings: DecodeSettings, seed: int, show: bool, console: Console
) -> None:
    """Complete a prompt in front of the reader, until Ctrl-C at the latest; then print what it took."""
    [row] = start_rows(model, [prompt], settings, seed)
    console.print(Text(prompt, style="dim"), end="\n" if show else "")
    tokens, passes, printed, stopped, start = [], 0, 0, "", time.perf_counter()
    try:
        for step, finished in passes_of(model, row, settings):
            tokens, passes = tokens + finished, passes + 1
            if show:
                show_step(event_of(model, step, tokens=1), console)
            elif finished:
                # Without a character whose last bytes are still to come.
                text = _text(model, tokens).rstrip("\N{REPLACEMENT CHARACTER}")
                console.print(Text(text[printed:]), end="")
                printed = len(text)
    except KeyboardInterrupt:
        stopped = "stopped after "
    seconds = time.perf_counter() - start
    console.print(Text(_text(model, tokens)[printed:]))
    console.print(f"{stopped}{cost_line(len(tokens), passes)}, {seconds:.1f} s, seed {seed}", style="dim")
    note_cut(0 if stopped else cut_off(model, prompt, tokens), console)


def cost_line(tokens: int, passes: int) -> str:
    """Tokens and passes of texts, in words."""
    return f"{tokens} tokens in {passes} forward passes: {tokens / max(1, passes):.2f} per pass"


def note_cut(tokens: int, console: Console) -> None:
    """Why there are more passes than the tokens account for: blocks are written whole."""
    if tokens:
        console.print(f"({tokens} more tokens filled up the last block and were cut)", style="dim")


def cut_off(model: Model, prompt: str, tokens: list[int]) -> int:
    """How many tokens the last block of a text had behind its end."""
    config = model.config
    if config.family == "mdlm" or config.eot_id in tokens:  # writes no further than asked; ends with it
        return 0
    return -(len(ids_of(model, prompt) or [config.eot_id]) + len(tokens)) % config.block


def passes_of(model: Model, row: Row, settings: DecodeSettings) -> Iterator[tuple[Step, list[int]]]:
    """Each forward pass with the tokens whose block it finished; none while a block is in work."""
    for step in decode(model, [row], settings):
        if bool((step.block.masked & ~step.kept).any()):
            yield step, []
            continue
        first = int(step.block.first[0])
        block = step.ids[0, max(0, len(row.prompt) - first) : row.length - first].tolist()
        if model.config.eot_id in block:
            yield step, block[: block.index(model.config.eot_id) + 1]
            return  # AR looks only now and then whether a text has ended
        yield step, block


def _text(model: Model, tokens: list[int]) -> str:
    assert model.tokenizer is not None, "the prompt was a text"
    return model.tokenizer.decode(tokens)


def show(text: str, console: Console, before: str = "") -> None:
    """To a reader with what was there before in grey; into a pipe or a file as it is, tabs and all."""
    if console.is_terminal:
        console.print(Text.assemble((before, "dim"), text))
    else:
        print(before + text)
