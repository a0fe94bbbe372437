"""Run every command of README.md and the docs in order: make docs-test.

    python -m tools.docs_test [--only PAGE ...] [--keep FOLDER]

Each page runs in a scratch folder with small texts under the names that the docs use. Long commands are
shortened by RULES; what cannot run is skipped, and the reason printed. None may fail.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from tools.docs_blocks import PYTHON, ROOT, SHELL, Block, blocks, commands, pages
from tools.docs_fixtures import free_port, furnish, until_ready

LIMIT = 600  # seconds for a command
PORT = "127.0.0.1:8000"

# Patterns and their replacements here; all that match are applied, in this order.
ONE_STEP = "--train.steps 2 --train.warmup 1 --train.batch-size 2 --train.valid-rows 2"
FEW_TEXTS = "--samples 12 --new-tokens 8 --configurations T=2 --embedder minilm --judge-lm none"
DEMO_FILES = 'if [ "$DRY" ]; then dadlm demo; else cp -r $ROOT/demo .; fi'
RULES = [
    (r"\.venv/bin/", ""),  # the environment that runs this
    (r"^pip install .*", lambda found: f"python -m tools.docs_fixtures installed {quote(found[0])}"),
    # -n unless the environment is that of this clone; what the demo writes is used by later commands
    (r"^make demo(?= *(?:#|$))", f"make $DRY -C $ROOT demo && {DEMO_FILES}"),
    (r"^make (?!\$DRY)", "make -n -C $ROOT "),
    (r"\bdadlm tour\b", "python -m tools.docs_fixtures tour"),  # ten steps of each stage
    (r"\bdadlm train (small|lab|paper)(?= |$)", r"dadlm train \1 --length 0.005 --batch-size 2"),
    (r"\bdadlm train ((?:small|lab|paper|lm1b)-[\w-]+)", rf"dadlm train \1 {ONE_STEP}"),
    (
        r"\bdadlm finetune",
        f"dadlm finetune {ONE_STEP} --train.decay 1 --train.valid-every 2 --rouge-pairs 2 "
        "--document-tokens 48 --summary-tokens 16",
    ),
    (r"\bdadlm generate(?!.*--max-new-tokens)", "dadlm generate --max-new-tokens 16"),
    (r"\bdadlm chat", "dadlm chat --max-new-tokens 16"),
    (r"--max-new-tokens \d+", "--max-new-tokens 16"),
    (r"\bdadlm evaluate (reconstruction|perplexity)", r"dadlm evaluate \1 --count 4"),
    (r"(dadlm evaluate generation.*)--samples \d+", r"\1"),
    (r"--configurations(?: [^-\s]\S*)+", ""),
    (r"\bdadlm evaluate generation", f"dadlm evaluate generation {FEW_TEXTS}"),
    (
        r"\bdadlm evaluate latency",
        "dadlm evaluate latency --steps 2 --warmup 1 --batch-size 1 --prompt-tokens 8 --new-tokens 8",
    ),
    (r"\bdadlm evaluate summarisation", "dadlm evaluate summarisation --pairs 2"),
    (r"(dadlm evaluate judge.*)--planted (\S+)", r"\1--planted \2 --planted-count 2"),
    (r"\bdadlm evaluate acceptance", "dadlm evaluate acceptance --samples 2 --new-tokens 16"),
    (r"\bdadlm bench lossless", "dadlm bench lossless --tokens 16 --trees 16"),
    (r"\bdadlm edges count", "dadlm edges count --tokens 20000 --rank 4 --steps 2"),
    (r"\bdadlm bench decode", "dadlm bench decode --scale tour --batches 1 --no-texts"),
    (r"--workers \d+", "--workers 2"),
]


class Done(NamedTuple):
    """What came of a command."""

    place: str
    command: str
    ran: str
    seconds: float
    failure: str = ""
    skipped: str = ""


def shortened(command: str) -> str:
    for pattern, replacement in RULES:
        command = re.sub(pattern, replacement, command, flags=re.S)
    return command


class Runner:
    """Runs code in a scratch folder. A server is started for pages that talk to one."""

    def __init__(self, scratch: Path) -> None:
        self.scratch, self.port = scratch, free_port()
        self.server: subprocess.Popen | None = None
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        python = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        settings = {"PATH": path, "PYTHONPATH": python, "ROOT": str(ROOT), "HF_HUB_OFFLINE": "1"}
        settings["DRY"] = "" if Path(sys.prefix).resolve() == ROOT / ".venv" else "-n"
        self.environment = os.environ | {"OMP_NUM_THREADS": "1"} | settings

    def page(self, page: Path) -> Iterator[Done]:
        try:
            for block in blocks(page):
                yield from self.block(block)
        finally:
            self.stop_server()

    def block(self, block: Block) -> Iterator[Done]:
        if block.language not in PYTHON + SHELL:
            return
        exported = ""
        for command in [block.text] if block.language in PYTHON else commands(block):
            if block.skip:
                yield Done(block.place, command, "", 0, skipped=block.skip)
                continue
            yield self.run(block, command, exported)
            exported += f"{command}\n" if command.startswith("export ") else ""

    def run(self, block: Block, command: str, exported: str) -> Done:
        is_python = block.language in PYTHON
        text = (command if is_python else shortened(command)).replace(PORT, f"127.0.0.1:{self.port}")
        start = time.monotonic()
        if not is_python and re.match(r"dadlm serve\b", text):
            failure = self.serve_and_stop(text)
        else:
            if str(self.port) in text:
                self.start_server()
            failure = self.execute(["python", "-c", text] if is_python else bash(exported + text))
        return Done(block.place, command, text, time.monotonic() - start, failure)

    def execute(self, words: list[str]) -> str:
        """Run it; what it printed last, if it failed."""
        try:
            done = subprocess.run(
                words,
                cwd=self.scratch,
                env=self.environment,
                input="The city\n",
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=LIMIT,
            )
        except subprocess.TimeoutExpired:
            return f"took more than {LIMIT} s"
        return f"code {done.returncode}: {done.stdout[-1500:]}" if done.returncode else ""

    def serve_and_stop(self, command: str) -> str:
        self.stop_server()
        try:
            self.start_server(command)
        except RuntimeError as error:
            return str(error)
        code = self.stop_server()
        return f"ended with code {code} after SIGTERM" if code else ""

    def start_server(self, command: str = "dadlm serve") -> None:
        if self.server is None:
            words = bash(f"exec {command.split('#')[0].strip()} --port {self.port}")
            log = self.scratch / "server.log"
            with log.open("w") as out:
                self.server = subprocess.Popen(
                    words, cwd=self.scratch, env=self.environment, stdout=out, stderr=out
                )
            if not until_ready(self.server, self.port, LIMIT):
                self.stop_server()
                raise RuntimeError(f"the server did not start: {log.read_text()[-1500:]}")

    def stop_server(self) -> int:
        server, self.server = self.server, None
        if server is None:
            return 0
        server.send_signal(signal.SIGTERM)
        return server.wait(60)


def bash(text: str) -> list[str]:
    return ["bash", "-eo", "pipefail", "-c", text]


def show(done: Done) -> None:
    first = done.command.splitlines()[0]
    more = " …" if "\n" in done.command else ""
    result = f"skip: {done.skipped}" if done.skipped else "FAILED" if done.failure else "ok"
    print(f"{done.place:28} {done.seconds:7.1f} s  {result:8} {first[:110]}{more}", flush=True)
    if done.failure:
        print(f"    ran: {done.ran}\n    {done.failure}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="*", default=[], metavar="PAGE", help="file names, such as decode.md")
    parser.add_argument("--keep", type=Path, help="a new folder to work in; default: a temporary one")
    options = parser.parse_args()
    chosen = [page for page in pages() if not options.only or page.name in options.only]
    with tempfile.TemporaryDirectory(prefix="dadlm-docs-") as temporary:
        scratch, results = options.keep or Path(temporary), []
        furnish(scratch / "fixtures")
        for number, page in enumerate(chosen):
            folder = scratch / f"{number:02}-{page.stem}"
            shutil.copytree(scratch / "fixtures", folder, symlinks=True)
            for done in Runner(folder).page(page):
                show(done)
                results.append(done)
    failed = [done for done in results if done.failure]
    skipped = sum(bool(done.skipped) for done in results)
    ran = len(results) - skipped
    print(f"{ran} run, {len(failed)} failed, {skipped} skipped; {sum(d.seconds for d in results):.0f} s")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
