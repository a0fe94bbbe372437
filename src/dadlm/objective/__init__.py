"""Scores → losses, one file per family, one call for all of them."""

from dadlm.objective.losses import Losses, losses

__all__ = ["Losses", "losses"]
