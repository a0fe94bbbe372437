"""The commands. Thin: each reads its options, calls one function of the package and prints what came back."""

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module

from dadlm.errors import ConfigError, DadlmError

# One module each, imported when its command is called: `dadlm --help` must answer at once.
GROUPS = {
    "start here": {
        "demo": "see the idea and real text from the shipped models, in half a minute",
        "tour": "train BD3LM and DA-DLM on a small synthetic language and compare them",
        "models": "list the models that ship with dadlm",
    },
    "write": {
        "generate": "complete prompts, given as arguments or typed at the terminal",
        "chat": "chat at the terminal with SmolLM2 or any model with a chat template",
        "summarize": "summarise documents with a fine-tuned model",
        "serve": "serve an OpenAI-compatible HTTP API and a page that draws every step",
    },
    "train": {
        "train": "train a model by recipe: dadlm train small --data.train FILE",
        "finetune": "fine-tune a model on summaries or other pairs of texts",
        "edges": "add token edges counted from text to a model, without training it",
        "data": "turn text into token shards, or train a tokenizer",
    },
    "measure": {
        "evaluate": "reconstruction, perplexity, generation, judge, summarisation, latency, acceptance",
        "lm-eval": "run the tasks of lm-evaluation-harness on a model",
        "report": "collect evaluations on one page, next to the paper's numbers",
        "bench": "measure decoding, training, kernels and the lossless mode on this machine",
    },
    "exchange": {
        "convert": "import published models, export to transformers or the hub",
    },
}
COMMANDS = {name: what for group in GROUPS.values() for name, what in group.items()}


def _usage() -> str:
    lines = ["usage: dadlm COMMAND [options]"]
    for group, commands in GROUPS.items():
        lines += [f"\n{group}:", *(f"  {name:10s} {what}" for name, what in commands.items())]
    return "\n".join([*lines, "\ndadlm COMMAND --help lists a command's options."])


USAGE = _usage()


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; user errors are printed and give exit code 2."""
    words = list(sys.argv[1:] if argv is None else argv)
    # Threads that wait for work sleep: by default they spin, and on a busy machine take what the others need.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is imported
    if not words or words[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if words else 2
    if words[0] == "--version":
        from dadlm import __version__

        print(f"dadlm {__version__}")
        return 0
    try:
        if words[0] not in COMMANDS:
            near = get_close_matches(words[0], COMMANDS, 1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"unknown command {words[0]!r}{meant}\n{USAGE}")
        with _impatient():
            command = import_module(f"dadlm.cli.{words[0].replace('-', '_')}")
        return command.run(words[1:])
    except DadlmError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of our output has gone away
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:  # disk full, no such folder, no permission
        where = f"{error.filename}: " if error.filename else ""
        print(f"error: {where}{error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


@contextmanager
def _impatient() -> Iterator[None]:
    """While torch is imported, a Ctrl-C ends the process on the spot: its own code aborts at an exception,
    and there is nothing yet to be saved."""
    if "torch" in sys.modules or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _leave(*_: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(130)
