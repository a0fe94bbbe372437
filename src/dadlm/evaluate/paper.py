"""The numbers of the paper's tables (paper.json), as printed there, and what the paper measured on.

"DA-DLM: Explicitly Modeling Token Dependencies in Diffusion Language Models". Models of 12 layers and width
768 (about 170M parameters), block sizes 16, 8 and 4, four candidates per group.
"""

import json
from pathlib import Path
from typing import NamedTuple

# What the paper measured on, for the lines that say how ours differs.
PARAMETERS = 170e6
CANDIDATES, EXPAND_AT = 4, 0
CONTEXT = {"OpenWebText": 1024, "LM1B": 128}
PROMPT_TOKENS, NEW_TOKENS, SAMPLES = 64, 960, 5000
EMBEDDER = "GPT-2 Large"
JUDGE = "DeepSeek-V4-Flash"
SUMMARY_BLOCK_SIZE, DOCUMENT_TOKENS, SUMMARY_TOKENS, SUMMARY_INFILL = 16, 768, 256, (2, 0.5)
DEVICE, BATCH_SIZE, WARMUP, STEPS = "NVIDIA A800", 32, 10, 10

Infill = tuple[int, float] | None
"""Gap length k and context ratio r; the paper's tables leave out r where it is 0."""

_TABLES = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))

RECONSTRUCTION: dict[tuple[str, int | None], dict[str, float]] = {
    (family, size): {"LM1B": lm1b, "OpenWebText": openwebtext}
    for family, size, lm1b, openwebtext in _TABLES["reconstruction"]
}
"""Table 1: conditional block reconstruction, nats per token, by family and block size."""


class Generation(NamedTuple):
    """One decoding configuration: tables of MAUVE and adjusted TPF, and tables of the judge."""

    denoising: str
    infill: Infill
    bd3lm_tpf: float
    dadlm_tpf: float
    bd3lm_mauve: float
    dadlm_mauve: float
    win_rate: float
    """Of DA-DLM among decided pairs, per cent, and its Wilson interval."""
    win_low: float
    win_high: float


GENERATION: dict[int, tuple[Generation, ...]] = {
    int(size): tuple(Generation(name, infill and tuple(infill), *rest) for name, infill, *rest in rows)
    for size, rows in _TABLES["generation"].items()
}
"""By block size. TPF is adjusted by latency, with BD3LM as the reference."""
BD3LM_300K_MAUVE: list[float] = _TABLES["bd3lm_300k_mauve"]
"""MAUVE of BD3LM trained for twice the steps, block size 16, in the rows of the table above."""
AR_MAUVE = 0.981


class Summarisation(NamedTuple):
    """ROUGE × 100 and raw TPF."""

    rouge1: float
    rouge2: float
    rougeL: float  # noqa: N815 (the metric's name)
    average: float
    tpf: float


SUMMARISATION: dict[str, dict[tuple[str, bool], Summarisation]] = {
    name: {(family, infill): Summarisation(*values) for family, infill, *values in rows}
    for name, rows in _TABLES["summarisation"].items()
}
"""By data set, family and whether gaps were filled (k = 2, r = 0.5). AR greedy, the others confidence 0.9."""


class Latency(NamedTuple):
    """Milliseconds per denoising step, and allocated MiB before prefill, after generation, at the peak."""

    ms: float
    start: int
    end: int
    peak: int


LATENCY: dict[tuple[str, int], Latency] = {
    (family, size): Latency(*values) for family, size, *values in _TABLES["latency"]
}
