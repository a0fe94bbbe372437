"""The command line: what people type, what they get, and that bad input ends in a clear error and code 2."""

import io
import os
import pydoc_data.topics
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tests.commands import Cli, refused
from tests.train.runs import metrics, progress

import dadlm
from dadlm.cli import COMMANDS, GROUPS, main
from dadlm.cli.options import numbers_last
from dadlm.model import load
from dadlm.recipes import RECIPES, ROUTES
from dadlm.tokens import Piece
from dadlm.train import Trainer

ENGLISH = "\n\n".join(topic for _, topic in sorted(pydoc_data.topics.topics.items()))


SMALL = ["--model.width", "32", "--model.heads", "2", "--model.layers", "2", "--model.expand-at", "1"]
SHORT = ["--train.steps", "3", "--train.batch-size", "2", "--train.valid-rows", "4", "--train.device", "cpu"]


class Trained(NamedTuple):
    """Real English, and three stages trained on it for a moment."""

    text: Path
    cache: Path
    runs: dict[str, Path]

    def train(self, family: str, out: object, *words: object) -> list[object]:
        options = ["--data.train", self.text, "--data.cache", self.cache, "--out", out]
        return ["train", f"small-{family}", *options, *SMALL, *SHORT, *words]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("trained")
    (folder / "topics.txt").write_text(ENGLISH[:60_000], encoding="utf-8")
    runs = {family: folder / family for family in ("ar", "mdlm", "bd3lm", "dadlm")}
    all_ = Trained(folder / "topics.txt", folder / "cache", runs)
    origins = {"bd3lm": "mdlm", "dadlm": "bd3lm"}
    for family, out in runs.items():
        words = ["--init-from", runs[origins[family]]] if family in origins else []
        assert main([str(word) for word in all_.train(family, out, *words, "--json")]) == 0
    return all_


@pytest.fixture
def model(trained: Trained, tmp_path: Path) -> Path:
    """A DA-DLM that may be spoilt."""
    return Path(shutil.copytree((trained.runs["dadlm"] / "best").resolve(), tmp_path / "model"))


def test_one_model_that_is_both(cli: Cli, trained: Trained, tmp_path: Path) -> None:
    """Train it, write in both modes, score the AR mode; a model that is not both says what to do."""
    both = ["--init-from", trained.runs["mdlm"], "--model.causal-context", "--train.ar-weight", "0.5"]
    assert cli(*trained.train("bd3lm", tmp_path / "both", *both, "--json")).code == 0
    write = ["generate", "The", "--max-new-tokens", "9", "--seed", "4", "--json", "--model"]
    texts = [cli(*write, tmp_path / "both", "--mode", mode).json for mode in ("diffusion", "ar")]
    assert texts[0] == cli(*write, tmp_path / "both").json != texts[1]
    assert texts[1]["forward_passes"] == [9]
    model = dadlm.load(tmp_path / "both")
    expected = dadlm.generate(model, "The", max_new_tokens=9, seed=4, mode="ar")
    assert texts[1]["texts"] == expected.texts
    refused(cli(*write, trained.runs["bd3lm"], "--mode", "ar"), "mode ar needs", "--model.causal-context")
    how = ["--model", tmp_path / "both", "--data", trained.text, "--count", "3", "--json"]
    score = cli("evaluate", "perplexity", *how, "--mode", "ar", "--out", tmp_path / "score").json
    assert score["is_bound"] is False and score["model"]["family"] == "ar"


# Help


HELP = {
    "--help": "generate",
    "-h": "train",
    "train --help": "paper-dadlm",
    "train small-dadlm --help": "--model.track-bias",
    "generate --help": "--transition-weight",
    "data --help": "prepare",
    "data prepare --help": "--text-field",
    "data tokenizer --help": "--size",
    "tour --help": "--seed",
    "--version": dadlm.__version__,
}


@pytest.mark.parametrize("words", HELP)
def test_help_and_version(words: str, cli: Cli) -> None:
    result, told = cli(*words.split()), HELP[words]
    assert (result.code, result.err) == (0, "")
    assert told in result.out
    alone = cli()
    assert alone.code == 2 and "usage: dadlm COMMAND" in alone.out + alone.err


