"""dadlm chat: in a terminal of its own, through a pipe, and what it refuses."""

import io
import json
from pathlib import Path

import pytest
import torch
from tests.commands import Cli, refused
from tests.decode.test_turn_end import likely_to_end, speaker
from tests.decode.tiny import tiny

from dadlm import DecodeSettings, Model, generate, save
from dadlm.cli.chat import Conversation
from dadlm.errors import DataError
from dadlm.tokens import Tokenizer
from dadlm.tokens.chat import Message

HOW = {"temperature": 3.0, "top_p": 1.0}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(speaker("ar", True), tmp_path / "talker")
    return tmp_path / "talker"


def answered(model: Model, messages: list[Message], seed: int, **how: object) -> str:
    assert model.tokenizer is not None
    ids = model.tokenizer.encode_chat(messages)
    how = {"max_new_tokens": 128 - len(ids)} | HOW | how
    return generate(model, [ids], seed=seed, **how).texts[0]  # type: ignore[arg-type]


def conversation(model: Model, said: list[str], seed: int, system: str = "", **how: object) -> list[Message]:
    """What must have been said, by asking for each answer anew."""
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    for text in said:
        messages.append({"role": "user", "content": text})
        messages.append({"role": "assistant", "content": answered(model, messages, seed, **how)})
    return messages


