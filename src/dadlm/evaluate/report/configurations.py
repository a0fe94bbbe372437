"""Decoding configurations: how they are written, and the paper's numbers for them."""

import re
from collections.abc import Mapping
from typing import Any

from dadlm.evaluate import paper
from dadlm.evaluate.subject import NAMES

Key = tuple[str, paper.Infill]
"""Denoising ("FH", "T=16", "conf 0.9", "AR") and infilling."""


def key_of(row: Mapping[str, Any]) -> Key:
    """The configuration of a row: by its label, which also tells what is not in the other two."""
    if row.get("configuration"):
        return read_key(row["configuration"])
    infill = row["infill"]
    return row["denoising"], (int(infill[0]), float(infill[1])) if infill else None


def read_key(label: str) -> Key:
    """`T=8 infill 2 0.5`. Whatever else a label says stays in it: then the paper has no such row."""
    match = re.fullmatch(r"(.*\S) infill (\d+) ([\d.]+)", label)
    return (match[1], (int(match[2]), float(match[3]))) if match else (label, None)


def rank_key(key: Key) -> tuple[Any, ...]:
    """The paper's order: first-hitting, then from many steps to few; short gaps first."""
    denoising, infill = key
    steps = re.fullmatch(r"T=(\d+)", denoising)
    order = (0, 0) if denoising == "FH" else (1, -int(steps[1])) if steps else (2, 0)
    return *order, denoising, infill is not None, *((infill[0], -infill[1]) if infill else ())


def write_key(key: Key) -> str:
    """As in the paper's appendix, where r is left out if it is 0."""
    denoising, infill = key
    if infill is None:
        return denoising
    k, r = infill
    return f"{denoising}, k={k}" + (f", r={r:g}" if r else "")


def paper_row(block_size: int | None, key: Key) -> paper.Generation | None:
    rows = paper.GENERATION.get(block_size or 0, ())
    return next((row for row in rows if (row.denoising, row.infill) == key), None)


def paper_name(family: str, name: str) -> str:
    """Which of the paper's models one stands beside: one called 300K beside BD3LM of twice the training."""
    return "BD3LM-300K" if family == "bd3lm" and "300k" in name.lower() else NAMES[family]


def paper_mauve(family: str, name: str, block_size: int | None, key: Key) -> float | None:
    row = paper_row(block_size, key)
    if row is None or family not in ("bd3lm", "dadlm"):
        return None
    if block_size == 16 and paper_name(family, name) == "BD3LM-300K":
        return paper.BD3LM_300K_MAUVE[paper.GENERATION[16].index(row)]
    return row.bd3lm_mauve if family == "bd3lm" else row.dadlm_mauve


def paper_tpf(family: str, block_size: int | None, key: Key) -> float | None:
    row = paper_row(block_size, key)
    if row is None or family not in ("bd3lm", "dadlm"):
        return None
    return row.bd3lm_tpf if family == "bd3lm" else row.dadlm_tpf
