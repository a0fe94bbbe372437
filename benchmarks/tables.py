"""Write the performance tables of README.md and docs/performance.md from the files in benchmarks/results.

python benchmarks/tables.py

A table stands between `<!-- bench:NAME -->` and `<!-- /bench -->`; what is between is replaced.
"""

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = [ROOT / "README.md", ROOT / "docs" / "performance.md"]
MARK = re.compile(r"(<!-- bench:(\w+) -->\n).*?(<!-- /bench -->)", re.S)


def read(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def table(head: list[str], rows: list[list[str]]) -> str:
    line = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, line, *rows)) + "\n"


def steps() -> str:
    """Milliseconds of a denoising step, a row per system, a column per batch."""
    result = read("decode-h200")
    batches = sorted({row["batch"] for row in result["steps"]}, reverse=True)
    found = {(row["system"], row["batch"]): row for row in result["steps"]}
    names = list(dict.fromkeys(row["system"] for row in result["steps"]))
    rows = [
        [
            name,
            *(f"{found[name, batch]['ms']:.2f}" for batch in batches),
            f"{found[name, batches[0]]['peak_mib']:,.0f}",
        ]
        for name in names
    ]
    head = [f"{result['device']}, {result['dtype']}, prefix {result['prefix']}"]
    head += [f"ms, batch {batch}" for batch in batches]
    return table([*head, f"peak MiB, batch {batches[0]}"], rows)


def texts() -> str:
    """Tokens per second of whole texts."""
    result = read("decode-h200")
    rows = [
        [
            f"{row['system']}, {row['decoding']}",
            str(row["batch"]),
            f"{row['tokens_per_forward']:.2f}",
            f"{row['seconds']:.2f}",
            f"{row['tokens_per_second']:,.0f}",
        ]
        for row in sorted(result["texts"], key=lambda row: row["batch"])
    ]
    return table(["960 tokens after 64", "batch", "TPF", "seconds", "tokens/s"], rows)


TABLES = {"steps": steps, "texts": texts}


def renewed(page: str) -> str:
    """A page with all its tables made anew."""
    return MARK.sub(lambda match: match[1] + TABLES[match[2]]() + match[3], page)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(renewed(page.read_text(encoding="utf-8")), encoding="utf-8")
