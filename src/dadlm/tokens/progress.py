"""The progress bar of tokenising. On standard error, so that standard output stays for machines."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn


class Meter:
    """Share of the source read, tokens so far, and MB of text a second; silent when `show` is false."""

    def __init__(self, name: str, total: int | None, show: bool):
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
        facts = TextColumn("{task.fields[tokens]:,} tokens, {task.fields[speed]:.1f} MB/s")
        self._bar = Progress(
            *columns, facts, TimeRemainingColumn(), console=Console(stderr=True), disable=not show
        )
        self._task = self._bar.add_task(f"tokenising {name}", total=total, tokens=0, speed=0.0)
        self._start = time.perf_counter()

    def update(self, read: int, tokens: int, text_bytes: int) -> None:
        speed = text_bytes / 1e6 / max(1e-9, time.perf_counter() - self._start)
        self._bar.update(self._task, completed=read, tokens=tokens, speed=speed)

    def __enter__(self) -> "Meter":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
