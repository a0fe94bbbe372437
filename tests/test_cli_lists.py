"""Options that take several values: in one piece or in parts they say the same."""

import pytest
from tests.commands import Cli, refused

from dadlm.cli import bench, finetune, generate, serve
from dadlm.cli.evaluate.kinds import OPTIONS
from dadlm.cli.options import _lists, joined, parse

KINDS = {
    "serve": serve.Options,
    "generate": generate.Options,
    "finetune": finetune._Options,
    "bench decode": bench._Decode,
    "bench train": bench._Train,
    "bench lossless": bench._Lossless,
} | {f"evaluate {name}": kind for name, kind in OPTIONS.items()}
POSITIONAL = {"--prompts"}
LISTS = [(command, flag) for command, kind in KINDS.items() for flag in sorted(_lists(kind) - POSITIONAL)]


def test_the_lists_are_found() -> None:
    found = {"serve --model", "generate --seed", "finetune --data", "evaluate acceptance --draft"}
    assert found <= {" ".join(one) for one in LISTS}
    assert not {"--infill", "--train.betas", "--betas"} & {flag for _, flag in LISTS}  # of a fixed size


@pytest.mark.parametrize(("command", "flag"), LISTS)
def test_parts_of_a_list_are_one_list(command: str, flag: str) -> None:
    kind = KINDS[command]
    values = ["http://one", "http://two", "http://three"] if flag == "--cors-origin" else ["1", "2", "3"]
    whole = parse(kind, [flag, *values], command)
    assert whole != parse(kind, [flag, values[-1]], command)
    assert parse(kind, [flag, *values[:2], flag, values[2]], command) == whole
    assert parse(kind, [f"{flag}={one}" for one in values], command) == whole


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("--model a --port 1 --model b", "--model a b --port 1"),
        ("--model a --port 1 --port 2", "--model a --port 1 --port 2"),  # of a single value the last counts
        ("--cors-origin x --cors_origin=y", "--cors-origin x y"),
        ("a --model b -- --model c", "a --model b -- --model c"),
        ("--model --model a", "--model a"),
    ],
)
def test_only_lists_are_joined(words: str, wanted: str) -> None:
    assert joined(serve.Options, words.split()) == wanted.split()


def test_negative_numbers_are_values() -> None:
    assert parse(generate.Options, ["text", "--seed", "-1", "--seed", "-2"], "generate").seed == (-1, -2)


@pytest.mark.parametrize("name", ["small", "small-ar"])
def test_one_text_to_train_on(name: str, cli: Cli) -> None:
    words = ("--data.train", "a.txt", "--data.train=b.txt", "--plan")
    refused(cli("train", name, *words), "--data.train is given more than once", "1:A.txt,1:B.txt")


def test_of_two_models_to_start_from_the_last_counts(cli: Cli) -> None:
    words = ["train", "small-dadlm", "--plan", "--json", "--init-from"]
    twice = cli(*words, "tour-dadlm", "--init-from", "dadlm").json
    assert twice == cli(*words, "dadlm").json
