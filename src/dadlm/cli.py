"""The commands. Thin: each reads its options, calls one function of the package and prints what came back."""

import json
import math
import os
import secrets
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dadlm.decode import DecodeSettings
from dadlm.errors import ConfigError, DadlmError

_USAGE = """usage: dadlm COMMAND [options]

  tour       see the idea at work: a known language, BD3LM and DA-DLM side by side
  train      train a model by recipe: dadlm train small-bd3lm --data.train FILE
  generate   complete prompts with a trained model
  data       turn text into token shards, or train a tokenizer

dadlm COMMAND --help lists a command's options."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; user errors are printed and give exit code 2."""
    words = list(sys.argv[1:] if argv is None else argv)
    commands: dict[str, Callable[[list[str]], int]] = {
        "tour": _tour,
        "train": _train,
        "generate": _generate,
        "data": _data,
    }
    if not words or words[0] in ("-h", "--help"):
        print(_USAGE)
        return 0 if words else 2
    if words[0] == "--version":
        from dadlm import __version__

        print(f"dadlm {__version__}")
        return 0
    try:
        if words[0] not in commands:
            raise ConfigError(f"unknown command {words[0]!r}\n{_USAGE}")
        return commands[words[0]](words[1:])
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


def _train(words: list[str]) -> int:
    from dadlm.recipes import RECIPES, recipe
    from dadlm.train import train

    flags = {flag: flag in words for flag in ("--plan", "--json")}
    words = [word for word in words if word not in flags]
    usage = "usage: dadlm train RECIPE [--plan] [--json] [options]\n\nrecipes:\n  " + "\n  ".join(RECIPES)
    if words and words[0] in ("-h", "--help"):
        print(usage + "\n\n--plan prints what would be trained, --json the result for programs.")
        print("dadlm train RECIPE --help lists the options with the recipe's values.")
        return 0
    if not words or words[0].startswith("-"):
        raise ConfigError("name a recipe first\n" + usage)
    start = recipe(words[0])
    run = tyro.cli(type(start), args=words[1:], default=start, prog=f"dadlm train {words[0]}")
    if flags["--plan"]:
        return _plan(run, flags["--json"])
    done = train(run, quiet=flags["--json"])
    result = {
        "folder": str(done.folder),
        "step": done.step,
        "valid": done.valid if math.isfinite(done.valid) else None,  # JSON has no infinity
        "interrupted": done.interrupted,
    }
    if flags["--json"]:
        print(json.dumps(result))
    elif done.interrupted:
        print(f"stopped at step {done.step}; saved in {done.folder}. The same command goes on from there.")
    else:
        print(f"finished at step {done.step}; best validation {done.valid:.4f}, model in {done.folder}/best")
    return 130 if done.interrupted else 0


def _plan(run, as_json: bool) -> int:
    """Print what a recipe would train, part by part, without training it."""
    from dadlm.model.network import count_parameters

    parts = count_parameters(run.model)
    if as_json:
        print(json.dumps({"parameters": parts, "run": asdict(run)}))
        return 0
    table = Table(title=f"{run.model.family}: {run.model.layers} layers, width {run.model.width}")
    table.add_column("part")
    table.add_column("parameters", justify="right")
    for name, count in parts.items():
        table.add_row(name, f"{count:,}")
    Console().print(table)
    return 0


@dataclass(frozen=True)
class _Generate:
    prompts: tyro.conf.Positional[tuple[str, ...]] = ()
    """Prompts to complete; none: one empty prompt."""
    model: str = ""
    """Folder of a model or of a training run, or a Hugging Face name."""
    seed: tuple[int, ...] = ()
    """One number s gives prompt i the seed s + i; several give each prompt its own; none: new ones."""
    batch_size: int = 32
    """Prompts decoded side by side; changes speed, not texts."""
    device: str = "cpu"
    """Where to run, e.g. cuda."""
    json: bool = False
    """Print one JSON object."""
    show: bool = False
    """Print every denoising step of the first prompt with its graph."""
    picture: str | None = None
    """Save the graph of one step of the first prompt as .svg, .png or .pdf."""
    picture_step: int = 0
    """Which step to draw, counted from 0 over all blocks."""
    decoding: Annotated[DecodeSettings, tyro.conf.arg(name="")] = field(default_factory=DecodeSettings)


