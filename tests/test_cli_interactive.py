"""The loop of `dadlm generate`: in a terminal of its own, and its parts."""

import io
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from rich.console import Console
from tests.decode.tiny import FAMILIES, silence_eot, tiny

from dadlm import DecodeSettings, Model, generate, save
from dadlm.cli.interactive import Session, converse
from dadlm.decode.engine import Committed, StepResult
from dadlm.decode.request import Row
from dadlm.tokens import train_bpe, word_level

pytest.importorskip("termios")
WORDS = [f"w{number}" for number in range(28)]
# A terminal of its own, so that Ctrl-C reaches the command and nobody else; and is not ignored, as what a
# shell starts in the background ignores it, tests included.
START = """import fcntl, os, signal, sys, termios
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "dadlm.cli", *sys.argv[1:]])"""


class Terminal:
    """A command in a terminal; every wait is bounded."""

    def __init__(self, *words: object) -> None:
        self.end, inner = os.openpty()
        environment = os.environ | {"TERM": "dumb", "COLUMNS": "200"}
        command = [sys.executable, "-c", START, *map(str, words)]
        self.process = subprocess.Popen(command, stdin=inner, stdout=inner, stderr=inner, env=environment)
        os.close(inner)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self.end, text.encode())

    def wait_for(self, pattern: str, seconds: float = 120) -> str:
        """What is printed up to and with the pattern."""
        limit = time.monotonic() + seconds
        while not (found := re.search(pattern, self.seen)):
            left = limit - time.monotonic()
            assert left > 0 and select.select([self.end], [], [], left)[0], f"no {pattern!r} in {self.seen!r}"
            self.seen += os.read(self.end, 65536).decode().replace("\r", "")
        before, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return before

    def interrupt(self, pattern: str) -> str:
        """Press Ctrl-C until the pattern is seen: readline misses one that comes before it begins to wait."""
        for _ in range(59):
            self.type("\x03")
            try:
                return self.wait_for(pattern, 2)
            except AssertionError:
                continue
        self.type("\x03")
        return self.wait_for(pattern, 2)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(timeout=120)
        os.close(self.end)


def spoken(model: Model, lines: list[str], monkeypatch: pytest.MonkeyPatch, **how: object) -> list[str]:
    """Type lines into the loop of this process, then Ctrl-D; what it prints, line by line."""
    typed, printed = iter(lines), io.StringIO()

    def read(prompt: str) -> str:
        printed.write(prompt + "\n")
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read)
    monkeypatch.setattr("dadlm.cli.interactive.Console", lambda **_: Console(file=printed, width=200))
    assert converse(model, DecodeSettings(max_new_tokens=16), **how) == 0  # type: ignore[arg-type]
    return printed.getvalue().splitlines()


def test_a_conversation_in_a_terminal(tmp_path: Path) -> None:
    model = tiny("ar", tokenizer=word_level(WORDS), context=8192, tie_embedding=False)
    with torch.no_grad():
        model.head.linear.weight[model.config.eot_id] = 0.0  # never the likeliest: greedy texts do not end
    save(model, tmp_path / "model")
    told = generate(model, ["w1 w2"], max_new_tokens=12, seed=7)
    terminal = Terminal("generate", "--model", tmp_path / "model", "--seed", 7, "--max-new-tokens", 12)
    try:
        terminal.wait_for("/help.*\n> ")
        terminal.type("w1 w2\n")
        answer = terminal.wait_for(r"seed 7\n> ")
        assert f"w1 w2{told.texts[0]}\n" in answer
        assert f"{len(told.tokens[0])} tokens in {told.forward_passes[0]} forward passes: 1.00" in answer
        terminal.type("half a line")
        # Until it is echoed: Ctrl-C discards what was typed, and readline, told that something is there,
        # would wait for it and be deaf to any further Ctrl-C.
        terminal.wait_for("half a line")
        terminal.interrupt(r"\n> ")  # Ctrl-C at the prompt: a fresh one
        terminal.type("/set max_new_tokens 8000\n/set temperature 0\n")
        terminal.wait_for(r"8000\n> .*\n> ")
        terminal.type("w3\n")
        terminal.wait_for(r"\nw3(?:w\d+)(?: w\d+){5}")  # it is written while we look
        terminal.type("\x03")
        stopped = terminal.wait_for(r"stopped after (\d+) tokens in \d+ forward passes.*seed 7\n> ")
        assert 5 < int(re.findall(r"stopped after (\d+)", stopped)[0]) < 8000
        terminal.type("\x04")
        assert terminal.process.wait(timeout=120) == 0
    finally:
        terminal.close()


