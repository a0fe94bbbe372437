"""Finished pieces survive: a kill in the middle of a line, another start, a wrong folder."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dadlm.errors import DataError
from dadlm.evaluate.work import Work, write_result

SUBJECT = {"model": {"name": "a"}, "seed": 0}
KEYS = [str(number) for number in range(7)]


def squares(out: Path | None, subject: dict[str, Any] = SUBJECT, size: int = 2, stop: int = 99) -> list[str]:
    """Compute what is missing, `stop` batches at most; returns the keys computed."""
    computed = []
    with Work("squares", subject, out) as work:
        for number, batch in enumerate(work.batches(KEYS, size, "squares")):
            if number == stop:
                return computed
            work.add((key, [int(key) ** 2]) for key in batch)
            computed += batch
        work.finish({"sum": sum(value[0] for value in work.values(KEYS))})
    return computed


def read(out: Path) -> Any:
    return json.loads((out / "squares.json").read_text(encoding="utf-8"))


def test_the_result_is_kind_subject_and_what_was_measured(tmp_path: Path):
    assert squares(tmp_path) == KEYS
    assert list(read(tmp_path).items()) == [("kind", "squares"), *SUBJECT.items(), ("sum", 91)]
    assert {file.name for file in tmp_path.iterdir()} == {"squares.json", "squares.pieces.jsonl"}


def test_only_what_is_missing_is_computed(tmp_path: Path):
    assert squares(tmp_path, stop=2) == KEYS[:4]
    assert not (tmp_path / "squares.json").exists()
    assert squares(tmp_path, size=5) == KEYS[4:]
    assert read(tmp_path)["sum"] == 91
    assert squares(tmp_path) == []
    assert read(tmp_path)["sum"] == 91


def test_a_kill_at_any_byte_costs_at_most_the_line_it_hit(tmp_path: Path):
    squares(tmp_path / "whole")
    file = "squares.pieces.jsonl"
    content = (tmp_path / "whole" / file).read_bytes()
    for end in range(len(content)):
        out = tmp_path / str(end)
        out.mkdir()
        (out / file).write_bytes(content[:end])
        lines = content[:end].count(b"\n")
        assert squares(out) == KEYS[max(0, lines - 1) :]
        assert (out / file).read_bytes() == content
        assert (out / "squares.json").read_bytes() == (tmp_path / "whole" / "squares.json").read_bytes()


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"model": {"name": "b"}, "seed": 0}, r"different: model\.name\)"),
        ({"model": {"name": "a"}, "seed": 1}, "different: seed"),
        ({"model": {"name": "a"}}, "different: seed"),
        ({**SUBJECT, "against": None}, "different: against"),
    ],
)
def test_another_subject_is_refused_and_nothing_is_lost(other: dict[str, Any], told: str, tmp_path: Path):
    squares(tmp_path, stop=1)
    before = (tmp_path / "squares.pieces.jsonl").read_bytes()
    with pytest.raises(DataError, match=f"{told}.*choose another --out"):
        squares(tmp_path, other)
    assert (tmp_path / "squares.pieces.jsonl").read_bytes() == before
    assert squares(tmp_path) == KEYS[2:]


def test_tuples_in_a_subject_are_the_same_after_reading(tmp_path: Path):
    for expected in (KEYS, []):
        assert squares(tmp_path, {"infill": (2, 0.5)}) == expected


@pytest.mark.parametrize("line", [b"{\n", b"7\n", b"[1]\n", b"[[], 1]\n", b"\xff\n", b"null\n"])
def test_a_spoilt_line_is_named(line: bytes, tmp_path: Path):
    squares(tmp_path, stop=1)
    with open(tmp_path / "squares.pieces.jsonl", "ab") as file:
        file.write(line)
    with pytest.raises(DataError, match=r"squares\.pieces\.jsonl, line 4.*remove the file"):
        squares(tmp_path)


def test_a_result_is_strict_json_written_whole_or_not_at_all(tmp_path: Path):
    file = tmp_path / "x.json"
    write_result(file, {"a": "é"})
    with pytest.raises(ValueError):
        write_result(file, {"a": float("nan")})
    assert json.loads(file.read_text(encoding="utf-8")) == {"a": "é"}


def test_progress_goes_to_standard_error_unless_quiet(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    squares(tmp_path, stop=1)
    assert capfd.readouterr() == ("", "")
    with Work("squares", SUBJECT, tmp_path, quiet=False) as work:
        for batch in work.batches(KEYS, 3, "squaring"):
            work.add((key, [0]) for key in batch)
    told = capfd.readouterr()
    assert told.out == "" and "squaring" in told.err and "7/7" in told.err


@pytest.mark.parametrize("bad", [float("nan"), [1, float("inf")], {"nats": -float("inf")}])
@pytest.mark.parametrize("folder", [True, False])
def test_what_is_no_number_is_refused_with_its_piece(bad: Any, folder: bool, tmp_path: Path):
    with Work("squares", SUBJECT, tmp_path if folder else None) as work:
        with pytest.raises(DataError, match="squares, piece '7' is infinite or not a number"):
            work.add([("6", 36), ("7", bad)])
        assert work.pieces == {}
    assert squares(tmp_path) == KEYS


def test_two_processes_do_not_write_one_folder(tmp_path: Path):
    program = (
        "from dadlm.evaluate.work import Work\n"
        f"work = Work('squares', {SUBJECT!r}, {str(tmp_path)!r}); work.add([('0', [0])])\n"
        "print('at work', flush=True); input()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe) as other:
        assert other.stdout is not None and other.stdout.readline() == b"at work\n"
        before = (tmp_path / "squares.pieces.jsonl").read_bytes()
        with pytest.raises(DataError, match=r"another process is at work on .*wait.*another --out"):
            squares(tmp_path)
        assert (tmp_path / "squares.pieces.jsonl").read_bytes() == before
        other.kill()  # what was added is on the disk
    assert squares(tmp_path) == KEYS[1:]
