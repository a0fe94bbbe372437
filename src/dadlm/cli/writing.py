"""One text in the terminal as it is written: block by block, or every step with its graph."""

import time

from rich.console import Console
from rich.text import Text

from dadlm.decode import DecodeSettings
from dadlm.decode.events import event_of
from dadlm.decode.generate import completions, decode_steps
from dadlm.decode.show import show_step
from dadlm.model import Model


def write_text(
    model: Model, prompt: str, settings: DecodeSettings, seed: int, show: bool, console: Console
) -> None:
    """Complete a prompt in front of the reader, until Ctrl-C at the latest; then print what it took."""
    [row] = completions(model, [prompt], settings, seed)
    console.print(Text(prompt, style="dim"), end="\n" if show else "")
    tokens, passes, printed, stopped, start = [], 0, 0, "", time.perf_counter()
    try:
        for result in decode_steps(model, [row]):
            finished = [row.ids[position] for new in result.committed for position in new.positions]
            tokens, passes = tokens + finished, passes + bool(result.rows)
            if show and result.step:
                show_step(event_of(model, result.step, tokens=1), console)
            elif finished and not show:
                # Without a character whose last bytes are still to come.
                text = _text(model, tokens).rstrip("\N{REPLACEMENT CHARACTER}")
                console.print(Text(text[printed:]), end="")
                printed = len(text)
    except KeyboardInterrupt:
        stopped = "stopped after "
    seconds = time.perf_counter() - start
    console.print(Text(_text(model, tokens)[printed:]))
    console.print(f"{stopped}{cost_line(len(tokens), passes)}, {seconds:.1f} s, seed {seed}", style="dim")


def cost_line(tokens: int, passes: int) -> str:
    """Tokens and passes of texts, in words."""
    return f"{tokens} tokens in {passes} forward passes: {tokens / max(1, passes):.2f} per pass"


def _text(model: Model, tokens: list[int]) -> str:
    assert model.tokenizer is not None, "the prompt was a text"
    return model.tokenizer.decode(tokens)


def show(text: str, console: Console, before: str = "") -> None:
    """To a reader with what was there before in grey; into a pipe or a file as it is, tabs and all."""
    if console.is_terminal:
        console.print(Text.assemble((before, "dim"), text))
    else:
        print(before + text)
