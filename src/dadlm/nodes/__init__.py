"""Masked positions → the vertices of the graph: anchors, candidate groups, start-of-block nodes."""

from dadlm.nodes.expansion import expand
from dadlm.nodes.layout import Nodes, lay_out
from dadlm.nodes.moves import Selection, select
from dadlm.nodes.rooms import Rooms, make_rooms

__all__ = ["Nodes", "Rooms", "Selection", "expand", "lay_out", "make_rooms", "select"]