@pytest.mark.parametrize("family", ["ar", "bd3lm"])
@pytest.mark.parametrize("mode", [[], ["--mode", "lossless", "--draft", "lookup"], ["--mode", "lossless"]])
def test_a_piped_conversation(
    family: str, mode: list[str], cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In mode ar where there is one; what was said stays known; mode lossless says the same."""
    model = speaker(family, True, **({} if family == "ar" else {"causal_context": True}))
    save(model, tmp_path / "talker")
    words = [
        "chat",
        "--model",
        "./talker",
        "--seed",
        4,
        "--temperature",
        3,
        "--top-p",
        1,
        "--system",
        "be kind",
    ]
    want = conversation(model, ["hi", "the cat"], 4, "be kind", mode="ar", max_new_tokens=20)
    monkeypatch.setattr("sys.stdin", io.StringIO("hi\n\nthe cat\n/exit\nmore\n"))
    told = cli(*words, *mode, "--max-new-tokens", 20, "--json").json
    assert told["messages"] == want and told["tokens"] > 2 and bool(told["cycles"]) == bool(mode)
    monkeypatch.setattr("sys.stdin", io.StringIO("hi\nthe cat"))
    plain = cli(*words, *mode, "--max-new-tokens", 20)
    assert plain.out == "".join(one["content"] + "\n" for one in want if one["role"] == "assistant")


def test_reset_forgets(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hi\n/reset\nthe cat\n"))
    told = cli("chat", "--model", folder, "--seed", 4, "--temperature", 3, "--top-p", 1, "--json").json
    assert told["messages"] == conversation(speaker("ar", True), ["the cat"], 4)


def test_an_unknown_command_keeps_no_line_from_its_answer(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("/dance\n/help\nhi\n/quit\nnever\n"))
    result = cli("chat", "--model", folder, "--json", "--max-new-tokens", "4")
    assert result.code == 2 and "/dance is no command" in result.err and "/reset" in result.err
    said = [message["content"] for message in json.loads(result.out)["messages"] if message["role"] == "user"]
    assert said == ["hi"]


@pytest.mark.parametrize("as_json", [True, False])
def test_nor_does_one_that_is_too_long(
    as_json: bool, cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was said before it is not lost, and it is not part of the conversation."""
    monkeypatch.setattr("sys.stdin", io.StringIO(f"hi\n{'x ' * 300}\nthe cat\n/exit\n"))
    words = ["--seed", 4, "--temperature", 3, "--top-p", 1, "--max-new-tokens", 8]
    result = cli("chat", "--model", folder, *words, *(["--json"] if as_json else []))
    assert result.code == 2 and "and the model reads 128" in result.err and "Traceback" not in result.err
    want = conversation(speaker("ar", True), ["hi", "the cat"], 4, max_new_tokens=8)
    if as_json:
        assert json.loads(result.out)["messages"] == want
    else:
        assert result.out == "".join(one["content"] + "\n" for one in want if one["role"] == "assistant")


def test_answers_come_as_they_are_written(folder: Path) -> None:
    """A piece for each token or so, no half characters, and Ctrl-C keeps what there is."""
    model = speaker("ar", True)
    talk, pieces = Conversation(model, DecodeSettings(mode="ar", **HOW), seed=4), list[str]()  # type: ignore[arg-type]
    assert talk.answer("hi", pieces.append)
    want = answered(model, [{"role": "user", "content": "hi"}], 4)
    assert "".join(pieces) == want and len([piece for piece in pieces if piece]) > 3

    def stop(piece: str) -> None:
        pieces.append(piece)
        if len(pieces) == 4:
            raise KeyboardInterrupt

    pieces.clear()
    talk.reset()
    assert not talk.answer("hi", stop)
    assert talk.messages[-1] == {"role": "assistant", "content": "".join(pieces)}
    assert want.startswith("".join(pieces)) and talk.answer("more", lambda _: None)


def test_long_answers_are_not_decoded_anew_for_each_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or their last tokens would take as long as all before."""
    sizes, decode = list[int](), Tokenizer.decode
    monkeypatch.setattr(Tokenizer, "decode", lambda self, ids: sizes.append(len(ids)) or decode(self, ids))
    model = endless(512)
    settings = DecodeSettings(mode="ar", temperature=0.0, max_new_tokens=400)
    talk, pieces = Conversation(model, settings), list[str]()
    assert talk.answer("hi", pieces.append)
    assert talk.costs[0][0] == 400 and max(sizes) < 100
    want = answered(model, [{"role": "user", "content": "hi"}], 0, temperature=0.0, max_new_tokens=400)
    assert "".join(pieces) == want and max(sizes) == 400


def test_an_answer_that_is_cut_off_is_told(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(endless(128), tmp_path / "talker")
    words = ["chat", "--model", "./talker", "--temperature", 0, "--max-new-tokens", 9]
    for more in ([], ["--json"]):
        monkeypatch.setattr("sys.stdin", io.StringIO("hi\n"))
        result = cli(*words, *more)
        assert (result.code, result.err) == (0, "note: an answer was cut off after 9 tokens\n")


def test_an_answer_that_ends_is_not() -> None:
    talk = Conversation(likely_to_end("ar"), DecodeSettings(mode="ar", top_p=1.0), seed=1)
    assert [talk.answer(said, print) for said in ("hi", "the cat")] == ["stop", "stop"]


def test_a_full_context_is_told(folder: Path) -> None:
    talk = Conversation(speaker("ar", True), DecodeSettings(mode="ar"))
    with pytest.raises(DataError, match="/reset"):
        talk.answer("hi " * 100, print)
    assert talk.messages == []


def test_what_is_refused(cli: Cli, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tiny("ar"), tmp_path / "base")
    refused(cli("chat", "--model", tmp_path / "base"), "without a chat template", "--model smollm2")
    refused(cli("chat", "--model", folder, "--draft", "lookup"), "draft belongs to mode lossless")
    monkeypatch.setattr("sys.stdin", io.StringIO("/dance\n"))
    refused(cli("chat", "--model", folder), "/dance is no command")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\n"), "utf-8"))
    refused(cli("chat", "--model", folder), "not UTF-8")


def endless(context: int) -> Model:
    """Greedy answers of it do not end."""
    model = speaker("ar", True, tie_embedding=False)
    model.config.__dict__["context"] = context
    with torch.no_grad():
        for id_ in model.end_ids:
            model.head.linear.weight[id_] = 0.0  # never the likeliest
    return model


def test_a_terminal(tmp_path: Path) -> None:
    terminals = pytest.importorskip("tests.test_cli_interactive")  # for which there must be some
    save(endless(8192), tmp_path / "talker")
    words = ["--temperature", 0, "--max-new-tokens", 8000]
    terminal = terminals.Terminal("chat", "--model", tmp_path / "talker", *words)
    try:
        terminal.wait_for("/help.*\n> ")
        terminal.type("/help\n")
        terminal.wait_for("/reset .*\n/exit .*\n> ")
        terminal.type("/dance\n")
        terminal.wait_for("error: /dance is no command.*\n> ")
        terminal.type("hi\n")
        terminal.wait_for(r"hi\n(.|\n){20}")  # it is written while we look
        terminal.type("\x03")
        terminal.wait_for(r"stopped after \d+ tokens in [\d.]+ s: [\d.]+ a second\n> ")
        terminal.interrupt(r"\^C\n|\n")
        assert terminal.process.wait(timeout=120) == 0
    finally:
        terminal.close()
