"""Prepares a text again and again and dies in the middle: run by test_resume.py, in a process of its own.

Children are forked, so that the package is imported once however often one of them is killed.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import psutil

from dadlm.tokens import Tokenizer, prepare

_OPERATIONS = ("open", "os.rename", "os.remove", "os.mkdir", "os.truncate")


def start(settings, before=lambda: None) -> int:
    """A child that prepares the text; its process id."""
    child = os.fork()
    if child:
        return child
    try:
        before()
        prepare(progress=False, **settings)
        os._exit(0)
    finally:
        os._exit(1)


def ended_by_kill(child: int) -> bool:
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), status
    return status == signal.SIGKILL


def kill_before_operation(number: int, folder: str):
    """Die right before the so-numbered operation on a file under `folder`."""
    count = 0

    def watch(event, args):
        nonlocal count
        if event in _OPERATIONS and str(args[0]).startswith(folder):
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)

    return lambda: sys.addaudithook(watch)


def every_operation(settings) -> dict:
    """One run from the start for each operation there is, killed before it, then one that goes on."""
    number, killed = 0, True
    while killed:
        number += 1
        base = Path(settings["folder"]) / str(number)
        here = settings | {"folder": str(base)}
        killed = ended_by_kill(start(here, kill_before_operation(number, str(base))))
        assert not ended_by_kill(start(here))
    return {"operations": number - 1}


def random_moments(settings, kills: int, seconds: float) -> dict:
    """Kill the run again and again, after up to `seconds` each time; a run that finished begins anew."""
    random.seed(0)
    done, orphans, folder, root = 0, 0, 0, Path(settings["folder"])
    while done < kills:
        here = settings | {"folder": str(root / str(folder))}
        child = start(here)
        time.sleep(random.uniform(0, seconds))
        helpers = psutil.Process(child).children(recursive=True)
        os.kill(child, signal.SIGKILL)
        if ended_by_kill(child):
            done += 1
        else:
            folder += 1
        orphans += len(psutil.wait_procs(helpers, timeout=60)[1])
    for n in range(folder + 1):
        assert not ended_by_kill(start(settings | {"folder": str(root / str(n))}))
    return {"kills": done, "orphans": orphans, "folders": folder + 1}


if __name__ == "__main__":
    what, settings, extra = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
    settings["tokenizer"] = Tokenizer.load(settings["tokenizer"])
    print(json.dumps({"every": every_operation, "random": random_moments}[what](settings, **extra)))
