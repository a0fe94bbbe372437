"""Scores → losses, one call for all families."""

from dadlm.objective.losses import Losses, losses, marginal_nll, path_nll

__all__ = ["Losses", "losses", "marginal_nll", "path_nll"]
