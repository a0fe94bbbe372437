"""Ctrl-C and SIGTERM ask training to stop after the current step, so that it can save first."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class StopFlag:
    """True once somebody asked to stop."""

    def __init__(self) -> None:
        self.asked = False

    def __bool__(self) -> bool:
        return self.asked


@contextmanager
def stop_on_signal(patient: bool = False) -> Iterator[StopFlag]:
    """Catch the two signals while the body runs; a second Ctrl-C interrupts at once.

    Not if `patient`: torchrun passes on the Ctrl-C that its processes have got already.
    """
    flag = StopFlag()
    if threading.current_thread() is not threading.main_thread():
        yield flag  # Python delivers signals to the main thread only
        return

    def ask(number: int, _frame: object) -> None:
        if flag.asked and number == signal.SIGINT and not patient:
            raise KeyboardInterrupt
        flag.asked = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