def _generate(words: list[str]) -> int:
    from dadlm.decode import generate
    from dadlm.model import load

    options = tyro.cli(_Generate, args=words, prog="dadlm generate", config=(tyro.conf.FlagCreatePairsOff,))
    if not options.model:
        raise ConfigError("no model: pass --model FOLDER, for example one that `dadlm train` made")
    model = load(options.model, options.device)
    prompts = list(options.prompts) or [""]
    seeds = list(options.seed)
    if len(seeds) < 2:
        first = seeds[0] if seeds else secrets.randbits(31)
        seeds = [first + row for row in range(len(prompts))]
    if options.show or options.picture:
        _look(model, prompts[0], seeds[0], options)
    out = generate(model, prompts, seed=seeds, batch_size=options.batch_size, settings=options.decoding)
    if options.json:
        names = ("texts", "forward_passes", "tokens_per_forward", "cache_passes", "seeds")
        print(json.dumps({name: getattr(out, name) for name in names}, ensure_ascii=False))
        return 0
    console = Console(highlight=False, soft_wrap=True)
    for prompt, text in zip(prompts, out.texts, strict=True):
        console.print(Text.assemble((prompt, "dim"), text, "\n"))
    passes, tokens = sum(out.forward_passes), sum(map(len, out.tokens))
    console.print(
        f"{tokens} tokens in {passes} forward passes: {out.mean_tokens_per_forward:.2f} per pass", style="dim"
    )
    return 0


def _look(model, prompt: str, seed: int, options: _Generate) -> None:
    """Decode the first prompt step by step, in the terminal or as a picture."""
    from dadlm.decode import stream
    from dadlm.decode.events import token_text
    from dadlm.decode.picture import draw_step
    from dadlm.decode.show import show_step

    console = Console(stderr=options.json)
    drawn = False
    index = -1
    for index, event in enumerate(stream(model, prompt, seed=seed, settings=options.decoding)):
        texts = [token_text(model, id_) for id_ in event.ids]
        if options.show:
            show_step(event, texts, console)
        if options.picture and index == options.picture_step:
            draw_step(event, options.picture, texts=texts)
            console.print(f"step {index} is drawn in {options.picture}")
            drawn = True
            if not options.show:
                break
    if options.picture and not drawn:
        raise ConfigError(
            f"--picture-step is {options.picture_step}, but decoding took only {index + 1} steps"
        )


@dataclass(frozen=True)
class _Prepare:
    source: tyro.conf.Positional[str]
    """A .txt, .jsonl, .jsonl.zst or .parquet file, a folder or pattern of these, or hf:NAME."""
    tokenizer: str = "gpt2"
    """gpt2, a folder, a Hugging Face name, or bpe:SIZE to train one on this text first."""
    out: str = ".dadlm-cache"
    """Folder for the shards."""
    text_field: str = "text"
    """Field that holds the text in records."""
    json: bool = False
    """Print one JSON object."""


@dataclass(frozen=True)
class _TrainTokenizer:
    source: tyro.conf.Positional[str]
    """Text to learn from."""
    size: int = 8192
    """Number of ids."""
    out: str = "tokenizer"
    """Folder for tokenizer.json."""
    text_field: str = "text"
    """Field that holds the text in records."""
    json: bool = False
    """Print one JSON object."""


def _data(words: list[str]) -> int:
    from dadlm.tokens import prepare
    from dadlm.train import DataConfig
    from dadlm.train.data import load_tokenizer

    kinds = {"prepare": _Prepare, "tokenizer": _TrainTokenizer}
    if not words or words[0] not in kinds:
        text = "usage: dadlm data prepare SOURCE [options]\n       dadlm data tokenizer SOURCE [options]"
        if words and words[0] in ("-h", "--help"):
            print(text)
            return 0
        raise ConfigError("say what to do with the data\n" + text)
    config = (tyro.conf.FlagCreatePairsOff,)
    options = tyro.cli(kinds[words[0]], args=words[1:], prog=f"dadlm data {words[0]}", config=config)
    name = options.tokenizer if isinstance(options, _Prepare) else f"bpe:{options.size}"
    tokenizer = load_tokenizer(
        DataConfig(train=options.source, tokenizer=name, text_field=options.text_field)
    )
    if isinstance(options, _TrainTokenizer):
        tokenizer.save(options.out)
        result = {"folder": options.out, "vocab_size": tokenizer.vocab_size}
    else:
        shards = prepare(options.source, tokenizer, options.out, text_field=options.text_field)
        result = {"folder": str(shards.folder), "tokens": shards.tokens, "vocab_size": tokenizer.vocab_size}
    print(
        json.dumps(result) if options.json else "  ".join(f"{key} {value}" for key, value in result.items())
    )
    return 0


@dataclass(frozen=True)
class _Tour:
    out: str = "tour"
    """Folder for models, pictures and tour.json."""
    seed: int = 0
    """Decides the language, the weights and the samples."""
    json: bool = False
    """Print one JSON object instead of tables."""


def _tour(words: list[str]) -> int:
    from dadlm.tour import take_tour

    options = tyro.cli(_Tour, args=words, prog="dadlm tour", config=(tyro.conf.FlagCreatePairsOff,))
    result = take_tour(Path(options.out), options.seed, quiet=options.json)
    if options.json:
        print(json.dumps(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
