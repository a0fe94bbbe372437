"""Masked positions → the vertices of the graph: anchors, candidate groups, start-of-block nodes."""

from dadlm.nodes.layout import Nodes, expand, lay_out

__all__ = ["Nodes", "expand", "lay_out"]
