"""The documents: every block can be read, every command and option in them exists, and the site builds."""

import ast
import re

import pytest
from tests.commands import Cli

from tools import docs_blocks

PAGES = docs_blocks.pages()
BLOCKS = [block for page in PAGES for block in docs_blocks.blocks(page)]
COMMANDS = [
    (block, command)
    for block in BLOCKS
    if block.language in docs_blocks.SHELL and block.page.name not in docs_blocks.NOT_RUN
    for command in docs_blocks.commands(block)
]
CALLS = [(block, call) for block, command in COMMANDS for call in docs_blocks.calls(command)]
# Options of other programs that prose names, and of commands in research/ and tools/.
FOREIGN = {
    *("--nproc-per-node", "--nnodes", "--shutdown-timeout", "--max-restarts"),  # torchrun
    *("--no-deps", "--extra-index-url", "--logdir", "--build-arg"),  # pip, tensorboard, docker
    *("--steps", "--ar-steps", "--count", "--train-pairs", "--timed", "--only", "--cards", "--keep"),
}
SUBCOMMANDS = {
    "train": ["small", "small-dadlm"],
    "evaluate": ["reconstruction", "perplexity", "generation", "judge", "summarisation", "latency"],
    "bench": ["decode", "train", "kernels"],
    "data": ["prepare", "verify", "tokenizer"],
    "edges": ["count"],
}


@pytest.fixture(scope="module")
def known() -> dict[tuple[str, ...], set[str]]:
    return {}


def options_of(cli: Cli, known: dict, *command: str) -> set[str]:
    """The options that a command's help lists."""
    if command not in known:
        result = cli(*command, "--help")
        assert not result.code, f"dadlm {' '.join(command)} --help: {result.err}"
        known[command] = set(docs_blocks.OPTION.findall(result.out)) | {"--help", "--plan", "--json"}
    return known[command]


def command_of(call: list[str]) -> list[str]:
    words = 2 if call and call[0] in SUBCOMMANDS else 1
    return [word for word in call[:words] if not word.startswith("-")]


def test_every_block_can_be_read() -> None:
    assert len(COMMANDS) > 50
    for block in BLOCKS:
        if block.language in docs_blocks.PYTHON:
            ast.parse(block.text)
        if not block.language:
            assert not docs_blocks.LOOKS_LIKE_SHELL.search(block.text), f"{block.place} needs a language"


def test_every_option_of_a_command_exists(cli: Cli, known: dict) -> None:
    wrong = []
    for block, call in CALLS:
        if command := command_of(call):
            given = {word.split("=")[0] for word in call if docs_blocks.OPTION.fullmatch(word.split("=")[0])}
            wrong += [f"{block.place}: {option}" for option in given - options_of(cli, known, *command)]
    assert not wrong, "\n".join(wrong)


def test_every_option_that_prose_names_exists(cli: Cli, known: dict) -> None:
    listed = re.findall(r"^  (\w+)  ", cli("--help").out, re.M)
    every = [[name, *rest] for name in listed for rest in ([sub] for sub in SUBCOMMANDS.get(name, []))]
    every += [[name] for name in listed if name not in SUBCOMMANDS]
    exist = set[str]().union(FOREIGN, *(options_of(cli, known, *command) for command in every))
    for page in (page for page in PAGES if page.name not in docs_blocks.NOT_RUN):
        unknown = docs_blocks.inline_options(page) - exist
        assert not unknown, f"{page.name} names {sorted(unknown)}"
