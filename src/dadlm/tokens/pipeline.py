"""Checks that a tokenizer.json has nothing by which a short text could take hours or all memory.

Everything in the tokenizers of GPT-2, BERT, Llama, SmolLM2 and ours is allowed. Refused are steps by which
texts grow and grow, regular expressions that backtrack without end, and tables that cannot be inspected.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tokenizers

from dadlm.errors import DataError

_MOST_PARTS, _MOST_GROWTH, _LONGEST_WORD = 32, 16, 1000
_LISTS = ("normalizers", "pretokenizers", "decoders", "processors")
# A repeated group; escaped brackets and those of a character class do not count.
_REPEATED_GROUP = re.compile(r"(?:\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[^\\\[)]|\)(?![*+{]))*\)[*+{]", re.DOTALL)


def check_pipeline(inner: tokenizers.Tokenizer) -> None:
    """Refuse a tokenizer that could harm whoever encodes or decodes with it."""
    longest = getattr(inner.model, "max_input_chars_per_word", 0)
    if longest > _LONGEST_WORD:
        raise DataError(
            f"the tokenizer takes words of {longest} characters apart; at most {_LONGEST_WORD} are allowed"
        )
    for name in ("normalizer", "pre_tokenizer", "decoder", "post_processor"):
        part = getattr(inner, name)
        steps = [] if part is None else list(_steps(json.loads(part.__getstate__())))
        growth = 1.0
        for step in steps:
            if step["type"] == "Precompiled":
                raise DataError(f"the tokenizer's {name} has a precompiled table, which is not supported")
            _check_pattern(step, name)
            growth *= _growth(step)
        if growth > _MOST_GROWTH or len(steps) > _MOST_PARTS:
            raise DataError(
                f"the tokenizer's {name} has {len(steps)} steps and makes a text {growth:.3g} times as long; "
                f"at most {_MOST_PARTS} and {_MOST_GROWTH} are allowed"
            )


def _steps(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The steps of a part in order, those of a sequence one by one."""
    if part["type"] != "Sequence":
        yield part
    for name in _LISTS:
        for inner in part.get(name, ()):
            yield from _steps(inner)


def _check_pattern(step: dict[str, Any], name: str) -> None:
    pattern = step.get("pattern")
    if not isinstance(pattern, dict):
        return
    if pattern.get("String") == "":
        raise DataError(f"the tokenizer's {name} looks for an empty text")
    expression = pattern.get("Regex", "")
    hidden = re.search(r"\\g<|\(\?[a-z]*x", expression)  # calls of groups, and ignored whitespace
    if expression and (step["type"] == "Replace" or hidden or _REPEATED_GROUP.match(expression)):
        raise DataError(
            f"the tokenizer's {name} has a regular expression that may take for ever or make a text grow: "
            f"{expression[:80]!r}"
        )


def _growth(step: dict[str, Any]) -> float:
    """How many times as long a text may become."""
    if step["type"] == "Replace":
        return max(1.0, len(step["content"].encode()) / len(step["pattern"]["String"].encode()))
    if step["type"] == "Prepend":
        return max(1.0, len(step["prepend"].encode()))  # of a text of one byte
    if step["type"] == "TemplateProcessing":
        return max(1.0, sum("Sequence" in piece for piece in step["single"]))
    return 1.0


@contextmanager
def without_panic() -> Iterator[None]:
    """The library panics where an expression takes too long. That is no `Exception`, and would pass every
    handler on its way."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise RuntimeError(str(error).split("\n")[0]) from error
