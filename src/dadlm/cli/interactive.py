"""The loop of `dadlm generate` at a terminal: a prompt is typed, its text appears block by block."""

import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Console
from rich.text import Text

from dadlm.cli.options import cost_line
from dadlm.decode import DecodeSettings
from dadlm.decode.events import event_of
from dadlm.decode.generate import completions, decode_steps
from dadlm.decode.samplers import SAMPLERS
from dadlm.decode.show import show_step
from dadlm.errors import ConfigError, DadlmError
from dadlm.model import Model, in_mode

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

    def obey(self, words: list[str]) -> None:
        match words:
            case ["set"]:
                for name, value in asdict(self.settings).items():
                    self.console.print(Text(f"{name:18s} {value}"))
            case ["set", name, *values] if values:
                self._change(name.replace("-", "_"), values)  # as on the command line, or as in Python
            case ["seed"]:
                self.seed = None
            case ["seed", number]:
                try:
                    self.seed = int(number)
                except ValueError:
                    raise ConfigError(f"a seed is a whole number, got {number!r}") from None
            case ["show"]:
                self.show = not self.show
                self.console.print(f"steps are {'shown' if self.show else 'not shown'}", style="dim")
            case ["help"]:
                self.console.print(Text(_HELP))
            case _:
                raise ConfigError(f"/{' '.join(words)} is no command; /help lists them")

    def _change(self, name: str, words: list[str]) -> None:
        if name not in asdict(self.settings):
            raise ConfigError(f"no setting {name!r}; /set lists them")
        values = [_value(word) for word in words]
        changes: dict[str, Any] = {name: values[0] if len(values) == 1 else tuple(values)}
        if name == "sampler":  # what only the one before reads goes with it
            fields = type(self.settings).__dataclass_fields__
            changes |= {one: fields[one].default for other in SAMPLERS.values() for one in other.options}
        changed = replace(self.settings, **changes)
        changed.check(in_mode(self.model, changed.mode).config)
        self.settings = changed

    def write(self, prompt: str) -> None:
        """Complete a prompt in front of the reader, until Ctrl-C at the latest; then print what it took."""
        seed = secrets.randbits(31) if self.seed is None else self.seed
        model = in_mode(self.model, self.settings.mode)
        [row] = completions(model, [prompt], self.settings, seed)
        assert model.tokenizer is not None, "the prompt was a text"
        decode, console, start = model.tokenizer.decode, self.console, time.perf_counter()
        console.print(Text(prompt, style="dim"), end="\n" if self.show else "")
        tokens, passes, printed, stopped = [], 0, 0, ""
        try:
            for result in decode_steps(model, [row]):
                finished = [row.ids[position] for new in result.committed for position in new.positions]
                tokens, passes = tokens + finished, passes + bool(result.rows)
                if self.show and result.step:
                    show_step(event_of(model, result.step, tokens=1), console)
                elif finished and not self.show:
                    # Without a character whose last bytes are still to come.
                    text = decode(tokens).rstrip("\N{REPLACEMENT CHARACTER}")
                    console.print(Text(text[printed:]), end="")
                    printed = len(text)
        except KeyboardInterrupt:
            stopped = "stopped after "
        cost = f"{cost_line(len(tokens), passes)}, {time.perf_counter() - start:.1f} s, seed {seed}"
        console.print(Text(decode(tokens)[printed:]))
        console.print(stopped + cost, style="dim")


def _value(word: str) -> int | float | str | None:
    """A number where it is one; the settings check the rest themselves."""
    if word.lower() == "none":
        return None
    for number in (int, float):
        with suppress(ValueError):
            return number(word)
    return word


def converse(model: Model, settings: DecodeSettings, seeds: Sequence[int] = (), show: bool = False) -> int:
    """Read prompts and commands until Ctrl-D or /quit; errors are printed and the loop continues."""
    if len(seeds) > 1:
        raise ConfigError("texts are written one by one here: give one --seed")
    settings.check(in_mode(model, settings.mode).config)
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
                session.obey(line[1:].split())
            elif line.strip():
                session.write(line)
        except EOFError:
            console.print()
            return 0
        except KeyboardInterrupt:  # at the prompt: a fresh line
            console.print()
        except (DadlmError, UnicodeDecodeError) as error:
            console.print(Text(f"error: {error}", style="red"))
