"""The tour behind `make demo`: a language whose truth is known, and what the graph adds there."""

from dadlm.tour.run import take_tour

__all__ = ["take_tour"]
