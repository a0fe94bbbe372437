"""The project as a whole: exports, docstrings, pins, README, and no trace of the machine it was made on."""

import ast
import importlib.resources
import itertools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import dadlm
from tools import tables

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "dadlm"
MODULES = sorted(PACKAGE.rglob("*.py"))
WRITTEN = ("demo", "runs", "evaluation", "report", "carry", "build", "dist", "site")
GENERATED = {ROOT / name for name in WRITTEN}
TEXT = {"", ".css", ".html", ".js", ".json", ".md", ".py", ".sh", ".svg", ".toml", ".txt", ".yaml", ".yml"}
PERSONAL_PATH = re.compile(r"(?<![\w.~:/-])(?:/(?:home|root|Users|mnt|work|workspace)/|[A-Z]:\\Users\\)\w")


def texts(folder: Path = ROOT) -> Iterator[Path]:
    """The text files that are ours: no environment, no cache, nothing that the program writes."""
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            hidden = path.name.startswith(".") and path.name != ".ci"
            if not hidden and path not in GENERATED and not (path / "pyvenv.cfg").exists():
                yield from texts(path)
        elif path.suffix in TEXT and path.name != ".git":  # a file in a worktree
            yield path


def canonical(requirement: str) -> str:
    """The project name of a requirement, spelled as an index spells it."""
    name = re.match(r"[\w.-]+", requirement)
    assert name, f"no project name in {requirement!r}"
    return re.sub(r"[-_.]+", "-", name.group()).lower()


@pytest.fixture(scope="module")
def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return {canonical(line): line for line in lines if line and not line.startswith("#")}


def test_every_export_exists() -> None:
    assert len(dadlm.__all__) == len(set(dadlm.__all__))
    missing = [name for name in dadlm.__all__ if not hasattr(dadlm, name)]
    assert not missing, f"in __all__ but not in the package: {missing}"


def test_package_is_typed_and_every_module_opens_with_a_docstring() -> None:
    assert importlib.resources.files("dadlm").joinpath("py.typed").is_file()
    parsed = {path: ast.parse(path.read_text(encoding="utf-8")) for path in MODULES}
    assert not [path for path, tree in parsed.items() if not ast.get_docstring(tree)]


def test_no_file_names_a_folder_of_someones_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
        for path in texts()
        for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), start=1)
        if PERSONAL_PATH.search(line)
    ]
    assert not found, "\n".join(found)


def test_pins_are_exact_and_leave_torch_alone(pins: dict[str, str]) -> None:
    assert not [line for line in pins.values() if not re.fullmatch(r"[\w.-]+==[\w.]+", line)]
    assert not [name for name in pins if re.match(r"(torch|triton|nvidia|cuda|setuptools|pip)\b", name)]


def test_every_direct_dependency_is_pinned(pins: dict[str, str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = itertools.chain(project["dependencies"], *project["optional-dependencies"].values())
    assert {canonical(need) for need in needed} - {"torch", "triton"} <= pins.keys()


def test_the_architecture_names_every_folder_of_the_package() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    folders = [path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"]
    assert not [name for name in folders if f"{name}/" not in page]


def test_the_readme_is_short_and_names_the_paper_with_its_authors() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.count("\n") <= 130
    for name in ("Pengyu Ji", "Zichen Zhang", "Xiang Hu", "Kewei Tu", "@misc", "docs/pictures/tour.svg"):
        assert name in readme
    assert (ROOT / "docs" / "pictures" / "tour.svg").stat().st_size < 300_000


def test_performance_tables_are_those_of_the_result_files() -> None:
    for page in tables.PAGES:
        content = page.read_text(encoding="utf-8")
        assert tables.MARK.search(content), f"{page} has no table"
        assert tables.renewed(content) == content, "run python -m tools.tables"


def test_the_library_imports_nothing_from_beside_it() -> None:
    outside = re.compile(r"^\s*(?:from|import) (?:research|tools|benchmarks|tests)\b", re.M)
    assert not [path for path in MODULES if outside.search(path.read_text(encoding="utf-8"))]


def test_every_script_that_documents_name_exists() -> None:
    """But for the log of experiments, which names what was there at its time."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *ROOT.glob("[a-z]*/README.md")]
    for page in (page for page in pages if page.name != "experiments.md"):
        content = page.read_text(encoding="utf-8")
        for module in re.findall(r"python -m ((?:research|tools)\.\w+)", content):
            assert (ROOT / f"{module.replace('.', '/')}.py").is_file(), f"{page.name} names {module}"
        for path in re.findall(r"\b(?:benchmarks|research|tools|examples)/[\w/-]+\.\w+", content):
            assert (ROOT / path).is_file(), f"{page.name} names {path}"
