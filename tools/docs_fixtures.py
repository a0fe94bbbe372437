"""The files that the docs' commands find in their scratch folder, and stand-ins for two that take too long.

python -m tools.docs_fixtures installed "pip install …"    # whether it has been done
python -m tools.docs_fixtures tour …                       # `dadlm tour` with ten steps for each stage
"""

import json
import re
import shlex
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LINKED = ("benchmarks", "examples", "research", "tools", "tests", "docs")
RECORDS = ("wiki.jsonl", "news.jsonl", "books/book.jsonl")
COMPRESSED = ("news.jsonl.zst", "validation.jsonl.zst")
PAIRS = ("train.jsonl", "val.jsonl", "test.jsonl", "more.jsonl", "FILE")
TEXTS = ("valid.txt", "article.txt")


def furnish(scratch: Path) -> None:
    """Small texts, pairs and models under the names that the docs use."""
    import zstandard

    (scratch / "books").mkdir(parents=True, exist_ok=True)
    for name in LINKED:
        if not (scratch / name).exists():
            (scratch / name).symlink_to(ROOT / name)
    documents = [text[:4000] for _, text in sorted(topics.items())]
    records = "".join(json.dumps({"text": text}) + "\n" for text in documents)
    pairs = "".join(
        json.dumps({"document": text[200:1200], "summary": text[:100]}) + "\n" for text in documents[:16]
    )
    for name in RECORDS:
        (scratch / name).write_text(records, encoding="utf-8")
    for name in COMPRESSED:
        (scratch / name).write_bytes(zstandard.compress(records.encode()))
    for name in PAIRS:
        (scratch / name).write_text(pairs, encoding="utf-8")
    for name in TEXTS:
        (scratch / name).write_text("\n\n".join(documents[:40]), encoding="utf-8")
    real = [" ".join(text.split()[:200]) for text in documents]  # the shortest that pairs are planted in
    lines = "".join(json.dumps({"text": text}) + "\n" for text in real)
    (scratch / "real.jsonl").write_text(lines, encoding="utf-8")
    (scratch / "prompts.txt").write_text("The city\nThe river\n", encoding="utf-8")
    _models(scratch)


def _models(scratch: Path) -> None:
    """Random models: one that writes in blocks and token by token, and folders as others publish theirs."""
    import dadlm
    from dadlm.interop.convert import convert

    tokenizer = dadlm.load("bd3lm").tokenizer
    shape: dict[str, Any] = {"vocab_size": 8193, "eot_id": 0, "context": 256, "layers": 1, "width": 32}
    shape |= {"block_size": 16, "heads": 2}
    config = dadlm.ModelConfig(family="bd3lm", **shape, causal_context=True)
    for folder in ("FOLDER", "runs/mine", "runs/finetuned"):
        if not (scratch / folder).exists():
            dadlm.save(dadlm.Model(config, tokenizer), scratch / folder)
    if not (scratch / "runs/mine/best").exists():
        (scratch / "runs/mine/best").symlink_to(".")
    for family in ("bd3lm", "mdlm"):
        if not (scratch / f"{family.upper()}-FOLDER").exists():
            theirs = dadlm.ModelConfig(family=family, **shape, architecture="bd3lm", tie_embedding=False)
            dadlm.save(dadlm.Model(theirs, tokenizer), scratch / f".{family}")
            convert(scratch / f".{family}", scratch / f"{family.upper()}-FOLDER", to=family)


def installed(command: str) -> None:
    """Fails unless every package and extra that a `pip install` names is there."""
    words = [word for word in shlex.split(command, comments=True) if not word.startswith("-")]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for word in words:
        if word in ("pip", "install", "&&"):
            continue
        name, chosen = re.fullmatch(r"([\w.-]*)(?:\[([\w,-]+)\])?.*", word).groups()  # type: ignore
        if name in (".", "dadlm"):
            wanted = [need for extra in (chosen or "").split(",") if extra for need in extras[extra]]
        else:
            wanted = [name]
        for need in wanted:
            if "platform_system" not in need:
                metadata.version(re.match(r"[\w.-]+", need).group())  # type: ignore


def short_tour(words: list[str]) -> None:
    from dadlm.cli import main
    from dadlm.tour import run

    whole = run.recipe

    def short(name: str, **changes: Any) -> Any:
        made = whole(name, **changes)
        return replace(made, train=replace(made.train, warmup=1, decay=0))

    run.recipe, run.COMMON_STEPS, run.SIDE_BY_SIDE_STEPS = short, 10, 10
    sys.exit(main(["tour", *words]))


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def until_ready(server: subprocess.Popen, port: int, seconds: float) -> bool:
    """Whether a server accepts requests before it ends or time is up."""
    end = time.monotonic() + seconds
    while server.poll() is None and time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    return False


if __name__ == "__main__":
    if sys.argv[1] == "installed":
        installed(sys.argv[2])
    else:
        short_tour(sys.argv[2:])
