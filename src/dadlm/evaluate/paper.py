"""The numbers of the paper's tables, as printed there. Knows nothing of our results.

"DA-DLM: Explicitly Modeling Token Dependencies in Diffusion Language Models". Models of 12 layers and width
768 (about 170M parameters), block sizes 16, 8 and 4, four candidates per group.
"""

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

# Table 1: conditional block reconstruction, nats per token, by (family, block size).
RECONSTRUCTION: dict[tuple[str, int | None], dict[str, float]] = {
    ("mdlm", None): {"LM1B": 3.47, "OpenWebText": 3.15},
    ("bd3lm", 16): {"LM1B": 3.46, "OpenWebText": 3.11},
    ("bd3lm", 8): {"LM1B": 3.43, "OpenWebText": 3.09},
    ("bd3lm", 4): {"LM1B": 3.39, "OpenWebText": 3.04},
    ("dadlm", 16): {"LM1B": 3.30, "OpenWebText": 2.92},
    ("dadlm", 8): {"LM1B": 3.28, "OpenWebText": 2.89},
    ("dadlm", 4): {"LM1B": 3.24, "OpenWebText": 2.86},
}


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


# By block size. TPF is adjusted by latency, with BD3LM as the reference.
GENERATION: dict[int, tuple[Generation, ...]] = {
    16: (
        Generation("FH", None, 1.00, 0.93, 0.933, 0.960, 52.39, 50.31, 54.47),
        Generation("FH", (2, 0.5), 1.54, 1.44, 0.608, 0.846, 63.56, 61.48, 65.59),
        Generation("FH", (2, 0.0), 1.78, 1.66, 0.385, 0.779, 69.40, 67.45, 71.29),
        Generation("FH", (3, 0.5), 1.66, 1.55, 0.237, 0.652, 71.06, 69.04, 72.99),
        Generation("T=16", None, 1.55, 1.44, 0.535, 0.786, 65.38, 63.33, 67.37),
        Generation("T=16", (2, 0.5), 1.99, 1.85, 0.168, 0.567, 73.48, 71.53, 75.35),
        Generation("T=16", (2, 0.0), 1.94, 1.81, 0.115, 0.495, 76.47, 74.58, 78.26),
        Generation("T=16", (3, 0.5), 2.18, 2.03, 0.083, 0.377, 74.94, 72.98, 76.80),
        Generation("T=12", None, 1.78, 1.66, 0.335, 0.653, 68.85, 66.83, 70.81),
        Generation("T=12", (2, 0.5), 2.21, 2.06, 0.112, 0.434, 72.45, 70.45, 74.36),
        Generation("T=12", (2, 0.0), 2.18, 2.03, 0.069, 0.358, 76.96, 75.07, 78.75),
        Generation("T=12", (3, 0.5), 2.42, 2.26, 0.050, 0.284, 75.59, 73.59, 77.47),
        Generation("T=8", None, 2.27, 2.12, 0.105, 0.367, 72.07, 70.01, 74.04),
        Generation("T=6", None, 2.82, 2.63, 0.039, 0.152, 73.31, 71.20, 75.32),
        Generation("T=4", None, 4.04, 3.77, 0.012, 0.036, 74.02, 71.66, 76.25),
    ),
    8: (
        Generation("FH", None, 1.00, 0.95, 0.942, 0.960, 53.54, 51.56, 55.52),
        Generation("FH", (2, 0.5), 1.44, 1.36, 0.670, 0.878, 66.36, 64.41, 68.26),
        Generation("FH", (2, 0.0), 1.62, 1.54, 0.392, 0.801, 69.55, 67.61, 71.43),
        Generation("FH", (3, 0.5), 1.51, 1.43, 0.396, 0.776, 69.74, 67.80, 71.61),
        Generation("T=8", None, 1.52, 1.44, 0.219, 0.578, 71.70, 69.70, 73.62),
        Generation("T=8", (2, 0.5), 1.80, 1.71, 0.102, 0.407, 76.10, 74.18, 77.92),
        Generation("T=8", (2, 0.0), 1.80, 1.71, 0.056, 0.343, 78.40, 76.54, 80.15),
        Generation("T=8", (3, 0.5), 1.88, 1.78, 0.061, 0.349, 78.94, 77.07, 80.70),
        Generation("T=6", None, 1.74, 1.65, 0.072, 0.341, 76.33, 74.38, 78.18),
        Generation("T=6", (2, 0.5), 1.99, 1.89, 0.045, 0.242, 77.28, 75.32, 79.13),
        Generation("T=6", (2, 0.0), 2.00, 1.90, 0.038, 0.185, 81.32, 79.48, 83.04),
        Generation("T=6", (3, 0.5), 2.06, 1.95, 0.035, 0.178, 78.92, 76.97, 80.73),
        Generation("T=4", None, 2.22, 2.10, 0.019, 0.090, 76.68, 74.58, 78.66),
        Generation("T=3", None, 2.77, 2.63, 0.010, 0.023, 77.21, 74.83, 79.42),
        Generation("T=2", None, 4.02, 3.81, 0.006, 0.010, 72.06, 68.92, 75.00),
    ),
    4: (
        Generation("FH", None, 1.00, 0.95, 0.965, 0.979, 55.57, 53.55, 57.57),
        Generation("FH", (2, 0.5), 1.26, 1.20, 0.840, 0.960, 66.91, 64.98, 68.77),
        Generation("FH", (2, 0.0), 1.41, 1.35, 0.621, 0.913, 70.33, 68.44, 72.17),
        Generation("FH", (3, 0.0), 1.55, 1.48, 0.129, 0.653, 80.73, 79.08, 82.28),
        Generation("T=4", None, 1.46, 1.39, 0.058, 0.436, 84.02, 82.42, 85.49),
        Generation("T=4", (2, 0.5), 1.54, 1.47, 0.053, 0.405, 86.52, 85.02, 87.89),
        Generation("T=4", (2, 0.0), 1.57, 1.50, 0.040, 0.364, 88.77, 87.38, 90.03),
        Generation("T=4", (3, 0.0), 1.64, 1.57, 0.026, 0.234, 88.63, 87.21, 89.91),
        Generation("T=3", None, 1.66, 1.59, 0.024, 0.171, 86.91, 85.34, 88.33),
        Generation("T=3", (2, 0.5), 1.71, 1.63, 0.022, 0.142, 86.49, 84.90, 87.93),
        Generation("T=3", (2, 0.0), 1.73, 1.65, 0.024, 0.130, 87.27, 85.70, 88.68),
        Generation("T=3", (3, 0.0), 1.79, 1.71, 0.017, 0.092, 88.40, 86.90, 89.76),
        Generation("T=2", None, 2.13, 2.03, 0.010, 0.031, 87.45, 85.63, 89.06),
    ),
}
# MAUVE of BD3LM trained for twice the steps, block size 16: the rows, TPF and DA-DLM of the table above.
BD3LM_300K_MAUVE = (
    *(0.927, 0.558, 0.382, 0.264),
    *(0.511, 0.184, 0.107, 0.098),
    *(0.325, 0.124, 0.076, 0.058),
    *(0.091, 0.034, 0.011),
)
AR_MAUVE = 0.981


