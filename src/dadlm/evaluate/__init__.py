"""How good a model is, with intervals."""

from dadlm.evaluate.intervals import Interval, bootstrap
from dadlm.evaluate.reconstruction import RowScores, score_rows

__all__ = ["Interval", "RowScores", "bootstrap", "score_rows"]
