"""Running a command of the command line inside a test, and what came of it."""

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple


class Result(NamedTuple):
    code: object
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Exactly one JSON object, strict JSON, and nothing else on standard output."""
        assert self.out.count("\n") == 1 and self.out.endswith("\n"), f"not one line: {self.out!r}"

        def refuse(name: str) -> None:
            raise AssertionError(f"{name} is not JSON")

        return json.loads(self.out, parse_constant=refuse)


Cli = Callable[..., Result]


def refused(result: Result, *told: str) -> None:
    """Code 2, a message that says all of this, no traceback, nothing on standard output."""
    assert result.code == 2, result
    said = " ".join(result.err.split())
    assert "Traceback" not in said and "Error:" not in said
    for words in told:
        assert re.search(words, said), f"{words!r} is not in {said!r}"
    assert "{" not in result.out
