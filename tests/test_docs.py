"""The documents: every block can be read, every command and option in them exists, and the site builds."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.commands import Cli

import dadlm.evaluate
from tools import docs_blocks, docs_figure, docs_fixtures, docs_test

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
    "evaluate": [
        "reconstruction",
        "perplexity",
        "generation",
        "judge",
        "summarisation",
        "latency",
        "acceptance",
    ],
    "bench": ["decode", "train", "kernels", "lossless"],
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


def test_no_command_hides_in_an_indented_block() -> None:
    for page in (page for page in PAGES if page.name not in docs_blocks.NOT_RUN):
        prose = docs_blocks.FENCE.sub("", page.read_text(encoding="utf-8"))
        hidden = [line for line in prose.splitlines() if docs_blocks.LOOKS_LIKE_SHELL.match(line[4:])]
        assert not [line for line in hidden if line.startswith("    ")], f"{page.name} needs a fenced block"


def test_every_option_of_a_command_exists(cli: Cli, known: dict) -> None:
    wrong = []
    for block, call in CALLS:
        if command := command_of(call):
            given = {word.split("=")[0] for word in call if docs_blocks.OPTION.fullmatch(word.split("=")[0])}
            wrong += [f"{block.place}: {option}" for option in given - options_of(cli, known, *command)]
    assert not wrong, "\n".join(wrong)


def test_every_option_that_prose_names_exists(cli: Cli, known: dict) -> None:
    listed = re.findall(r"^  ([\w-]+)  ", cli("--help").out, re.M)
    every = [[name, *rest] for name in listed for rest in ([sub] for sub in SUBCOMMANDS.get(name, []))]
    every += [[name] for name in listed if name not in SUBCOMMANDS]
    exist = set[str]().union(FOREIGN, *(options_of(cli, known, *command) for command in every))
    for page in (page for page in PAGES if page.name not in docs_blocks.NOT_RUN):
        unknown = docs_blocks.inline_options(page) - exist
        assert not unknown, f"{page.name} names {sorted(unknown)}"


def test_blocks_are_cut_into_commands_and_skipped_for_a_reason(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- docs-test: skip (no GPU) -->\n```sh\ndadlm x\n```\n\n"
        "```sh\n# nothing\nfor i in 1 2; do\n  echo $i\ndone\ncat <<END\nx\nEND\ndadlm a \\\n  --b\n```\n"
    )
    first, second = docs_blocks.blocks(page)
    assert (first.skip, second.skip) == ("no GPU", None)
    loop, here, long = docs_blocks.commands(second)
    assert loop.endswith("done") and here.endswith("END")
    command = f"A=1 {long} | cat; torchrun -m dadlm.cli train x && docker run dadlm"
    assert list(docs_blocks.calls(command)) == [["a", "--b"], ["train", "x"]]


def test_a_failure_is_told_and_the_others_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs_blocks, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("```sh\nexport A=3\nexit $A\necho ok\n```\n```python\nassert 1 == 1\n```\n")
    results = list(docs_test.Runner(tmp_path).page(page))
    assert [done.failure[:6] for done in results] == ["", "code 3", "", ""]


@pytest.mark.parametrize(
    ("command", "short"),
    [
        ("dadlm train small-dadlm --data.train x", "dadlm train small-dadlm --train.steps 2 "),
        ("dadlm train small --data.train x", "dadlm train small --length 0.005 "),
        ("dadlm evaluate generation --samples 200", "dadlm evaluate generation --samples 12 "),
        ("make demo   # first", "make $DRY -C $ROOT demo && if "),
        ("make test", "make -n -C $ROOT test"),
        ("dadlm bench lossless --model ar", "dadlm bench lossless --tokens 16 "),
        ("pip install -e '.[eval]'", "python -m tools.docs_fixtures installed "),
    ],
)
def test_long_commands_are_shortened(command: str, short: str) -> None:
    assert docs_test.shortened(command).startswith(short)


def test_what_pip_was_to_install_is_looked_for() -> None:
    docs_fixtures.installed("pip install -e '.[train,dev]' && pip install --no-deps torch")
    with pytest.raises(Exception, match="no-such-package"):
        docs_fixtures.installed("pip install no-such-package")
    with pytest.raises(KeyError, match="no-such-extra"):
        docs_fixtures.installed("pip install 'dadlm[no-such-extra]'")


def test_the_site_builds_without_a_warning_and_asks_nothing_of_the_network(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    pytest.importorskip("latex2mathml")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(words, cwd=docs_blocks.ROOT, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    fetched = re.compile(r"""<(?:script|link|img|iframe)[^>]+(?:src|href)=["']?https?://|url\(["']?https?:""")
    files = [path for path in tmp_path.rglob("*") if path.suffix in (".html", ".css")]
    assert len(files) > 20
    assert not [path for path in files if fetched.search(path.read_text(encoding="utf-8"))]
    assert "<math" in (tmp_path / "maths.html").read_text(encoding="utf-8")
    api = (tmp_path / "api.html").read_text(encoding="utf-8")
    public = {*dadlm.__all__, *dadlm.decode.__all__, *dadlm.evaluate.__all__} - {"dag", "evaluate"}
    missing = [name for name in public if not re.search(rf'<h[34] id="dadlm[\w.]*\.{name}"', api)]
    assert not missing, f"docs/api.md leaves out {missing}"


def test_the_figure_is_the_template_with_real_steps() -> None:
    figure = docs_blocks.ROOT / "docs" / "pictures" / "steps.html"
    content = figure.read_text(encoding="utf-8")
    template = Path(docs_figure.__file__).with_suffix(".html").read_text(encoding="utf-8")
    before, after = template.split(docs_figure.PLACE)
    assert content.startswith(before) and content.endswith(after), "run python -m tools.docs_figure"
    assert len(content.encode()) <= 200_000 and "http://" not in content.replace("http://www.w3.org", "")
