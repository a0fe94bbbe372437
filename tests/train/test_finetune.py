"""Fine-tuning: it learns to summarise, goes on where it stopped, ends when ROUGE rises no more, names bad
lines."""

import json
import signal
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.runs import assert_same_bits, metrics, progress, shape, state_tensors, tokenizer, with_train

from dadlm import generate, load
from dadlm.cli import main
from dadlm.errors import ConfigError
from dadlm.evaluate.documents import Documents
from dadlm.evaluate.summarisation import prompt_of, summary_settings
from dadlm.model.checkpoint import save
from dadlm.recipes import finetune as recipe
from dadlm.train import TrainConfig
from dadlm.train import finetune as module
from dadlm.train.config import FinetuneConfig
from dadlm.train.finetune import finetune, learned_lengths
from dadlm.train.trainer import fresh_model

LONG, SHORT = "w1 w2 w3 w4 w5", "w7 w8"  # the summary of a document that begins with w10, and with w11


def pair(number: int) -> dict[str, str]:
    rest = " ".join(f"w{(number * step) % 9 + 12}" for step in range(1, 3 + number % 5))
    return {"document": f"w{10 + number % 2} {rest}", "summary": (LONG, SHORT)[number % 2]}


def write(file: Path, lines: list[Any]) -> str:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(file)


def config_of(family: str, folder: Path, **changes: Any) -> FinetuneConfig:
    folder.mkdir(exist_ok=True)
    save(fresh_model(shape(family, context=32, width=32), tokenizer(), seed=0), folder / "model")
    train: dict[str, Any] = {"steps": 12, "batch_size": 8, "lr": 1e-2, "warmup": 3, "ema": 0.9}
    train |= {"device": "cpu", "valid_every": 4, "save_every": 100, "log_every": 1}
    settings = {
        "model": str(folder / "model"),
        "data": (write(folder / "train.jsonl", [pair(number) for number in range(30)]),),
        "valid": (write(folder / "valid.jsonl", [pair(number) for number in range(30, 40)]),),
        "out": str(folder / "run"),
        "document_tokens": 12,
        "summary_tokens": 10,
        "rouge_pairs": 6,
        "train": TrainConfig(**train),
    }
    return FinetuneConfig(**(settings | changes))


@pytest.mark.parametrize(
    ("family", "steps"),
    [
        ("ar", 50),
        ("bd3lm", 130),
        pytest.param("mdlm", 500, marks=pytest.mark.acceptance),
        pytest.param("dadlm", 400, marks=pytest.mark.acceptance),
    ],
)
def test_it_learns_what_to_say_and_when_to_end(family: str, steps: int, tmp_path: Path) -> None:
    config = with_train(config_of(family, tmp_path, patience=0), steps=steps, valid_every=steps, lr=5e-3)
    done = finetune(config, quiet=True)
    assert done.rouge == pytest.approx(100) and done.step == steps
    model = load(tmp_path / "run")
    prompts = [prompt_of(model, pair(number)["document"], 12)[0] for number in (50, 51)]
    out = generate(model, prompts, seed=0, settings=replace(summary_settings(family), max_new_tokens=10))
    assert out.texts == [LONG, SHORT]
    assert list(map(len, out.tokens)) == [6, 3]  # with end-of-text
    if family in ("bd3lm", "dadlm"):  # what stands behind the end is sure, and takes no passes of its own
        assert out.mean_tokens_per_forward > 1


def stopping_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    make = module.Finetuner.step

    def stop(self: module.Finetuner) -> torch.Tensor:
        if self.state.step + 1 == step:
            signal.raise_signal(signal.SIGINT)
        return make(self)

    monkeypatch.setattr(module.Finetuner, "step", stop)