# Training


def test_from_english_to_text_in_three_stages(cli: Cli, tmp_path: Path) -> None:
    """The documented example, at the recipes' full size but for a few steps."""
    (tmp_path / "topics.txt").write_text(ENGLISH, encoding="utf-8")
    few = ["--train.steps", 2, "--train.valid-rows", 8, "--train.batch-size", 4, "--train.device", "cpu"]
    origin: list[object] = []
    for family in ("mdlm", "bd3lm", "dadlm"):
        result = cli("train", f"small-{family}", "--data.train", "topics.txt", *few, *origin)
        assert result.code == 0, result.err
        assert re.search(r"step +2 +validation: (loss|reconstruction) \d", result.out)
        assert "finished at step 2; best validation" in result.out
        assert f"runs/small-{family}/best" in result.out
        origin = ["--init-from", f"runs/small-{family}"]
    prompt = "The assert statement is a convenient way to"
    result = cli("generate", prompt, "--model", "runs/small-dadlm", "--max-new-tokens", 16, "--seed", 1)
    assert result.code == 0, result.err
    assert result.out.startswith(prompt) and "16 tokens in" in result.err and "per pass" in result.err


def test_all_stages_in_one_command(cli: Cli, trained: Trained, tmp_path: Path) -> None:
    words = ["train", "small", "--data.train", trained.text, "--batch-size", 2, "--device", "cpu"]
    words += ["--data.cache", trained.cache, "--length", 0.003, "--out", "route"]
    plan = cli(*words, "--plan", "--json").json
    assert [stage["run"]["model"]["family"] for stage in plan] == ["ar", "bd3lm", "dadlm"]
    assert not list(tmp_path.iterdir())
    result = cli(*words)
    assert result.code == 0, result.err
    assert "model in route/dadlm/best" in result.out
    again = cli(*words, "--json")
    assert (again.json["folder"], again.json["interrupted"]) == ("route/dadlm", False)
    assert (tmp_path / "route" / "metrics.jsonl").is_file()
    assert "routes, all stages in one" in cli("train", "--help").out


def test_a_shipped_model_brings_its_shape_along(cli: Cli) -> None:
    plan = cli("train", "small-dadlm", "--init-from", "dadlm", "--plan", "--json").json["run"]
    own = asdict(load("dadlm").config)
    assert {name for name in own if plan["model"][name] != own[name]} <= {"dropout"}
    changed = cli(
        "train", "small-dadlm", "--init-from=dadlm", "--model.context", 256, "--plan", "--json"
    ).json
    assert (changed["run"]["model"]["context"], changed["run"]["model"]["width"]) == (256, own["width"])


def test_a_model_that_cannot_be_started_from(cli: Cli, trained: Trained) -> None:
    words = ["--data.train", trained.text, "--init-from", "dadlm", "--out", "run"]
    told = ["family dadlm", "bd3lm can start from ar or mdlm or bd3lm", "dadlm train small-dadlm --init-from"]
    refused(cli("train", "small-bd3lm", *words), *told)
    told = [r"dadlm has heads 5 \(this model 4\), norm_eps", "leave --model.heads --model.norm-eps out"]
    odd = ["--model.heads", 4, "--model.norm-eps", 1e-3]
    refused(cli("train", "small-dadlm", *words, *odd), *told)


def test_train_prints_one_json_object(cli: Cli, trained: Trained, tmp_path: Path) -> None:
    result = cli(*trained.train("bd3lm", tmp_path / "run", "--json"))
    assert result.code == 0
    assert result.json == {
        "folder": str(tmp_path / "run"),
        "step": 3,
        "valid": progress(tmp_path / "run" / "last")["best"],
        "interrupted": False,
    }


