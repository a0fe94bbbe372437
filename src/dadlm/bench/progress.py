"""What a benchmark prints while it runs: a line for each thing measured."""

import sys
from collections.abc import Mapping
from typing import Any


def tell(row: Mapping[str, Any]) -> None:
    """The names of the numbers and the numbers; of words only the words."""
    words = (f"{key} {value:.4f}" if isinstance(value, float) else f"{value}" for key, value in row.items())
    print("  ".join(words), file=sys.stderr, flush=True)  # results go to standard output