@pytest.mark.parametrize(("family", "changes"), [("ar", {}), ("dadlm", {}), ("dadlm", {"dropout": 0.3})])
def test_an_interrupted_run_ends_with_the_same_bits(
    family: str, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight, broken = (config_of(family, tmp_path / name, **changes) for name in ("straight", "broken"))
    broken = replace(broken, data=straight.data, valid=straight.valid, model=straight.model)
    assert not finetune(straight, quiet=True).interrupted
    with monkeypatch.context() as context:
        stopping_at(7, context)
        stopped = finetune(broken, quiet=True)
    assert (stopped.interrupted, stopped.step) == (True, 7)
    assert finetune(broken, quiet=True).step == 12
    one, other = tmp_path / "straight" / "run", tmp_path / "broken" / "run"
    assert_same_bits(state_tensors(one / "last"), state_tensors(other / "last"))
    assert progress(one / "last")["best"] == progress(other / "last")["best"]
    assert metrics(one) == metrics(other)


@pytest.mark.parametrize(("family", "masks"), [("ar", 1), ("mdlm", 1), ("bd3lm", 4), ("dadlm", 4)])
def test_the_recipe_masks_several_times_where_there_are_blocks(
    family: str, masks: int, tmp_path: Path
) -> None:
    """One command for every family: what has no blocks is masked once, or not at all."""
    config = config_of(family, tmp_path)
    config = with_train(config, masks_per_row=recipe().train.masks_per_row, steps=1, decay=0, warmup=0)
    assert finetune(config, quiet=True).step == 1
    assert progress(tmp_path / "run" / "last")["run"]["train"]["masks_per_row"] == masks


def test_dropout_is_of_the_fine_tuning(tmp_path: Path) -> None:
    plain = config_of("bd3lm", tmp_path, patience=0)
    dropped = replace(plain, dropout=0.5, out=str(tmp_path / "dropped"))
    for config in (plain, dropped):
        finetune(config, quiet=True)
    one, other = (
        [entry["loss"] for entry in metrics(tmp_path / name) if "loss" in entry]
        for name in ("run", "dropped")
    )
    assert one != other
    assert load(tmp_path / "dropped").config == replace(load(plain.model).config, dropout=0.5)
    with pytest.raises(ConfigError, match=r"dropout: 0\.5 there, 0\.0 now"):
        finetune(replace(plain, out=dropped.out), quiet=True)
    with pytest.raises(ConfigError, match="dropout must be below 1"):
        finetune(replace(plain, dropout=1.0, out=str(tmp_path / "none")), quiet=True)


def test_it_ends_when_rouge_rises_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ROUGE is best at the second validation; two worse ones end the run, and it stays ended."""
    given = chain([10.0, 30.0, 20.0, 29.0, 50.0], repeat(0.0))

    def score(*_: object, **__: object) -> dict[str, Any]:
        return {"average": {"mean": next(given)}, "tpf": 1.0}

    monkeypatch.setattr(module, "summarisation", score)
    config = with_train(config_of("bd3lm", tmp_path, patience=2), steps=40, valid_every=2)
    done = finetune(config, quiet=True)
    assert (done.step, done.rouge, done.best_step, done.interrupted) == (8, 30.0, 4, False)
    assert (tmp_path / "run" / "best").resolve().name == "step-00000004"
    assert (tmp_path / "run" / "last").resolve().name == "step-00000008"
    assert finetune(config, quiet=True).step == 8
    assert finetune(replace(config, patience=3), quiet=True).rouge == 50.0


def test_other_pairs_are_another_run(tmp_path: Path) -> None:
    config = config_of("ar", tmp_path)
    finetune(config, quiet=True)
    told = ("document_tokens 12, now it is 4", "summary_tokens 10, now it is 9", "rouge_pairs 6, now it is 5")
    changes = ({"document_tokens": 4}, {"summary_tokens": 9}, {"rouge_pairs": 5}, {"data": config.valid})
    for changed, why in zip(changes, (*told, "other settings"), strict=True):
        with pytest.raises(ConfigError, match=f"{why}.*choose another --out"):
            finetune(replace(config, **changed), quiet=True)


BAD = (
    b'{"document": "caf\xe9", "summary": "x"}\n{"document": "w1"}\n{"document": "w1", "summary": " "}\n'
    b'no json\n[1]\n{"prompt": "", "completion": "w1"}\n{"document": "w1", "summary": 3}\n'
    b'{"document": "w1", "summary": "\\ud800"}\n\n{"prompt": "w1 w2", "completion": "w3"}\n'
)
WORDS_OF_BAD = ("not UTF-8", "no summary", "is empty", "not valid JSON")
WORDS_OF_BAD += ("not an object", "is empty", "int", "half")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = config_of("bd3lm", tmp_path)
    more = tmp_path / "more.jsonl"
    more.write_bytes(BAD + b'{"document": "' + b"w1 " * 20 + b'", "summary": "w2"}\n')
    line = f"finetune --model {config.model} --data {config.data[0]} {more} --valid {config.valid[0]}"
    line += f" --out {config.out} --document-tokens 12 --summary-tokens 10 --rouge-pairs 4"
    words = f"{line} --train.steps 4 --train.decay 0 --train.batch-size 8 --train.device cpu".split()
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["step"], told["pairs"], told["cut_documents"]) == (4, 32, 1)
    for number, (line, word) in enumerate(zip(told["skipped_lines"], WORDS_OF_BAD, strict=True), 1):
        assert f"line {number}:" in line and word in line
    assert load(tmp_path / "run").config.family == "bd3lm"
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "1 documents are cut to 12 tokens" in shown and "8 lines are left out" in shown
    assert main([*words, "--strict"]) == 2
    assert "line 1: not UTF-8" in capsys.readouterr().err
    assert main(["finetune", "--data", "x.jsonl"]) == 2
    assert "--model is missing" in capsys.readouterr().err


def test_fine_tuning_goes_on_with_the_lengths_it_had(tmp_path: Path) -> None:
    first = with_train(config_of("bd3lm", tmp_path), steps=1, valid_every=1)
    finetune(first, quiet=True)
    again = replace(first, model=first.out, out=str(tmp_path / "again"), document_tokens=None)
    finetune(replace(again, summary_tokens=None), quiet=True)
    assert learned_lengths(again.out) == (12, 10)
    finetune(replace(again, summary_tokens=5, out=str(tmp_path / "shorter")), quiet=True)
    assert learned_lengths(str(tmp_path / "shorter")) == (12, 5)


def test_summarize_reads_and_writes_as_much_as_was_learned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = with_train(config_of("bd3lm", tmp_path), steps=4, valid_every=4)
    finetune(config, quiet=True)
    assert learned_lengths(config.out) == (12, 10) and learned_lengths(config.model) is None
    document = " ".join(f"w{number}" for number in range(20))
    (tmp_path / "document.txt").write_text(document, encoding="utf-8")
    words = ["summarize", str(tmp_path / "document.txt"), "--model", config.out, "--device", "cpu"]
    model, how = load(config.out), summary_settings("bd3lm")
    for more, sizes in (([], (12, 10)), (["--summary-tokens", "3"], (12, 3))):
        assert main([*words, *more]) == 0
        told = capsys.readouterr()
        prompt, cut = prompt_of(model, document, sizes[0])
        out = generate(model, [prompt], seed=0, settings=replace(how, max_new_tokens=sizes[1]))
        assert told.out == out.texts[0].strip() + "\n"
        assert (f"cut to {sizes[0]} tokens" in told.err) == cut and "note:" not in told.err
    evaluate = f"evaluate summarisation --model {config.out} --data {config.valid[0]} --device cpu --json"
    assert main([*evaluate.split(), "--out", str(tmp_path / "evaluation")]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert (measured["document_tokens"], measured["summary_tokens"]) == (12, 10)
    assert main([*words[:3], config.model, *words[4:]]) == 0
    assert "never fine-tuned on summaries" in capsys.readouterr().err


def test_what_fine_tuning_has_not_is_neither_listed_nor_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["finetune", "--help"])
    listed = capsys.readouterr().out
    assert "--train.lr" in listed and "--noise.low" in listed
    for option in ("--train.parallel", "--noise.clip-search"):
        assert option not in listed
        with pytest.raises(SystemExit):
            main(["finetune", option, "1"])
        assert "Unrecognized" in capsys.readouterr().err


@pytest.mark.parametrize(("total", "count"), [(500, 256), (1000, 256), (10, 10), (10, 64), (7, 3)])
def test_pairs_that_are_shown_come_from_all_over(total: int, count: int) -> None:
    documents = Documents(pairs=tuple((str(n), "") for n in range(total)), source="made up")
    shown = [int(document) for document, _ in module._evenly(documents, count).pairs]
    assert len(shown) == min(count, total) and shown[0] == 0
    steps = {after - before for before, after in zip(shown, [*shown[1:], total], strict=True)}
    assert max(steps) - min(steps) <= 1
