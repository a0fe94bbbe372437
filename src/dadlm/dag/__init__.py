"""Exact algorithms on the DAG of one block: likelihood, best path, sampling, priors and posteriors of nodes.

A block is a chain of N groups of K candidate nodes; a path takes one node of each. An anchor is a group with
one active node. All scores are natural-log probabilities, -inf where nothing is possible:

    emission_logp    [..., N, K]     of the token at each node; -inf at inactive nodes
    transition_logp  [..., N, K, K]  [i, j, k]: from node j of group i-1 to node k of group i; group -1 is the
                                     start node, so [0] uses row 0 only; -inf towards inactive nodes

`naive` holds the same functions by enumeration; docs/maths.md derives them.
"""

from dadlm.dag import naive
from dadlm.dag._recursion import check_shapes
from dadlm.dag.forward import forward_logp, node_marginals, node_posteriors, prefix_logp
from dadlm.dag.paths import best_path, lookahead_path, sample_path, tilted

__all__ = [
    "best_path",
    "check_shapes",
    "forward_logp",
    "lookahead_path",
    "naive",
    "node_marginals",
    "node_posteriors",
    "prefix_logp",
    "sample_path",
    "tilted",
]
