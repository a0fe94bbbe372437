"""Masked positions → the vertices of the graph: anchors, candidate groups, start-of-block nodes."""

from dadlm.nodes.capacity import PaddedSizes, padded_sizes
from dadlm.nodes.layout import Nodes, expand, lay_out
from dadlm.nodes.moves import Selection, select

__all__ = ["Nodes", "PaddedSizes", "Selection", "expand", "lay_out", "padded_sizes", "select"]
