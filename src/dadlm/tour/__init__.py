"""The idea at work: on a language whose truth is known, and in the models that ship with the package."""

from dadlm.tour.demo import show_demo
from dadlm.tour.run import take_tour

__all__ = ["show_demo", "take_tour"]