class Summarisation(NamedTuple):
    """ROUGE × 100 and raw TPF."""

    rouge1: float
    rouge2: float
    rougeL: float  # noqa: N815 (the metric's name)
    average: float
    tpf: float


# By data set, family and whether gaps were filled (k = 2, r = 0.5). AR greedy, the others confidence 0.9.
SUMMARISATION: dict[str, dict[tuple[str, bool], Summarisation]] = {
    "XSum": {
        ("ar", False): Summarisation(35.72, 13.51, 28.31, 25.85, 1.00),
        ("bd3lm", False): Summarisation(36.05, 13.26, 27.64, 25.65, 1.07),
        ("bd3lm", True): Summarisation(36.10, 13.17, 27.67, 25.65, 1.20),
        ("dadlm", False): Summarisation(36.44, 13.15, 28.06, 25.88, 1.13),
        ("dadlm", True): Summarisation(36.55, 13.14, 28.09, 25.93, 1.50),
    },
    "CNN/DailyMail": {
        ("ar", False): Summarisation(38.54, 16.36, 26.57, 27.16, 1.00),
        ("bd3lm", False): Summarisation(38.21, 16.85, 25.95, 27.00, 1.81),
        ("bd3lm", True): Summarisation(38.21, 16.83, 25.94, 26.99, 1.92),
        ("dadlm", False): Summarisation(38.60, 16.76, 26.16, 27.17, 1.73),
        ("dadlm", True): Summarisation(38.53, 16.72, 26.10, 27.12, 2.56),
    },
}


class Latency(NamedTuple):
    """Milliseconds per denoising step, and allocated MiB before prefill, after generation, at the peak."""

    ms: float
    start: int
    end: int
    peak: int


LATENCY: dict[tuple[str, int], Latency] = {
    ("bd3lm", 16): Latency(27.59, 1306, 2440, 3814),
    ("bd3lm", 8): Latency(22.49, 1306, 2449, 3136),
    ("bd3lm", 4): Latency(20.51, 1306, 2457, 2987),
    ("dadlm", 16): Latency(29.60, 1325, 2459, 3890),
    ("dadlm", 8): Latency(23.73, 1324, 2467, 3183),
    ("dadlm", 4): Latency(21.48, 1324, 2475, 3019),
}
