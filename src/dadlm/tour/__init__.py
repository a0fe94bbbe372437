"""The idea at work: on a language whose truth is known, and in the models that ship with the package."""

from dadlm.tour.run import take_tour
from dadlm.tour.side_by_side import complete_side_by_side

__all__ = ["complete_side_by_side", "take_tour"]
