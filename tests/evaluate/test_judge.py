"""The judge: pairs, verdicts, conservative aggregation, restarts, the command line."""

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event, Lock
from typing import Any

import numpy as np
import pytest
from tests.evaluate.results import lines as write

from dadlm.cli import main
from dadlm.errors import ConfigError, DataError
from dadlm.evaluate.documents import find_jsonl
from dadlm.evaluate.judge import judge
from dadlm.evaluate.language_models import Scored
from dadlm.evaluate.pairs import PLANTED_KINDS, Pair, Pairs, in_words, plant, read_pairs, trust
from dadlm.evaluate.question import Answer, LocalJudge, Question, verdict_of


class Reader:
    """A judge that prefers what `key` rates higher, and remembers what it was asked."""

    label, threads = "reader", 2
    settings: dict[str, Any] = {}  # noqa: RUF012 (never changed)

    def __init__(self, key: Callable[[str], float] = len) -> None:
        self.key, self.asked, self.lock = key, [], Lock()

    def ask(self, question: Question, stop: Event) -> Answer:
        with self.lock:
            self.asked.append(question)
        first, second = self.key(question.first), self.key(question.second)
        return Answer(text="A" if first > second else "B" if first < second else "tie")


class Script(Reader):
    """A judge that gives fixed answers by the two texts it sees."""

    def __init__(self, answers: dict[tuple[str, str], str]) -> None:
        super().__init__()
        self.answers = answers

    def ask(self, question: Question, stop: Event) -> Answer:
        answer = self.answers[question.first, question.second]
        return Answer(text=answer, requests=2, prompt_tokens=100, completion_tokens=3)


def pairs_of(*texts: tuple[str, str]) -> Pairs:
    made = (Pair(configuration="FH", index=i, prompt="p", a=a, b=b) for i, (a, b) in enumerate(texts))
    return Pairs(a="one", b="two", pairs=tuple(made))


# Verdicts


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        *(("A", "A"), (" b\n", "B"), ("Tie.", "tie"), ("**A**", "A"), ("Answer: B", "B"), ("TIE", "tie")),
        *(("Continuation A", "A"), ("The verdict", None), ("A clear tie", None), ("AB", None), ("", None)),
        *(("A or B", None), ("Neither", None), ("Both are bad", None), ("[[B]]", "B"), ("C", None)),
    ],
)
def test_only_a_clear_word_is_a_verdict(answer: str, verdict: str | None) -> None:
    assert verdict_of(answer) == verdict


def test_a_win_needs_both_orders() -> None:
    """All nine combinations of two verdicts, and one that cannot be read."""
    words = ("A", "B", "tie", "hm")
    texts, answers, expected = [], {}, {"a": 0, "b": 0}
    for ab in words:
        for ba in words:
            a, b = f"{ab}{ba} by one", f"{ab}{ba} by two"
            texts.append((a, b))
            answers |= {(a, b): ab, (b, a): ba}
            chosen = ({"A": a, "B": b}.get(ab), {"A": b, "B": a}.get(ba))
            expected["a"] += chosen == (a, a)
            expected["b"] += chosen == (b, b)
    result = judge(pairs_of(*texts), Script(answers), price_in=10, price_out=100)
    assert (result["wins_a"], result["wins_b"]) == (expected["a"], expected["b"]) == (1, 1)
    assert (result["pairs"], result["ties"], result["unparsed"]) == (16, 14, 8)
    assert "win_rate" not in result and result["rows"][0]["win_rate"]["mean"] == 0.5
    assert result["first_position_share"] == 0.5  # eight times A, eight times B
    assert (result["requests"], result["prompt_tokens"], result["completion_tokens"]) == (64, 3200, 96)
    assert result["cost"] == pytest.approx(3200 * 10e-6 + 96 * 100e-6)
    assert result["unparsed_examples"] == ["hm"] * 3
    assert [row["configuration"] for row in result["rows"]] == ["FH"]


