"""Planted pairs: what they are made of, and what a judge that knows, and one that does not, gets told."""

import json
from pathlib import Path
from threading import Event

import pytest
from tests.evaluate.test_judge import Longer, Reader

from dadlm.cli import main
from dadlm.errors import DataError
from dadlm.evaluate.judge import judge
from dadlm.evaluate.pairs import PLANTED_KINDS, in_words, plant, trust
from dadlm.evaluate.question import Answer, Question


def text(number: int) -> str:
    """200 words, all different, none in another text."""
    return " ".join(f"t{number}n{place}" for place in range(200))


TEXTS = [text(0), "too short", text(1), text(2)]


def test_pairs_by_hand() -> None:
    pairs = plant(TEXTS, count=10).pairs
    assert [(pair.configuration, pair.index) for pair in pairs] == [
        (kind, index) for index in range(3) for kind in PLANTED_KINDS
    ]
    for number, (shuffled, truncated, off_topic) in enumerate(zip(*[iter(pairs)] * 3, strict=True)):
        words = text(number).split()
        real = words[64:192]
        assert all(pair.a.split() == real for pair in (shuffled, truncated, off_topic))
        assert all(pair.prompt.split() == words[:64] for pair in (shuffled, truncated, off_topic))
        assert shuffled.b.split() != real and sorted(shuffled.b.split()) == sorted(real)
        assert truncated.b.split() == real[:16]
        assert off_topic.b.split() == text((number + 1) % 3).split()[64:192]
    assert len(plant(TEXTS, count=2).pairs) == 6
    with pytest.raises(DataError, match="at least 2 texts of 192 words"):
        plant(TEXTS[:2], count=5)


def test_who_knows_is_trusted_and_who_goes_by_length_is_not() -> None:
    pairs = plant([text(number) for number in range(20)], count=20)
    answers = {}
    for pair in pairs.pairs:
        answers |= {(pair.prompt, pair.a, pair.b): "A", (pair.prompt, pair.b, pair.a): "B"}

    class Knows(Reader):
        def ask(self, question: Question, stop: Event) -> Answer:
            return Answer(text=answers[question.prompt, question.first, question.second])

    found = trust(judge(pairs, Knows()))
    assert found["trusted"] and [row["right"] for row in found["rows"]] == [20, 20, 20]
    found = trust(judge(pairs, Reader(len)))
    rows = {row["kind"]: row for row in found["rows"]}
    assert not found["trusted"]
    assert (rows["truncated"]["right"], rows["shuffled"]["undecided"]) == (20, 20)
    assert "no evidence" in in_words(found)[-1]


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dadlm.cli.evaluate.judge.open_language_model", lambda name, device: Longer(bias=0))
    Path("real.jsonl").write_text("".join(json.dumps({"text": one}) + "\n" for one in TEXTS))
    words = ["evaluate", "judge", "--judge", "x", "--planted", "real.jsonl"]
    assert main([*words, "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert (alone["a"], alone["pairs"], alone["planted"]["trusted"]) == ("the real text", 9, False)
    for model, said in (("one", "longer text"), ("two", "short")):
        record = {"model": model, "index": 0, "text": said, "configuration": "FH", "prompt": "p"}
        Path(f"{model}.jsonl").write_text(json.dumps(record) + "\n")
    assert main([*words, "--samples", "one.jsonl", "two.jsonl", "--out", "both"]) == 0
    shown = capsys.readouterr().out
    assert "truncated (its first eighth): right in 3 of 3" in shown and "no evidence" in shown
    both = json.loads(Path("both/judge.json").read_text())
    assert (both["a"], both["wins_a"], both["planted"]) == ("one", 1, alone["planted"])
