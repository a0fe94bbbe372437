"""What the commands share: how words become options, models by the names people type, texts for people."""

import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import asdict, dataclass, fields, is_dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import tyro
from rich.console import Console
from rich.text import Text

from dadlm.decode import DecodeSettings, settings_for
from dadlm.decode.pair import LOOKUP, usual_draft
from dadlm.errors import ConfigError, DataError
from dadlm.model import Model, in_mode, load
from dadlm.model.packaged import folder_of, is_whole
from dadlm.model.pretrained import PACKAGED, shipped

_NUMBER = re.compile(r"-?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?")
_INTERNAL = re.compile(r"\[/?bold\]|Error parsing [A-Za-z][\w.]*: ")
_FLAG = re.compile(r"--?[a-zA-Z]")
_TYPE = re.compile(r"<class '(?:\w+\.)*(\w+)'>")
_TYPES = {"NoneType": "None", "int": "whole number", "float": "number", "str": "text"}
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class JsonOption:
    json: bool = False
    """Print one JSON object, for programs."""


@dataclass(frozen=True, kw_only=True)
class ModelOptions(JsonOption):
    dtype: Literal["float32", "bfloat16"] = "float32"
    """bfloat16 is several times faster on a GPU; only float32 gives the same text at every batch size."""


@dataclass(frozen=True, kw_only=True)
class DeviceOptions(JsonOption):
    """For commands that care about speed on a GPU."""

    device: str = "auto"
    """cpu, cuda, or auto (cuda if available)."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto: bfloat16 on cuda (several times faster there), float32 on a cpu.
    Only float32 gives the same text at every batch size."""


def parse(kind: type[T], words: list[str], command: str, **more: Any) -> T:
    """The options of a command; a flag has no --no-FLAG beside it."""
    flags = (tyro.conf.FlagCreatePairsOff,)
    with plain_errors():
        return tyro.cli(kind, args=joined(kind, words), prog=f"dadlm {command}", config=flags, **more)


def joined(kind: type, words: list[str]) -> list[str]:
    """Words in which a list given in parts (`--model A --model B`) is in one: the parser would keep the last
    part."""
    lists, begun, group = _lists(kind), dict[str, list[str]](), list[str]()
    groups, end = [group], words.index("--") if "--" in words else len(words)
    for word in words[:end]:
        flag, equals, value = word.partition("=")
        flag = flag.replace("_", "-")
        if not _FLAG.match(word):
            group.append(word)
        elif flag in begun:
            group = begun[flag]
            group += [value] if equals else []
        else:
            group = [word]
            groups.append(group)
            begun |= {flag: group} if flag in lists else {}
    return [*chain.from_iterable(groups), *words[end:]]


def _lists(kind: type) -> set[str]:
    """Options that take any number of values; of nested settings those whose names have no prefix."""
    found, hints = set[str](), get_type_hints(kind)
    for name in (one.name for one in fields(kind)):
        hint = hints[name]
        if isinstance(hint, type) and is_dataclass(hint):
            found |= _lists(hint)
        elif get_origin(hint) in (list, Sequence) or get_args(hint)[-1:] == (...,):
            found.add("--" + name.replace("_", "-"))
    return found


@contextmanager
def plain_errors() -> Iterator[None]:
    """The parser's errors without Python's names of types and the markup that its boxes show."""
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            yield
    finally:
        for line in said.getvalue().splitlines(keepends=True):
            plain = _TYPE.sub(lambda found: _TYPES.get(found[1], found[1]), _INTERNAL.sub("", line))
            if line != plain and (edge := plain.rfind("│")) > 0:  # the box stays as wide as it was
                plain = plain[:edge] + " " * (len(line) - len(plain)) + plain[edge:]
            sys.stderr.write(plain)


def usage_of(command: str, kinds: dict[str, type]) -> str:
    """How a command with subcommands is called; what each is for stands in the docstring of its options."""
    lines = (f"  {name:10s} {kind.__doc__}" for name, kind in kinds.items())
    first, last = f"usage: dadlm {command} {'|'.join(kinds)} [options]\n", "--help lists the options."
    return "\n".join([first, *lines, f"\ndadlm {command} KIND {last}"])


