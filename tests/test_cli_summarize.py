"""dadlm summarize: text, JSON Lines and standard input; what is told, left out and refused."""

import io
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.commands import Cli, refused
from tests.decode.test_turn_end import speaker
from tests.decode.tiny import tiny

from dadlm import Model, generate
from dadlm.evaluate.documents import read_documents
from dadlm.evaluate.summarisation import prompt_of, summary_settings
from dadlm.model.checkpoint import save
from dadlm.tokens import word_level

WORDS = [f"w{number}" for number in range(28)]
DOCUMENTS = ("w1 w2 w3", "w4 w5 w6 w7 w8 w9", "w3 " * 40)


@pytest.fixture
def model(tmp_path: Path) -> Model:
    model = tiny("dadlm", context=32, tokenizer=word_level(WORDS))
    save(model, tmp_path / "model")
    return model


def expected(model: Model, document: str) -> str:
    """By `generate` alone: 24 of the 32 tokens to read, 8 to write."""
    prompt, _ = prompt_of(model, document, 24)
    settings = replace(summary_settings("dadlm"), max_new_tokens=8)
    return generate(model, [prompt], seed=0, settings=settings).texts[0].strip()


@pytest.fixture
def summarize(cli: Cli) -> Cli:
    return lambda *words: cli("summarize", *words, "--model", "model", "--device", "cpu")


def files(tmp_path: Path) -> tuple[str, str]:
    text, lines = tmp_path / "one.txt", tmp_path / "two.jsonl"
    text.write_text(DOCUMENTS[0], encoding="utf-8")
    records: list[Any] = [{"document": DOCUMENTS[1]}, {"document": " "}, {"prompt": DOCUMENTS[2]}]
    lines.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return str(text), str(lines)


def test_files_as_json(model: Model, summarize: Cli, tmp_path: Path) -> None:
    text, lines = files(tmp_path)
    told = summarize(text, lines, "--json").json
    assert [piece["summary"] for piece in told["summaries"]] == [expected(model, one) for one in DOCUMENTS]
    assert [piece["source"] for piece in told["summaries"]] == [text, f"{lines}, line 1", f"{lines}, line 3"]
    assert [piece["truncated"] for piece in told["summaries"]] == [False, False, True]
    assert told["skipped"] == [f"{lines}, line 2: the document is empty"]
    name = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt")  # not UTF-8
    Path(name).write_text(DOCUMENTS[0], encoding="utf-8")
    source = summarize(name, "--json").json["summaries"][0]["source"]
    assert source.endswith("caf\ufffd.txt") and source.encode()


def test_pairs_to_learn_from(summarize: Cli, tmp_path: Path) -> None:
    """Just what `dadlm finetune` reads, in the order of the documents: only whole summaries are pairs."""
    model = tiny("dadlm", context=32, tokenizer=word_level(WORDS), seed=21)
    save(model, tmp_path / "model")
    pairs, (text, lines) = tmp_path / "pairs.jsonl", files(tmp_path)
    link = tmp_path / "link.jsonl"
    link.symlink_to(pairs)
    options = ("--summary-tokens", "6", "--document-tokens", "24", "--batch-size", "2")
    told = summarize(text, lines, *options, "--json").json["summaries"]
    cut_off, empty, whole = ((piece["ended"], bool(piece["summary"])) for piece in told)
    assert (cut_off, empty, whole) == ((False, True), (True, False), (True, True))
    shown = summarize(text, lines, *options, "--pairs", link)
    assert shown.code == 0
    assert read_documents(pairs).pairs == ((DOCUMENTS[2], told[2]["summary"]),) and link.is_symlink()
    assert not shown.out and f"1 pairs in {link}; 2 summaries that are empty or were cut off" in shown.err
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    before = pairs.read_bytes()
    speechless(model, tmp_path)
    refused(summarize(text, "--pairs", pairs), "all summaries are empty or were cut off")
    assert pairs.read_bytes() == before


def speechless(model: Model, tmp_path: Path) -> None:
    """Nothing but end-of-text is likely."""
    with torch.no_grad():
        model.backbone.embedding.weight.zero_()
        model.backbone.embedding.weight[model.config.eot_id] = 1
    save(model, tmp_path / "model")


def test_the_end_of_a_turn_ends_a_summary(summarize: Cli, tmp_path: Path) -> None:
    model = speaker("bd3lm", True, architecture="bd3lm", tie_embedding=False)
    with torch.no_grad():
        model.head.linear.bias[model.end_ids[1]] = 1e4
    save(model, tmp_path / "model")
    (told,) = summarize(files(tmp_path)[0], "--json").json["summaries"]
    assert told["tokens"] == 1 and told["ended"]


@pytest.mark.parametrize("first", [False, True])
def test_infilling_before_and_behind_files(first: bool, model: Model, summarize: Cli, tmp_path: Path) -> None:
    text, _ = files(tmp_path)
    infill, how = ["--infill", "8", "0.25"], summary_settings("dadlm", infill=(8, 0.25))
    (told,) = summarize(*([*infill, text] if first else [text, *infill]), "--json").json["summaries"]
    prompt, _ = prompt_of(model, DOCUMENTS[0], 24)
    out = generate(model, [prompt], seed=0, settings=replace(how, max_new_tokens=8))
    assert (told["summary"], told["forward_passes"]) == (out.texts[0].strip(), out.forward_passes[0])


def test_for_people(model: Model, summarize: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, lines = files(tmp_path)
    shown = summarize(text, lines, "--batch-size", 1)
    assert shown.code == 0 and all(expected(model, document) in shown.out for document in DOCUMENTS)
    assert "per pass" in shown.err and "1 of 3 documents were cut to 24 tokens" in shown.err
    assert f"left out: {lines}, line 2: the document is empty" in shown.err
    assert summarize(text).out == expected(model, DOCUMENTS[0]) + "\n"  # alone: the summary and no more
    for words in ((), ("-",)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(DOCUMENTS[1].encode())))
        assert summarize(*words).out == expected(model, DOCUMENTS[1]) + "\n"
    speechless(model, tmp_path)
    assert "3 of 3 summaries are empty" in summarize(text, lines).err


@pytest.mark.usefixtures("model")
def test_what_is_refused(cli: Cli, summarize: Cli, tmp_path: Path) -> None:
    text, lines = files(tmp_path)
    latin = tmp_path / "latin.txt"
    latin.write_bytes(b"caf\xe9")
    os.mkfifo(pipe := tmp_path / "pipe.txt")
    refused(cli("summarize", text), "dadlm finetune makes it")
    for words, told in (
        ([latin], "latin.txt: not UTF-8"),
        ([text, lines, "--strict"], "line 2: the document is empty"),
        (["gone.txt"], "No such file"),
        ([pipe], "pipe.txt is no regular file"),
        ([text, "--summary-tokens", 40], "must fit into the context of 32"),
        ([text, "--json", "--pairs", "pairs.jsonl"], "not both"),
        ([text, "--pairs", tmp_path], "needs the name of a .jsonl file"),
        ([text, "--pairs", "/dev/stdout"], "needs the name of a .jsonl file"),
        ([text, lines, "--pairs", lines], "would replace what is read"),
        ([text, "--batch-size", 0], "--batch-size must be at least 1"),
    ):
        refused(summarize(*words), told)
    shown = summarize(text, latin)
    assert shown.code == 0 and "left out:" in shown.err
