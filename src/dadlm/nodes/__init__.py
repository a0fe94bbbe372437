"""Masked positions → the vertices of the graph: anchors, candidate groups, start-of-block nodes."""

from dadlm.nodes.layout import Nodes, Rooms, Selection, can_join, expand, lay_out, make_rooms, select

__all__ = ["Nodes", "Rooms", "Selection", "can_join", "expand", "lay_out", "make_rooms", "select"]