def test_a_judge_that_always_says_a_decides_nothing() -> None:
    class First(Reader):
        def ask(self, question: Question, stop: Event) -> Answer:
            return Answer(text="A")

    result = judge(pairs_of(("x", "y"), ("z", "w")), First())
    assert (result["ties"], result["first_position_share"]) == (2, 1.0)
    assert result["rows"][0]["win_rate"] == {"mean": 0.5, "low": 0.0, "high": 1.0}
    assert result["prompt_tokens"] is result["cost"] is None
    json.dumps(result, allow_nan=False)


def test_caps_and_hidden_names() -> None:
    reader = Reader()
    pair = Pair(configuration="FH", index=0, prompt="o" * 50 + "p" * 1200, a="q" * 6000 + "z", b="x")
    judge(Pairs(a="first model", b="second model", pairs=(pair,)), reader)
    for question in reader.asked:
        assert question.text.count("p" * 1200) == question.text.count("q" * 6000) == 1
        assert "oo" not in question.text and "qz" not in question.text
        assert "model" not in question.text
    assert {question.first[0] for question in reader.asked} == {"q", "x"}


# Restarts


def test_the_same_question_is_asked_once(tmp_path: Path) -> None:
    """Two pairs alike; and two texts alike, which are the same question in both orders."""
    reader = Reader()
    result = judge(pairs_of(("xx", "y"), ("xx", "y"), ("same", "same")), reader)
    assert len(reader.asked) == result["requests"] == 3
    assert (result["wins_a"], result["ties"], result["pairs"], result["prompts"]) == (2, 1, 3, 1)


# Samples


