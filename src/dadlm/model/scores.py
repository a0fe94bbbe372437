"""What a model returns.

B rows, C nodes, D width, G blocks, N block size, K candidates, L sequence length.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from dadlm.nodes import Nodes


@dataclass(frozen=True)
class Denoised:
    """Hidden states [B, C, D] of the nodes of some blocks."""

    nodes: Nodes
    hidden: Tensor
    before: Tensor
    """[B, G]: the token before each block; meaningless unless `config.asks_before`."""


class Scores(NamedTuple):
    """Natural-log probabilities of rows of G blocks of N tokens (AR: L - 1 blocks of one, MDLM: one block of
    L). A tuple, because FSDP does not find tensors in other classes."""

    hidden: Tensor
    """[B, C, D]: final states of the nodes; of the L positions for AR and MDLM."""
    nodes: Nodes | None
    """Where the nodes are; None for AR and MDLM."""
    emission_logp: Tensor | None
    """[B, G, N, K]: of the true token at each node; 0 where it is known. None if it was not asked for."""
    transition_logp: Tensor | None
    """[B, G, N, K, K]; None for all but DA-DLM: one node per position leaves nothing to choose."""
    before: Tensor | None = None
    """[B, G]: the token before each block (`Denoised.before`)."""
    next_logp: Tensor | None = None
    """[B, L - 1]: of each clean token but the first, given those before it, as an AR model; None if it was
    not asked for (and for AR models, whose emissions are that)."""

    @property
    def denoised(self) -> Denoised:
        """Of block models."""
        assert self.nodes is not None and self.before is not None
        return Denoised(self.nodes, self.hidden, self.before)
