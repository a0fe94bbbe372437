"""dadlm chat: a conversation with a model that has a chat template, at the terminal or through a pipe."""

import json
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.text import Text

from dadlm.cli.options import ModelOptions, input_lines, open_draft, open_model, parse, suited_settings
from dadlm.decode import DecodeSettings
from dadlm.decode.engines import engine_of
from dadlm.decode.generate import completions, decode_steps
from dadlm.decode.request import Row
from dadlm.errors import ConfigError, DadlmError, DataError
from dadlm.model import Model
from dadlm.tokens.chat import ANSWER_TOKENS, Message
from dadlm.tokens.growing_text import TextStream

Reason = Literal["stop", "length"]
TEMPERATURE = 0.2  # as on SmolLM2's card; at 1 small models lose the thread
_COSTS = ("tokens", "cycles", "seconds")
_EXITS = ("/exit", "/quit")
_ENDED = {"stop": "", "length": "cut off after ", None: "stopped after "}
_HELP = """\
TEXT      say it
/reset    begin a new conversation
/exit     leave, as /quit and Ctrl-D do; Ctrl-C stops an answer, and leaves where there is none"""


@dataclass(frozen=True)
class Options(ModelOptions):
    """Chat with a model at the terminal, or line by line from standard input.
    Uses mode ar if the model supports it, whatever the default below says.
    An answer has at most 512 tokens unless --max-new-tokens is given."""

    model: str = "smollm2"
    """A model with a chat template: smollm2, or the folder
    of a model converted from one that has a template."""
    system: str = ""
    """System message. Empty: the template's default."""
    draft: str = ""
    """Mode lossless: the model that drafts, or lookup (copies
    what followed the same tokens earlier in the text).
    Empty: the model itself if it can draft, otherwise lookup."""
    seed: int | None = None
    """Seed used for every answer. None: a new one each time."""
    device: str = "auto"
    """cpu, cuda, or auto (cuda if available)."""
    decoding: Annotated[DecodeSettings, tyro.conf.arg(name="")] = field(
        default_factory=lambda: DecodeSettings(temperature=TEMPERATURE)
    )


class Conversation:
    """What was said, and how the next answer is written."""

    def __init__(
        self,
        model: Model,
        settings: DecodeSettings,
        *,
        draft: Model | str | None = None,
        seed: int | None = None,
        system: str = "",
    ) -> None:
        self.target, _ = engine_of(model, settings.mode, draft)  # refused now, not at the first answer
        self.model, self.settings, self.draft, self.seed, self.system = model, settings, draft, seed, system
        self.costs: list[tuple[int, int, float]] = []
        """Of each answer: tokens, cycles (mode lossless), seconds."""
        self.reset()

    def reset(self) -> None:
        self.messages: list[Message] = [{"role": "system", "content": self.system}] if self.system else []

    def answer(self, said: str, write: Callable[[str], None]) -> Reason | None:
        """Answer, handing the text out as it comes, and say why it ended; None: by Ctrl-C, which keeps what
        there is."""
        asked: list[Message] = [*self.messages, {"role": "user", "content": said}]
        row, begin, text, interrupted = self._row(asked), time.perf_counter(), "", False
        try:
            for piece in self._pieces(row):
                text += piece
                write(piece)
        except KeyboardInterrupt:
            interrupted = True
        self.costs.append((len(row.tokens), row.cycles, time.perf_counter() - begin))
        self.messages = [*asked, {"role": "assistant", "content": text}]
        return None if interrupted else row.finished

    def _row(self, messages: list[Message]) -> Row:
        """An answer of as many tokens as are wanted and still fit."""
        assert self.model.tokenizer is not None, "it has a chat template"
        ids, context = self.model.tokenizer.encode_chat(messages), self.target.config.context
        if len(ids) >= context:
            raise DataError(
                f"the conversation has {len(ids)} tokens, and the model reads {context}: "
                "/reset begins a new one"
            )
        most = min(self.settings.max_new_tokens or ANSWER_TOKENS, context - len(ids))
        seed = secrets.randbits(31) if self.seed is None else self.seed
        return completions(self.target, [ids], replace(self.settings, max_new_tokens=most), seed)[0]

    def _pieces(self, row: Row) -> Iterator[str]:
        text, seen = TextStream(self.target.tokenizer), 0
        for _ in decode_steps(self.target, [row], engine_of(self.model, self.settings.mode, self.draft)[1]):
            new = row.tokens[seen:]
            seen += len(new)
            yield text.add(new)[0]
        yield text.end()[0]


