"""The log of a run: a progress bar, metrics.jsonl and TensorBoard."""

import json
import os
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_LINE_EVERY = 60.0  # seconds


class Log:
    """Opened once per run. A resumed run first drops the entries after its checkpoint, or all if nothing was
    saved. Of several processes only the first logs; the others have `writes` False."""

    def __init__(
        self, out: Path, name: str, total: int, done: int, quiet: bool, *, writes: bool = True
    ) -> None:
        self._file, self._board, quiet = None, None, quiet or not writes
        if writes:
            out.mkdir(parents=True, exist_ok=True)
            self._file = out / "metrics.jsonl"
            _drop_later(self._file, done)
            self._board = _tensorboard(out / "tensorboard", done)
        self.console, self._last_line = Console(quiet=quiet), time.monotonic()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        columns += (TextColumn("{task.fields[shown]}"), TimeRemainingColumn())
        self._progress = Progress(*columns, console=self.console, disable=quiet)
        self._task = self._progress.add_task(name, total=total, completed=done, shown="")

    def __enter__(self) -> "Log":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
        if self._board is not None:
            self._board.close()

    def message(self, text: str) -> None:
        self.console.print(text, markup=False)  # a folder's name may look like markup

    def step(self, step: int, values: dict[str, float] | None) -> None:
        """One training step is done; `values` only every so often."""
        self._progress.update(self._task, completed=step)
        if values is not None:
            shown = f"loss {values['loss']:.3f}  {values['tokens_per_second']:,.0f} tok/s"
            self._progress.update(self._task, shown=shown)
            now = time.monotonic()
            if not self.console.is_terminal and now - self._last_line >= _LINE_EVERY:  # in place of a bar
                self.console.print(f"step {step:>6}  {shown}")
                self._last_line = now
            self._write(step, values)

    def validation(self, step: int, values: dict[str, float]) -> None:
        """One validation is done."""
        text = "  ".join(f"{name.removeprefix('valid_')} {value:.4f}" for name, value in values.items())
        self.console.print(f"step {step:>6}  validation: {text}")
        self._write(step, values)

    def _write(self, step: int, values: dict[str, float]) -> None:
        if self._file is not None:
            with open(self._file, "a", encoding="utf-8") as handle:
                handle.write(json.dumps({"step": step, **values}) + "\n")
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(name, value, step)


def _drop_later(file: Path, done: int) -> None:
    if file.exists():
        lines = file.read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if done and _step_of(line) <= done]
        if kept != lines:  # written to another file first: on a full disk the old log must survive
            temporary = file.with_name(".metrics-new")
            temporary.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
            os.replace(temporary, file)


def _step_of(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except ValueError:  # a line truncated by a crash
        return float("inf")


def _tensorboard(folder: Path, done: int):
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:  # comes with the extra `train`; metrics.jsonl holds the same numbers
        return None
    # A killed run logged further than it saved; the entry of step 0 is made anew where nothing was saved.
    return SummaryWriter(str(folder), purge_step=done + 1 if done else 0)