def sample(
    model: str, index: Any, text: str, configuration: str = "FH", prompt: str = "Once"
) -> dict[str, Any]:
    return {"model": model, "index": index, "text": text, "configuration": configuration, "prompt": prompt}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two models, three configurations, one of which only one model has; one sample without a partner."""
    samples = tmp_path / "samples"
    write(samples / "bd-FH.jsonl", *(sample("bd", i, f"b{i}") for i in (2, 1, 0)))
    write(samples / "bd-T8.jsonl", *(sample("bd", i, f"b{i}", "T=8") for i in range(2)))
    write(samples / "da-FH.jsonl", *(sample("da", i, f"d{i} more") for i in range(2)))
    write(samples / "da-T8.jsonl", *(sample("da", i, f"d{i} more", "T=8") for i in range(2)))
    write(samples / "da-T4.jsonl", sample("da", 0, "alone", "T=4"))
    return samples


def test_what_is_half_written_is_not_read(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl.zst", ".c.jsonl", "d.json"):
        (tmp_path / name).touch()
    assert [file.name for file in find_jsonl(tmp_path)] == ["a.jsonl.zst", "b.jsonl"]


def test_samples_are_matched_by_configuration_and_index(folder: Path) -> None:
    pairs = read_pairs(folder, folder, "da", "bd")
    assert [(p.configuration, p.index, p.a, p.b) for p in pairs.pairs] == [
        ("FH", 0, "d0 more", "b0"),
        ("FH", 1, "d1 more", "b1"),
        ("T=8", 0, "d0 more", "b0"),
        ("T=8", 1, "d1 more", "b1"),
    ]
    assert (pairs.a, pairs.b, pairs.missing) == ("da", "bd", 2)
    result = judge(pairs, Reader())
    assert [(row["configuration"], row["pairs"], row["wins_a"]) for row in result["rows"]] == [
        ("FH", 2, 2),
        ("T=8", 2, 2),
    ]
    assert (result["pairs"], result["wins_a"], result["missing"]) == (4, 4, 2)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([sample("da", 0, "x"), '{"model": '], r"da\.jsonl, line 2: not valid JSON"),
        ([sample("da", 0, "x"), "", "[1]"], r"da\.jsonl, line 3: not an object but list"),
        ([{"model": "da"}], "line 1: not a sample: no configuration, prompt, text, index"),
        ([sample("da", "0", "x")], r"line 1: field 'index' must be a whole number"),
        ([sample("da", 0, "x"), sample("da", 0, "y")], r"line 2: sample 0 of FH is already in .*line 1"),
        (
            [sample("da", 0, "x", prompt="Twice")],
            r"da\.jsonl, line 1 and .*bd\.jsonl, line 1: the prompts differ",
        ),
        ([sample("da", 7, "x", "T=8")], "no sample of .* has a partner.*T=8, and FH"),
        ([sample("da", 0, "x"), sample("em", 0, "x")], "holds samples of da, em: name the one"),
        ([""], "holds no samples"),
        (  # older files that were left behind
            [sample("da", 0, "x") | {"weights": "a"}, sample("da", 1, "x") | {"weights": "b"}],
            "several models called da.*weights differ",
        ),
    ],
)
def test_bad_samples(tmp_path: Path, lines: list[Any], told: str) -> None:
    other = write(tmp_path / "bd.jsonl", sample("bd", 0, "y"))
    with pytest.raises(DataError, match=told):
        read_pairs(write(tmp_path / "da.jsonl", *lines), other)


def test_the_text_that_prompts_are_from(tmp_path: Path) -> None:
    records = [[sample(model, i, f"{model}{i}") | {"source": "owt.txt"} for i in range(2)] for model in "ab"]
    write(tmp_path / "a.jsonl", *records[0])
    assert read_pairs(tmp_path / "a.jsonl", write(tmp_path / "b.jsonl", *records[1])).source == "owt.txt"
    del records[1][1]["source"]
    pairs = read_pairs(tmp_path / "a.jsonl", write(tmp_path / "b.jsonl", *records[1]))
    assert pairs.source is None and judge(pairs, Reader())["source"] is None
    records[1][1]["source"] = 3
    with pytest.raises(DataError, match="line 2: field 'source'"):
        read_pairs(tmp_path / "a.jsonl", write(tmp_path / "b.jsonl", *records[1]))


def test_a_model_cannot_be_compared_with_itself(folder: Path) -> None:
    two_runs = read_pairs(*(write(folder / "x" / f"{n}.jsonl", sample("last", 0, n)) for n in "xy"))
    assert two_runs.a != two_runs.b
    with pytest.raises(DataError, match="both sides are the same"):
        read_pairs(folder, folder, "da", "da")
    with pytest.raises(DataError, match="holds samples of bd, da: not of ar"):
        read_pairs(folder, folder, "ar", "da")


# The judge on this machine


class Told:
    """A language model to which a prompt tells `tells(text)` nats of a text."""

    label, identity, window = "told", "a hash of its weights", 100

    def __init__(self, tells: Callable[[str], float | None] = len) -> None:
        self.tells, self.asked = tells, list[str]()

    def score(self, texts: Sequence[str], prompts: Sequence[str]) -> Scored:
        (text, again), (prompt, nothing) = texts, prompts
        assert text == again and prompt.strip() and nothing and not nothing.strip()
        self.asked.append(text)
        nats, told = 9.0 * len(text), self.tells(text)
        nll = None if told is None else np.array([nats - told, nats])
        return Scored(None, nll, None, np.array([told == np.inf, False]))


def test_the_text_wins_of_which_the_prompt_tells_more() -> None:
    pairs = pairs_of(("apt", "astray"), ("aside", "apt"), ("apt", "fit"))
    model = Told({"apt": 5.0, "astray": -1.0, "aside": 4.5, "fit": 5.0}.__getitem__)
    result = judge(pairs, LocalJudge(model))  # type: ignore[arg-type]
    assert (result["wins_a"], result["wins_b"], result["ties"]) == (1, 1, 1)
    assert result["judge"] == "told" and result["judge_settings"]["identity"] == Told.identity
    assert sorted(model.asked) == ["apt", "aside", "astray", "fit"]  # each of them once, whoever is beside it
    assert result["first_position_share"] == 0.5


@pytest.mark.parametrize(("told", "problem"), [(None, "is an encoder"), (np.inf, "told reads 100 tokens")])
def test_a_model_that_cannot_tell_is_refused(told: float | None, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        judge(pairs_of(("apt", "fit")), LocalJudge(Told(lambda text: told)))  # type: ignore[arg-type]


def test_what_samples_say_of_their_model_is_in_the_result(tmp_path: Path) -> None:
    facts = {"family": "dadlm", "block_size": 4, "context": 32, "parameters": 1000}
    write(tmp_path / "a.jsonl", sample("da", 0, "long") | facts)
    for number, strange in enumerate(({}, {"family": "gpt"}, facts | {"family": []}, {"family": "ar"})):
        other = write(tmp_path / f"{number}.jsonl", sample("other", 0, "x") | strange)
        result = judge(read_pairs(tmp_path / "a.jsonl", other), Reader())
        assert (result["model_a"], result["model_b"]) == (facts, None)


# The command line


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    opened = "dadlm.cli.evaluate.judge.open_language_model"
    monkeypatch.setattr(opened, lambda name, device: Told())


def test_command(
    local: None, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["evaluate", "judge", "--samples", str(folder), "--model-a", "da", "--model-b", "bd"]
    assert main([*words, "--judge", "x", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result == json.loads(next(Path("evaluation").glob("judge-*/judge.json")).read_text())
    assert (result["kind"], result["wins_a"]) == ("judge", 4)
    assert main([*words, "--judge", "x"]) == 0  # nothing is asked again, the table comes from the pieces
    said = capsys.readouterr().out
    assert "100.00" in said and "2 samples have no partner" in said and "T=8" in said
    assert "goes by position" not in said
    assert "up to 1 pairs repeat the prompt" in said
    # Configurations of the same prompts are not independent: no interval over all.
    assert next(line for line in said.splitlines() if " all " in line).count("–") == 1
    first = lambda model: Script(defaultdict(lambda: "A"))  # noqa: E731
    monkeypatch.setattr("dadlm.cli.evaluate.judge.LocalJudge", first)
    assert main([*words, "--judge", "x", "--out", "biased"]) == 0
    assert "This judge goes by position" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "no samples"),
        (["--samples", "nowhere", "--judge", "x"], "no file or folder nowhere"),
        (["--samples", "samples", "--judge", "x"], "name the one"),
        (["--samples", "samples"], "who judges?"),
        (["--planted", "text.txt", "--planted-count", "-1", "--judge", "x"], "at least 1"),
        (["--samples", "samples", "--judge", "x", "--endpoint", "y"], "who judges?"),
    ],
)
def test_command_refuses(
    local: None, folder: Path, words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", "judge", *words]) == 2
    assert told in capsys.readouterr().err


# Planted pairs


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


def test_the_command_with_planted_pairs(local: None, capsys: pytest.CaptureFixture[str]) -> None:
    write(Path("real.jsonl"), *({"text": one} for one in TEXTS))
    words = ["evaluate", "judge", "--judge", "x", "--planted", "real.jsonl"]
    assert main([*words, "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert (alone["a"], alone["pairs"], alone["planted"]["trusted"]) == ("the real text", 9, False)
    for model, said in (("one", "longer text"), ("two", "short")):
        write(Path(f"{model}.jsonl"), sample(model, 0, said))
    assert main([*words, "--samples", "one.jsonl", "two.jsonl", "--out", "both"]) == 0
    shown = capsys.readouterr().out
    assert "truncated (its first eighth): right in 3 of 3" in shown and "no evidence" in shown
    assert "FH" not in shown  # its verdicts are kept, and not shown
    both = json.loads(Path("both/judge.json").read_text())
    assert (both["a"], both["wins_a"], both["planted"]) == ("one", 1, alone["planted"])