def test_a_run_interrupted_before_its_first_validation(
    cli: Cli, trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no value yet, and JSON has no infinity; a run that ends so has no best model."""
    make, words = Trainer.step, trained.train("bd3lm", "run")

    def step(self: Trainer) -> float:
        signal.raise_signal(signal.SIGINT)
        return make(self)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "step", step)
        result = cli(*words, "--json")
    assert result.code == 130
    assert (result.json["interrupted"], result.json["step"], result.json["valid"]) == (True, 1, None)
    assert progress(tmp_path / "run" / "last")["step"] == 1
    done = cli(*words, "--train.steps", 1)
    assert done.code == 0 and "model in run/last" in done.out and "inf" not in done.out


def test_a_plan_trains_nothing_and_prints_the_parameters(cli: Cli, trained: Trained, tmp_path: Path) -> None:
    for kind, count in (("gated", "2,392,344"), ("single", "1,179,649")):
        result = cli("train", "paper-dadlm", "--plan", "--model.transition", kind)
        assert result.code == 0
        assert re.search(rf"transition\W+{count}\b", result.out)
    assert "2,392,344" in cli("train", "paper-dadlm", "--plan").out  # gated is the recipe's own
    told = cli("train", "paper-dadlm", "--plan", "--json").json
    assert told["parameters"]["transition"] == 2_392_344
    assert told["run"]["train"]["steps"] == 60_000
    # The vocabulary is that of the stage before.
    words = trained.train("bd3lm", "run", "--init-from", trained.runs["mdlm"], "--plan", "--json")
    own = load(trained.runs["mdlm"])
    assert cli(*words).json["parameters"]["embedding"] == own.backbone.embedding.weight.numel()
    assert not list(tmp_path.iterdir())


@pytest.fixture
def bad_files(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "blank.txt").write_text(" \n", encoding="utf-8")
    (tmp_path / "short.txt").write_text("hello", encoding="utf-8")
    (tmp_path / "row.txt").write_text("x " * 20, encoding="utf-8")
    (tmp_path / "latin.txt").write_bytes(b"one\ntwo\nthr\xe9e\nfour\n")
    (tmp_path / "text.txt").write_text(ENGLISH[:5000], encoding="utf-8")


BAD_TRAINING: dict[str, tuple[list[str], list[str]]] = {
    "no data": ([], ["no training text", "--data.train"]),
    "missing file": (["--data.train", "nowhere.txt"], ["nowhere.txt", "found"]),
    "empty file": (["--data.train", "empty.txt"], ["empty.txt is empty"]),
    "blank file": (["--data.train", "blank.txt"], ["fewer than one row"]),
    "shorter than a row": (["--data.train", "row.txt"], [r"\d+ tokens are fewer than one row of 128"]),
    "not UTF-8": (["--data.train", "latin.txt"], ["latin.txt is not UTF-8: line 3"]),
    "missing validation": (["--data.train", "text.txt", "--data.valid", "gone.txt"], ["gone.txt"]),
    "all held out": (["--data.train", "text.txt", "--data.valid-share", "0.999"], ["valid_share|held? out"]),
    "tokenizer size": (["--data.train", "text.txt", "--data.tokenizer", "bpe:9"], ["at least 257"]),
    "tokenizer word": (["--data.train", "text.txt", "--data.tokenizer", "bpe:many"], ["bpe:SIZE"]),
    "missing tokenizer": (
        ["--data.train", "text.txt", "--data.tokenizer", "./gone"],
        ["gone", "no local path"],
    ),
    "missing origin": (["--data.train", "text.txt", "--init-from", "gone"], ["there is no folder gone"]),
    "context": (["--model.context", "100"], ["context 100 is not divisible by block_size 8", "96"]),
    "context of one": (["--model.context", "1", "--model.block-size", "1"], ["context"]),
    "no candidates": (["--model.candidates", "0"], ["candidates must be at least 1, got 0"]),
    "no block": (["--model.block-size", "0"], ["block_size must be at least 1"]),
    "no steps": (["--train.steps", "0"], ["steps must be at least 1"]),
    "steps in words": (["--train.steps", "ten"], ["--train.steps", "ten"]),
    "expansion too late": (["--model.expand-at", "4"], [r"expand_at must be in 0\.\.3"]),
    "unknown transition": (["--model.transition", "double"], ["--model.transition", "single"]),
    "unknown schedule": (["--noise.schedule", "steep"], ["steep", "cosine"]),
    "unknown option": (["--train.stepz", "3"], ["--train.stepz"]),
    "unknown device": (["--data.train", "text.txt", "--train.device", "abacus"], ["abacus"]),
    "huge seed": (["--data.train", "text.txt", "--train.seed", "9" * 20], ["seed"]),
}


@pytest.mark.usefixtures("bad_files")
@pytest.mark.parametrize("case", BAD_TRAINING)
def test_bad_input_to_train(case: str, cli: Cli, tmp_path: Path) -> None:
    words, told = BAD_TRAINING[case]
    before = sorted(tmp_path.iterdir())
    refused(cli("train", "small-dadlm", "--out", "run", "--train.steps", "1", *words), *told)
    assert not (tmp_path / "run").exists()
    assert set(before) <= set(tmp_path.iterdir())
    shards = tmp_path / ".dadlm-cache"
    assert not shards.exists() or not list(shards.glob(".*")), "unfinished shards stay"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_not_there(cli: Cli, trained: Trained, tmp_path: Path) -> None:
    refused(cli(*trained.train("bd3lm", tmp_path / "run", "--train.device", "cuda")), "cuda|CUDA")
    refused(cli("generate", "a", "--model", trained.runs["dadlm"], "--device", "cuda"), "cuda|CUDA")


def test_an_out_that_is_a_file(cli: Cli, trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    refused(cli(*trained.train("bd3lm", "file")), "file")
    assert (tmp_path / "file").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("words", ["train small-gpt", "train dadlm", "train", "train --json"])
def test_an_unknown_recipe_is_answered_with_the_list(words: str, cli: Cli) -> None:
    refused(cli(*words.split()), *map(re.escape, RECIPES))


def test_torch_waits_for_a_command() -> None:
    """It takes seconds, in which a Ctrl-C would end in a traceback: those of commands are caught."""
    code = "import sys, dadlm.cli; assert 'torch' not in sys.modules; print(dadlm.load.__module__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "dadlm.model.checkpoint\n"


def test_ctrl_c_while_a_command_is_imported() -> None:
    """Torch lets no exception through: the process ends on the spot, without it."""
    code = """if True:
        import signal, dadlm.cli

        def importing(name):
            try:
                signal.raise_signal(signal.SIGINT)
            except BaseException:
                print("aborted")

        dadlm.cli.import_module = importing
        dadlm.cli.main(["generate"])
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize("words", ["trian", "data", "data fetch", "--json"])
def test_an_unknown_command_is_answered_with_those_there_are(words: str, cli: Cli) -> None:
    refused(cli(*words.split()), "usage", "prepare" if "data" in words else "tour")


def test_a_checkpoint_of_another_vocabulary(cli: Cli, trained: Trained, tmp_path: Path) -> None:
    """A tokenizer that was asked for by name must not be left aside in silence."""
    assert cli("data", "tokenizer", trained.text, "--size", 300, "--out", "other").code == 0
    words = trained.train("bd3lm", "run", "--init-from", trained.runs["mdlm"])
    refused(cli(*words, "--data.tokenizer", "other"), "tokenizer|vocabulary")
    assert not (tmp_path / "run").exists()
    own = (trained.runs["mdlm"] / "best").resolve()
    assert cli(*words, "--data.tokenizer", own).code == 0  # the very one it was trained with


def test_a_run_goes_on_when_the_model_it_started_from_is_gone(cli: Cli, trained: Trained) -> None:
    """The same command, whose other options took their values from that model."""
    shutil.copytree((trained.runs["mdlm"] / "best").resolve(), "origin")
    words = ["train", "small-bd3lm", "--data.train", trained.text, "--data.cache", trained.cache, *SHORT]
    words += ["--init-from", "origin", "--out", "run", "--json"]
    first = cli(*words).json
    shutil.rmtree("origin")
    again = cli(*words, "--train.steps", first["step"] + 1)
    assert again.code == 0, again.err
    assert again.json["step"] == first["step"] + 1
    refused(cli(*words[:-3], "--out", "another"), "there is no folder origin")


# Damaged models


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "half": lambda data: data[: len(data) // 2],
    "one byte long": lambda data: data + b"x",
    "huge header length": lambda data: b"\xff" * 8 + data[8:],
    "name": lambda data: data.replace(b'"backbone.norm.weight"', b'"backbone.norm.height"'),
    "type": lambda data: data.replace(b'"dtype":"F32"', b'"dtype":"I32"', 1),
    "not weights at all": lambda data: b"PK\x03\x04" + data,
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_weights(kind: str, cli: Cli, model: Path, trained: Trained) -> None:
    file = model / "model.safetensors"
    before = file.read_bytes()
    file.write_bytes(DAMAGE[kind](before))
    assert file.read_bytes() != before, "the test did not spoil anything"
    refused(cli("generate", "a", "--model", model), "model.safetensors|weights of|" + re.escape(str(model)))
    refused(cli(*trained.train("dadlm", "run", "--init-from", model)), "safetensors|weights of")
    (model / "config.json").write_bytes(b"\xff\xfe")
    refused(cli("generate", "a", "--model", model), re.escape(str(model)))


def test_a_dangling_last_does_not_start_from_nothing(cli: Cli, trained: Trained, tmp_path: Path) -> None:
    """Somebody removed the checkpoint: starting over would silently throw away the log and the best model."""
    assert cli(*trained.train("bd3lm", "run")).code == 0
    before = metrics(tmp_path / "run")
    shutil.rmtree((tmp_path / "run" / "last").resolve())
    refused(cli(*trained.train("bd3lm", "run")), "last")
    assert metrics(tmp_path / "run") == before


# Generating


def test_generate_prints_json_that_follows_the_seed(cli: Cli, trained: Trained) -> None:
    words = ["generate", "The class", "An import", "", "--model", trained.runs["dadlm"], "--json"]
    words += ["--max-new-tokens", 12]
    first = cli(*words, "--seed", 5)
    assert (first.code, first.err) == (0, "")
    told = first.json
    assert told.keys() >= {"texts", "forward_passes", "tokens_per_forward"}
    assert all(len(values) == 3 for values in told.values())
    assert all(passes > 0 for passes in told["forward_passes"])
    assert cli(*words, "--seed", 5, "--batch-size", 1).json == told
    assert cli(*words, "--seed", 6).json["texts"] != told["texts"]
    alone = cli("generate", "An import", *words[4:], "--seed", 6).json
    assert alone["texts"] == told["texts"][1:2]  # row i has seed + i


@pytest.mark.parametrize(
    ("words", "moved"),
    [
        (["--seed", "1", "2", "text"], ["text", "--seed", "1", "2"]),
        (["--seed", "-1", "--infill", "4", ".25", "2024"], ["2024", "--seed", "-1", "--infill", "4", ".25"]),
        (["--seed", "1", "--seed", "2", "text"], ["text", "--seed", "1", "--seed", "2"]),
        (["--seed", "1_000", "text"], ["text", "--seed", "1_000"]),
        (["--seed", "1", "..."], ["...", "--seed", "1"]),
        (["--seed", "1", "--", "text"], ["--seed", "1", "--", "text"]),
        (["text", "--seed"], ["text", "--seed"]),
        (["--seed=1", "text"], ["text", "--seed", "1"]),
    ],
)
def test_numbers_go_behind_what_is_none(words: list[str], moved: list[str]) -> None:
    assert numbers_last(words, {"--seed": len(words), "--infill": 2}) == moved


def test_prompts_from_standard_input(cli: Cli, trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line each; an empty one is the empty prompt, as "" is on the command line."""
    words = ["--model", trained.runs["dadlm"], "--json", "--seed", 1, "--max-new-tokens", 4]
    monkeypatch.setattr("sys.stdin", io.StringIO("The class\n\n  An import"))
    words += ["--infill", 2, 0.5]
    told = cli("generate", *words).json
    assert told == cli("generate", "The class", "", "  An import", *words).json
    assert told == cli("generate", *words, "The class", "", "  An import").json, "no more numbers"
    monkeypatch.setattr("sys.stdin", io.StringIO("\ufeffThe class\n\n  An import"))  # from a Windows editor
    assert told == cli("generate", *words).json


def test_no_prompt_at_all(cli: Cli, trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["generate", "--model", trained.runs["dadlm"]]
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    refused(cli(*words), "no prompt", "standard input")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9\n"), encoding="utf-8"))
    refused(cli(*words), "standard input is not UTF-8")
    lax = io.TextIOWrapper(io.BytesIO(b"caf\xe9\n"), encoding="utf-8", errors="surrogateescape")
    monkeypatch.setattr("sys.stdin", lax)  # as Python opens it where the locale is C
    refused(cli(*words), "standard input is not UTF-8")


def test_errors_of_the_parser_are_plain(cli: Cli) -> None:
    result = cli("generate", "a", "--infill", 2)
    refused(result, "--infill", "INT FLOAT")
    assert "bold" not in result.err
    result = cli("train", "small", "--length", -1)
    refused(result, "length must be positive, got -1")
    assert "RouteConfig" not in result.err and "parsing" not in result.err
    lines = [line for line in result.err.splitlines() if line.startswith("│")]
    assert len(set(map(len, lines))) == 1, "the box is whole"


@pytest.mark.parametrize(
    "words",
    [
        ["--sampler", "confidence", "--threshold", "0.5", "--transition-weight", "0.3"],
        ["--sampler", "entropy", "--bound", "2.5"],
        ["--path", "viterbi", "--sampler", "random", "--steps", "2"],
        ["--top-p", "1.0", "--temperature", "0.5", "--nucleus", "bd3lm"],
        ["--temperature", "0"],
    ],
)
def test_decoding_options_are_understood(words: list[str], cli: Cli, trained: Trained) -> None:
    base = ["generate", "a b", "--model", trained.runs["dadlm"], "--json", "--seed", 1]
    base += ["--max-new-tokens", 16]
    result = cli(*base, *words)
    assert result.code == 0 and result.json != cli(*base).json


BAD_DECODING: dict[str, tuple[list[str], str]] = {
    "more steps than tokens": (["--sampler", "random", "--steps", "9"], "steps is 9.* 8 tokens"),
    "no steps": (["--sampler", "random", "--steps", "0"], "steps must be .*at least 1, got 0"),
    "steps of another sampler": (["--sampler", "entropy", "--steps", "4"], "random and dilated samplers"),
    "threshold without sampler": (["--threshold", "0.5"], "confidence sampler"),
    "no tokens": (["--max-new-tokens", "0"], "max_new_tokens must be .*at least 1"),
    "too many tokens": (["--max-new-tokens", "500"], "max_new_tokens is 500.* context of 128"),
    "top_p": (["--top-p", "0"], "top_p"),
    "temperature": (["--temperature", "-1"], "temperature"),
    "threshold": (["--threshold", "1.5"], "threshold"),
    "infill ratio": (["--infill", "2", "1.5"], "infill"),
    "infill alone": (["--infill", "2"], "infill"),
    "sampler": (["--sampler", "greedy"], "greedy|sampler"),
    "unknown option": (["--topp", "0.9"], "--topp"),
    "long prompt": (["word " * 300], r"the prompt has \d{3} tokens; the context of 128"),
    "not UTF-8": (["caf\udce9"], "Unicode"),  # what the shell hands over for such bytes
    "seed": (["--seed", "9" * 20], "seed"),
    "batch size": (["--batch-size", "0"], "batch.size"),
    "device": (["--device", "abacus"], "abacus"),
    "picture format": (["--picture", "x.gif"], r"x\.gif.*svg"),
    "picture nowhere": (["--picture", "nowhere/x.svg"], "nowhere"),
    "picture step": (["--picture", "x.svg", "--picture-step", "999"], "--picture-step is 999"),
    "negative picture step": (["--picture", "x.svg", "--picture-step", "-1"], "--picture-step is -1"),
}


@pytest.mark.parametrize("case", BAD_DECODING)
def test_bad_input_to_generate(case: str, cli: Cli, trained: Trained, tmp_path: Path) -> None:
    words, told = BAD_DECODING[case]
    refused(cli("generate", "--model", trained.runs["dadlm"], "hello", *words), told)
    assert not list(tmp_path.iterdir())


def test_no_such_model(cli: Cli, tmp_path: Path) -> None:
    refused(cli("generate", "hello", "--model", "nowhere"), "there is no folder nowhere")
    refused(cli("generate", "hello", "--model", "runs/nowhere"), "no folder runs/nowhere, and the hub")
    (tmp_path / "runs").mkdir()
    refused(cli("generate", "hello", "--model", "runs/nowhere"), "there is no folder runs/nowhere. Models")
    (tmp_path / "empty").mkdir()
    refused(cli("generate", "hello", "--model", "empty"), "empty is not a model folder: config.json")
    refused(cli("generate", "hello", "--model", ""), "no model is named; those that ship: dadlm-edges")


def test_a_folder_of_models_names_them(cli: Cli, trained: Trained) -> None:
    route = trained.runs["dadlm"].parent
    assert trained.runs["ar"].parent == route
    refused(cli("generate", "hello", "--model", route), f"holds some; name one: .*{trained.runs['ar']}")


def test_text_is_printed_as_it_is(cli: Cli, trained: Trained) -> None:
    """Neither markup nor emoji codes; tabs and a backslash at the end stay what they are."""
    prompt = "[bold]x[/bold] :smile: [/]\t[link=a]b[/link]\r\f C:" + "\\"
    words = ["generate", prompt, "--model", trained.runs["dadlm"], "--max-new-tokens", 2, "--seed", 1]
    result = cli(*words)
    assert result.code == 0
    assert result.out.startswith(prompt + cli(*words, "--json").json["texts"][0])


def test_show_prints_every_step(cli: Cli, trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["generate", "The class statement", "--model", trained.runs["dadlm"], "--seed", 2]
    words += ["--max-new-tokens", 8, "--sampler", "random", "--steps", 3]
    result = cli(*words, "--show")
    assert result.code == 0
    told = cli(*words, "--json").json
    tables = re.findall(r"block \d+, step \d+", result.out)
    assert len(tables) == len(set(tables)) == told["forward_passes"][0]
    assert "▸" in result.out and "▢" in result.out
    both = cli(*words, "--show", "--json")
    assert both.json == told and "block" in both.err
    monkeypatch.setattr("secrets.randbits", lambda _: 2)  # without --seed one is drawn, and holds for both
    del words[4:6]
    assert cli(*words, "--show").out == result.out


def test_picture_saves_one_steps_graph(cli: Cli, trained: Trained, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    words = ["generate", "price $5 and $6", "--model", trained.runs["dadlm"], "--seed", 1]
    result = cli(*words, "--max-new-tokens", 8, "--picture", "step.svg", "--json")
    assert result.code == 0 and len(result.json["texts"]) == 1
    assert (tmp_path / "step.svg").read_bytes().startswith(b"<?xml")


# Data


def test_tokenizer_can_be_trained_and_used(cli: Cli, trained: Trained, tmp_path: Path) -> None:
    result = cli("data", "tokenizer", trained.text, "--size", 400, "--out", "words", "--json")
    assert result.code == 0
    assert result.json == {"folder": "words", "vocab_size": 400}
    tokenizer = dadlm.Tokenizer.load(tmp_path / "words")
    assert tokenizer.decode(tokenizer.encode("an import statement")) == "an import statement"
    out = cli(*trained.train("ar", "run", "--data.tokenizer", "words", "--json"))
    assert out.code == 0 and load(tmp_path / "run").tokenizer == tokenizer
    again = cli("data", "tokenizer", trained.text, "--size", 401, "--out", "run/best")
    refused(again, "run/best holds a model")
    assert load(tmp_path / "run").tokenizer == tokenizer


def test_names_that_look_like_markup(cli: Cli, trained: Trained) -> None:
    words = trained.train("ar", "run[/v1]")
    assert cli(*words).code == 0
    again = cli(*words)  # nothing left to do, which is told with its name
    assert again.code == 0 and "run[/v1]" in again.out


BAD_DATA: dict[str, tuple[list[str], str]] = {
    "no source": (["prepare"], r"\.jsonl"),
    "missing": (["prepare", "nowhere.txt"], "nowhere.txt"),
    "empty": (["prepare", "empty.txt"], "empty.txt is empty"),
    "latin": (["prepare", "latin.txt", "--tokenizer", "bpe:300"], "line 3"),
    "small tokenizer": (["tokenizer", "text.txt", "--size", "5"], "at least 257"),
    "huge tokenizer": (["tokenizer", "text.txt", "--size", "99999999999999999999"], "at most"),
    "tokenizer in a file": (["tokenizer", "text.txt", "--size", "300", "--out", "text.txt/x"], "text.txt/x"),
    "shards in a file": (
        ["prepare", "text.txt", "--tokenizer", "bpe:300", "--out", "text.txt/x"],
        "text.txt",
    ),
    "unknown option": (["prepare", "text.txt", "--shards", "3"], "--shards"),
}


@pytest.mark.usefixtures("bad_files")
@pytest.mark.parametrize("case", BAD_DATA)
def test_bad_input_to_data(case: str, cli: Cli, tmp_path: Path) -> None:
    words, told = BAD_DATA[case]
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    refused(cli("data", *words), told)
    assert {path: path.read_bytes() for path in before} == before


# Processes


def test_a_process_of_its_own_ends_with_code_2_and_without_a_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dadlm.cli", "train", "small-dadlm", "--data.train", "nowhere.txt"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(dadlm.__file__).parents[1])},
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ") and "nowhere.txt" in done.stderr and done.stderr.count("\n") == 1


def test_ctrl_c_while_text_is_read(cli: Cli, trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> Iterator[Piece]:
        signal.raise_signal(signal.SIGINT)
        yield Piece("never", True, 5)

    monkeypatch.setattr("dadlm.train.data.read_pieces", interrupted)
    # A shell may have started the tests with Ctrl-C ignored, which Python then leaves so.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        result = cli(*trained.train("ar", "run", "--data.tokenizer", "bpe:333"))
    finally:
        signal.signal(signal.SIGINT, before)
    assert (result.code, result.err) == (130, "interrupted\n")


def test_help_groups_commands_and_recipes_have_a_line_each(cli: Cli) -> None:
    told = cli("--help").out
    assert all(f"\n{group}:\n" in told for group in GROUPS) and all(
        f"\n  {name} " in told for name in COMMANDS
    )
    lines = {
        line.split()[0]: line for line in cli("train", "--help").out.splitlines() if line.startswith("  ")
    }
    for name in (*RECIPES, *ROUTES):
        assert len(lines[name].split()) > 5 and len(lines[name]) <= 100, name
    assert "450 steps of bd3lm" in lines["small-bd3lm"]


@pytest.mark.parametrize(
    "words", [["generate", "x", "--steps", "nine"], ["train", "small-ar", "--train.steps", "x"]]
)
def test_the_parsers_errors_show_no_classes(cli: Cli, words: list[str]) -> None:
    told = cli(*words)
    assert (
        told.code == 2 and words[-1] in told.err and "<class" not in told.err and "NoneType" not in told.err
    )
    assert len({len(line) for line in told.err.splitlines() if line.startswith("│")}) == 1, told.err


def test_a_text_of_words_follows_its_prompt_with_a_space(cli: Cli) -> None:
    words = [
        "generate",
        "old clocks follow apples",
        "--model",
        "tour-dadlm",
        "--seed",
        1,
        "--max-new-tokens",
        4,
    ]
    told = cli(*words).out
    assert re.fullmatch(r"old clocks follow apples( [a-z]+){4}\n\n", told), told
