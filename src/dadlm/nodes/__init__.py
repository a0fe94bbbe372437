"""Masked positions → the vertices of the graph: anchors, candidate groups, start-of-block nodes."""

from dadlm.nodes.layout import Nodes, expand, lay_out
from dadlm.nodes.moves import PaddedSizes, Selection, padded_sizes, select

__all__ = ["Nodes", "PaddedSizes", "Selection", "expand", "lay_out", "padded_sizes", "select"]
