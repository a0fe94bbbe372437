"""How good a model is, with intervals: a function for each of the paper's tables and figures.

Optional packages are imported where they are used, because training imports this package too.
"""

from dadlm.evaluate.acceptance import AcceptanceSettings, acceptance
from dadlm.evaluate.generation import GenerationSettings, generation
from dadlm.evaluate.intervals import Interval, bootstrap, wilson
from dadlm.evaluate.judge import judge
from dadlm.evaluate.latency import LatencySettings, latency
from dadlm.evaluate.perplexity import perplexity
from dadlm.evaluate.reconstruction import reconstruction
from dadlm.evaluate.report import report
from dadlm.evaluate.scores import RowScores, score_rows
from dadlm.evaluate.summarisation import summarisation
from dadlm.evaluate.text import rows_of

__all__ = [
    "AcceptanceSettings",
    "GenerationSettings",
    "Interval",
    "LatencySettings",
    "RowScores",
    "acceptance",
    "bootstrap",
    "generation",
    "judge",
    "latency",
    "perplexity",
    "reconstruction",
    "report",
    "rows_of",
    "score_rows",
    "summarisation",
    "wilson",
]
