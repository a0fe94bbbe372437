"""What needs a GPU, in one command: the tests marked `gpu`, then the benchmarks of docs/performance.md.

    python -m tools.gpu results
    python -m tools.gpu results --only tests steps --limit 300

Each part writes NAME.log and, if it measures, NAME.json into the folder; a table of how they went comes last.
A part that fails or takes longer than its limit does not stop the others. Needs nothing installed but torch,
triton and what the parts import (pytest for the tests, tyro and rich for the commands).
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
DADLM = ["-m", "dadlm.cli", "bench"]
LOSSLESS = [*DADLM, "lossless", "--trees", "0", "8", "16", "64", "--draft"]
PARTS: dict[str, list[str]] = {
    "tests": [
        "-m",
        "pytest",
        "-q",
        "-m",
        "gpu",
        "--durations",
        "10",
        "tests/gpu",
        "tests/serve/test_batch_gpu.py",
    ],
    "steps": [*DADLM, "decode", "--block-sizes", "16", "--no-texts"],
    "lab": [*DADLM, "decode", "--scale", "lab", "--block-sizes", "16", "--no-texts"],
    "passes": ["benchmarks/passes.py"],
    "lossless": [*LOSSLESS, "bd3lm-edges"],
    "texts": [*DADLM, "decode", "--block-sizes", "16", "--batches", "32", "1"],
    "training": [*DADLM, "train"],
}
"""In the order of what is missed most if the time ends: arguments of Python."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that a part may take")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rows = [(name, *run(name, options.out, options.limit)) for name in options.only]
    for name, ended, seconds, last in rows:
        print(f"{name:10} {ended:>8} {seconds:7.1f} s  {last}")
    return int(any(ended != "ok" for _, ended, _, _ in rows))


def run(name: str, out: Path, limit: float) -> tuple[str, float, str]:
    """How a part ended, its seconds, and the last line that it wrote."""
    log, words = out / f"{name}.log", list(PARTS[name])
    if name != "tests":
        words += ["--out", str((out / f"{name}.json").resolve())]
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    start = time.perf_counter()
    with log.open("w") as file:
        try:
            code = subprocess.run(
                [sys.executable, *words],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=limit,
            ).returncode
        except subprocess.TimeoutExpired:
            code = None
    ended = {0: "ok", None: "too long"}.get(code, f"exit {code}")
    lines = log.read_text(errors="replace").split("\n")
    return ended, time.perf_counter() - start, next((line for line in reversed(lines) if line.strip()), "")


if __name__ == "__main__":
    sys.exit(main())
