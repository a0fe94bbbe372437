"""The loop of `dadlm generate` at a terminal: a prompt is typed, its text appears block by block."""

import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from rich.console import Console
from rich.text import Text

from dadlm.cli.options import cost_line
from dadlm.decode import DecodeSettings
from dadlm.decode.events import event_of
from dadlm.decode.generate import completions, decode_steps
from dadlm.decode.show import show_step
from dadlm.errors import ConfigError, DadlmError
from dadlm.model import Model

_HELP = """\
TEXT               complete it
/set               the settings of decoding
/set NAME VALUE    change one: /set sampler random, /set steps 4, /set infill 2 0.5, /set infill none
/seed NUMBER       decode every text with this seed; /seed alone draws new ones again
/show              every denoising step with its graph, on or off
/quit              leave, as Ctrl-D does; Ctrl-C stops the text in work"""


@dataclass
class Session:
    """What the loop remembers from one prompt to the next."""

    model: Model
    settings: DecodeSettings
    seed: int | None
    show: bool
    console: Console


def converse(model: Model, settings: DecodeSettings, seeds: Sequence[int] = (), show: bool = False) -> int:
    """Read prompts and commands until Ctrl-D or /quit; errors are printed and the loop continues."""
    if len(seeds) > 1:
        raise ConfigError("texts are written one by one here: give one --seed")
    settings.check(model.config)
    with suppress(ImportError):  # absent on Windows, where the terminal keeps the history itself
        import readline  # noqa: F401 (input() takes line editing and history from it)
    console = Console(highlight=False, soft_wrap=True)
    session = Session(model, settings, seeds[0] if seeds else None, show, console)
    console.print("Type a text to be continued, or /help.", style="dim")
    while True:
        try:
            line = input("> ")
            if line.strip() == "/quit":
                return 0
            if line.startswith("/"):
                _obey(session, line[1:].split())
            elif line.strip():
                seed = secrets.randbits(31) if session.seed is None else session.seed
                write_text(model, line, session.settings, seed, session.show, console)
        except EOFError:
            console.print()
            return 0
        except KeyboardInterrupt:  # at the prompt: a fresh line
            console.print()
        except (DadlmError, UnicodeDecodeError) as error:
            console.print(Text(f"error: {error}", style="red"))


def _obey(session: Session, words: list[str]) -> None:
    match words:
        case ["set"]:
            for name, value in asdict(session.settings).items():
                session.console.print(Text(f"{name:18s} {value}"))
        case ["set", name, *values] if values:
            changed = _changed(session.settings, name, values)
            changed.check(session.model.config)
            session.settings = changed
        case ["seed"]:
            session.seed = None
        case ["seed", number]:
            try:
                session.seed = int(number)
            except ValueError:
                raise ConfigError(f"a seed is a whole number, got {number!r}") from None
        case ["show"]:
            session.show = not session.show
            session.console.print(f"steps are {'shown' if session.show else 'not shown'}", style="dim")
        case ["help"]:
            session.console.print(Text(_HELP))
        case _:
            raise ConfigError(f"/{' '.join(words)} is no command; /help lists them")


def _changed(settings: DecodeSettings, name: str, words: list[str]) -> DecodeSettings:
    name = name.replace("-", "_")  # as on the command line, or as in Python
    if name not in {field.name for field in fields(DecodeSettings)}:
        raise ConfigError(f"no setting {name!r}; /set lists them")
    values = [_value(word) for word in words]
    changes: dict[str, Any] = {name: values[0] if len(values) == 1 else tuple(values)}
    if name == "sampler" and changes[name] != "random":
        changes["steps"] = None  # only that sampler has them
    return replace(settings, **changes)


def _value(word: str) -> int | float | str | None:
    """A number where it is one; the settings check the rest themselves."""
    if word.lower() == "none":
        return None
    for number in (int, float):
        with suppress(ValueError):
            return number(word)
    return word


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


def _text(model: Model, tokens: list[int]) -> str:
    assert model.tokenizer is not None, "the prompt was a text"
    return model.tokenizer.decode(tokens)