def run(words: list[str]) -> int:
    options = parse(Options, words, "chat")
    model = open_model(options.model, options.device, options.dtype)
    if model.tokenizer is None or model.tokenizer.chat is None:
        raise ConfigError(
            f"{options.model} is a base model without a chat template: dadlm generate continues its texts, "
            "and --model smollm2 can chat"
        )
    usual = {"temperature": TEMPERATURE, "mode": "ar" if "ar" in model.config.modes else "diffusion"}
    settings = suited_settings(model, options.decoding, words, **usual)
    if options.draft and settings.mode != "lossless":
        raise ConfigError(f"draft belongs to mode lossless, and the mode is {settings.mode}: leave it out")
    draft = open_draft(options.draft, options.model, settings, options.device, options.dtype)
    talk = Conversation(model, settings, draft=draft, seed=options.seed, system=options.system)
    if options.json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return _piped(talk, options.json)
    return _at_terminal(talk, options.model)


def _piped(talk: Conversation, as_json: bool) -> int:
    """A message per line of standard input; answers alone on standard output. Unknown commands and lines that
    are too long are told, and do not keep the other lines from being answered."""
    code = 0
    for line in map(str.strip, input_lines()):
        try:
            if _obey(talk, line):
                break
            if line and not line.startswith("/"):
                _answer(talk, line, as_json)
        except (ConfigError, DataError) as error:
            print(f"error: {error}", file=sys.stderr)
            code = 2
    if as_json:
        sums = {name: sum(cost[i] for cost in talk.costs) for i, name in enumerate(_COSTS)}
        print(json.dumps({"messages": talk.messages} | sums, ensure_ascii=False))
    return code


def _answer(talk: Conversation, line: str, as_json: bool) -> None:
    """As it is written, or kept for the end; Ctrl-C leaves."""
    reason = talk.answer(line, _keep if as_json else _print)
    if reason is None:
        raise KeyboardInterrupt
    if not as_json:
        print(flush=True)
    if reason == "length":
        print(f"note: an answer was cut off after {talk.costs[-1][0]} tokens", file=sys.stderr)


def _at_terminal(talk: Conversation, name: str) -> int:
    """Until Ctrl-D, /exit, or Ctrl-C where nothing is written; errors are printed and the loop continues."""
    with suppress(ImportError):  # absent on Windows, where the terminal keeps the history itself
        import readline  # noqa: F401 (input() takes line editing and history from it)
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{name}: say something, or /help.", style="dim")
    while True:
        try:
            line = input("> ").strip()
            if _obey(talk, line):
                return 0
            elif line and not line.startswith("/"):
                reason = talk.answer(line, lambda piece: console.print(Text(piece), end=""))
                console.print()
                console.print(_ENDED[reason] + _cost(*talk.costs[-1]), style="dim")
        except (EOFError, KeyboardInterrupt):
            console.print()
            return 0
        except (DadlmError, UnicodeDecodeError) as error:
            console.print(Text(f"error: {error}", style="red"))


def _obey(talk: Conversation, line: str) -> bool:
    """Do what a line that begins with / says; whether the conversation is over."""
    if line == "/reset":
        talk.reset()
    elif line == "/help":
        print(_HELP, file=sys.stderr)
    elif line.startswith("/") and line not in _EXITS:
        raise ConfigError(f"{line.split()[0]} is no command: there are /reset, /help and /exit")
    return line in _EXITS


def _cost(tokens: int, cycles: int, seconds: float) -> str:
    per_cycle = f", {tokens / cycles:.2f} per cycle" if cycles else ""
    return f"{tokens} tokens in {seconds:.1f} s: {tokens / seconds:.1f} a second{per_cycle}"


def _keep(piece: str) -> None:
    """Nothing is printed: the whole conversation is, at the end."""


def _print(piece: str) -> None:
    print(piece, end="", flush=True)