def subcommand(words: list[str], kinds: dict[str, type[T]], usage: str, missing: str) -> type[T] | None:
    """The options of the subcommand that is named first; None when only help was wanted, and printed."""
    if words and words[0] in ("-h", "--help"):
        print(usage)
        return None
    if not words or words[0] not in kinds:
        raise ConfigError(f"{missing}\n{usage}")
    return kinds[words[0]]


def numbers_last(words: list[str], most: dict[str, int]) -> list[str]:
    """Move options that take several numbers to the end: the parser would take a prompt or file behind them
    for one more number. `most` says how many each takes."""
    if "--" in words:
        return words
    parts = [word.split("=", 1) if word.partition("=")[0] in most else [word] for word in words]
    rest, moved = list(chain.from_iterable(parts)), []
    for name, count in most.items():
        while name in rest:
            at = rest.index(name)
            end = min(at + 2, len(rest))  # the first is its own whatever it is: the parser says what is wrong
            while end < min(len(rest), at + 1 + count) and _NUMBER.fullmatch(rest[end]):
                end += 1
            moved += rest[at:end]
            del rest[at:end]
    return rest + moved


def open_model(name: str, device: str, dtype: str) -> Model:
    """Load a model; of one that ships with the package, say so."""
    if name in PACKAGED and not is_whole(folder_of(name)):
        print(
            f"{name} is opened for the first time: a minute, then seconds ({folder_of(name)})",
            file=sys.stderr,
        )
    model = load(name, device, dtype)
    if shipped(name) is not None:
        print(f"model: {name}, which ships with dadlm (--model for another{_here(name)})", file=sys.stderr)
    return model


def _here(name: str) -> str:
    return f"; the folder {name} that lies here is ./{name}" if Path(name).is_dir() else ""


def announce_origin(name: str) -> None:
    """Say so if training starts from a model that ships with the package; under torchrun once."""
    if shipped(name) is not None and os.environ.get("RANK", "0") == "0":
        print(f"starting from {name}, which ships with dadlm{_here(name)}", file=sys.stderr)


def open_draft(
    name: str, model: str, settings: DecodeSettings, device: str, dtype: str
) -> Model | str | None:
    """Who drafts for the model of that name in mode lossless."""
    if settings.mode == "lossless":
        name = name or usual_draft(model) or ""
        return open_model(name, device, dtype) if name and name != LOOKUP else name or None
    return name or None


def suited_settings(model: Model, parsed: DecodeSettings, words: list[str], **usual: Any) -> DecodeSettings:
    """What the command line names, for the rest what is usual here or suits the model; says what changes
    nothing."""
    given = {word.partition("=")[0][2:].replace("-", "_") for word in words if word.startswith("--")}
    named = {name: value for name, value in asdict(parsed).items() if name in given}
    settings = settings_for(model.config, usual | named)
    if idle := sorted(settings.unread(in_mode(model, settings.mode).config) & named.keys()):
        options = ", ".join(f"--{name.replace('_', '-')}" for name in idle)
        print(f"note: with this model and these options, {options} changes nothing", file=sys.stderr)
    return settings


def input_lines() -> Iterator[str]:
    """Lines of standard input without their ends, as they come."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="strict")  # the C locale lets bytes pass that are not UTF-8
    try:
        for number, line in enumerate(sys.stdin):
            yield (line if number else line.removeprefix("\ufeff")).removesuffix("\n")  # a byte-order mark
    except UnicodeDecodeError as error:
        raise DataError(f"standard input is not {error.encoding.upper()}: {error.reason}") from None


def wide_seed(seed: int) -> int:
    """A seed, of which those that follow are used too."""
    if not -(2**63) <= seed < 2**63 - 1024:
        raise ConfigError("seed must fit into 64 bits")
    return seed


def cost_line(tokens: int, passes: int, cycles: int = 0) -> str:
    """Tokens and passes of texts, in words; of mode lossless its cycles."""
    if cycles:
        return f"{tokens} tokens in {cycles} cycles of draft and verify: {tokens / cycles:.2f} per cycle"
    return f"{tokens} tokens in {passes} forward passes: {tokens / max(1, passes):.2f} per pass"


def show(text: str, console: Console, before: str = "") -> None:
    """To a reader with what was there before in grey; into a pipe or a file as it is, tabs and all."""
    if console.is_terminal:
        console.print(Text.assemble((before, "dim"), text))
    else:
        print(before + text)