def test_settings_seeds_and_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("dadlm", tokenizer=word_level(WORDS))
    lines = ["/seed 5", "w1", "/set sampler random", "/set steps 2", "/set infill 2 0.5", "w1"]
    lines += ["/set steps 99", "/set steps 0", "/set colour red", "/dance", "/seed x", "nonsense", "", "/set"]
    lines += ["/set sampler first-hitting", "/set infill none", "w1", "/help"]
    printed = spoken(model, lines, monkeypatch)
    plain = generate(model, ["w1"], max_new_tokens=16, seed=5)
    few = generate(model, ["w1"], max_new_tokens=16, seed=5, sampler="random", steps=2, infill=(2, 0.5))
    texts = [line for line in printed if line.startswith("w1")]
    assert texts == [f"w1{out.texts[0]}" for out in (plain, few, plain)]
    numbers = [re.findall(r"\d+", line)[:2] for line in printed if "forward passes" in line]
    assert numbers == [[str(len(out.tokens[0])), str(out.forward_passes[0])] for out in (plain, few, plain)]
    errors = [line for line in printed if line.startswith("error:")]
    told = ("steps is 99", "steps must be", "'colour'", "/dance", "whole number", "nonsense")
    assert len(errors) == len(told) and all(map(str.__contains__, errors, told)), errors
    assert "steps              2" in printed and "infill             (2, 0.5)" in printed
    assert any(line.startswith("/quit") for line in printed)


def test_the_mode_can_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    models = [tiny("dadlm", tokenizer=word_level(WORDS), causal_context=both) for both in (True, False)]
    lines = ["/seed 5", "w1", "/set mode ar", "w1"]
    both, only = (spoken(model, lines, monkeypatch) for model in models)
    texts = [
        f"w1{generate(models[0], ['w1'], max_new_tokens=16, seed=5, mode=m).texts[0]}"
        for m in ("diffusion", "ar")
    ]
    assert [line for line in both if line.startswith("w1")] == texts and texts[0] != texts[1]
    assert any(line.startswith("error: mode ar needs") for line in only)


def test_quitting_and_showing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("dadlm", tokenizer=word_level(WORDS))
    printed = spoken(model, ["/show", "w1 w2", "/quit", "w3"], monkeypatch, seeds=[2])
    out = generate(model, ["w1 w2"], max_new_tokens=16, seed=2)
    shown = [line for line in printed if re.fullmatch(r"block \d+, step \d+\s*", line)]
    assert len(shown) == out.forward_passes[0]
    assert out.texts[0] in printed and not any("w3" in line and ">" in line for line in printed)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_text_took_is_what_generate_counts(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = silence_eot(tiny(family, tokenizer=word_level(WORDS)))
    out = generate(model, "w1 w2", max_new_tokens=11, seed=3)
    printed = spoken(model, ["/set max_new_tokens 11", "w1 w2"], monkeypatch, seeds=[3])
    [line] = [line for line in printed if "per pass" in line]
    assert line.startswith(f"11 tokens in {out.forward_passes[0]} forward passes: ")


def test_a_character_is_printed_when_it_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """An AR model over bytes: a character of four bytes comes in four passes."""
    tokenizer = train_bpe(["plain text"], 257, show_progress=False)
    ids = tokenizer.encode("a😀b")
    assert len(ids) == 6
    printed: list[str] = []
    monkeypatch.setattr(Console, "print", lambda self, *texts, **how: printed.extend(map(str, texts)))
    model = tiny("ar", tokenizer=tokenizer, vocab=258)

    def steps(_: object, rows: list[Row]) -> Iterator[StepResult]:
        for id_ in ids:
            rows[0].ids.append(id_)
            yield StepResult(None, {}, [Committed(rows[0], [len(rows[0].ids) - 1])])

    monkeypatch.setattr("dadlm.cli.interactive.decode_steps", steps)
    Session(model, DecodeSettings(), seed=1, show=False, console=Console()).write("x")
    assert [text for text in printed if text][:4] == ["x", "a", "😀", "b"]
