"""The vocabulary head: hidden states → token log-probabilities. The mask token is impossible (SUBS).

A head with token edges (`edge`) takes the left neighbours of the nodes into account where they are given.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dadlm.model.config import ModelConfig
from dadlm.model.edge import EDGES, Left
from dadlm.model.kernels import takes
from dadlm.model.layer import refreshed
from dadlm.model.successors import Successors

_CHUNK = 1 << 28  # logits held at once in training (elements); larger sets are recomputed in backward


class Head(nn.Module):
    def __init__(self, config: ModelConfig, embedding: nn.Embedding) -> None:
        super().__init__()
        self.mask_id = config.mask_id
        self.keepers = 0  # see `Model.keep_constants`
        self.kept: tuple[Tensor | None, ...] | None = None
        self.buffer: tuple[Tensor | None, ...] | None = None
        self.linear = nn.Linear(config.width, config.vocab_size, bias=config.architecture_class.biases)
        if config.tie_embedding:
            self.linear.weight = embedding.weight
        offset = config.candidate_offset if config.family == "dadlm" else None
        size = (config.candidates, config.width)
        self.offset = None if offset is None else nn.Parameter(offset * torch.randn(size))
        edge = EDGES[config.edge]
        self.edge = None if edge is None else edge(config)
        self.successors: Successors | None = None

    def logits(self, hidden: Tensor, candidate: Tensor | int | None = 0) -> Tensor:
        """fp32 logits [..., V] of hidden states [..., D] of the given candidates; the mask has -inf."""
        return F.pad(self.token_logits(hidden, candidate), (0, 1), value=-torch.inf)

    def token_logits(
        self, hidden: Tensor, candidate: Tensor | int | None = 0, left: Left | None = None
    ) -> Tensor:
        """Logits, in fp32 at least, of all tokens but the mask, which is the last id and is never emitted.
        Without left neighbours they are those of the head without its edges."""
        hidden = self.inputs(hidden, candidate, left)
        weight, bias = self.token_weights()
        logits = F.linear(hidden, weight[:, : hidden.shape[-1]], bias)[..., : self.mask_id]
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def inputs(self, hidden: Tensor, candidate: Tensor | int | None = 0, left: Left | None = None) -> Tensor:
        """What the weight is multiplied by: hidden states with the offset of their candidate and, if given,
        what their left neighbours add."""
        hidden = self._shifted(hidden, candidate)
        return hidden if self.edge is None or left is None else self.edge(hidden, left)

    def token_weights(self) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of all tokens but the mask, on a GPU padded with rows of zeros."""
        if self.kept is not None:
            weight, bias, _ = self.kept
            assert weight is not None
            return weight, bias
        weight, bias = self._weights()
        return weight[: self.mask_id], None if bias is None else bias[: self.mask_id]

    def edge_columns(self) -> Tensor:
        """[V, R]: multiplied by `edge.factors` of `inputs`, what left neighbours add to the logits; as many
        rows as `token_weights` has."""
        assert self.edge is not None
        if self.kept is not None and self.kept[-1] is not None:
            return self.kept[-1]
        weight, D = self.token_weights()[0], self.linear.in_features
        return self.edge.columns(weight[:, :D]) if weight.shape[1] == D else weight[:, D:]

    def _weights(self, edges: bool = True) -> tuple[Tensor, Tensor | None]:
        weight = self.linear.weight
        if edges and self.edge is not None and self.edge.right is not None:
            weight = torch.cat([weight, self.edge.right], 1)
        return weight, self.linear.bias

    def keep_constants(self) -> None:
        """See `Model.keep_constants`: on a GPU, rows of zeros bring the vocabulary to a multiple of 64.
        Matrix products over a vocabulary of odd size fall back to slow kernels there."""
        weight, bias = self.token_weights()
        spare = -len(weight) % 64 if weight.is_cuda else 0
        if weight.is_cuda or self.edge is not None:
            padded = F.pad(weight, (0, 0, 0, spare)), None if bias is None else F.pad(bias, (0, spare))
            columns = None
            if self.edge is not None and self.edge.right is None:  # else they are in the weight
                columns = self.edge.columns(padded[0])
            self.kept = self.buffer = refreshed(self.buffer, (*padded, columns))

    def release_constants(self) -> None:
        self.kept = None

    def drop_constants(self) -> None:
        """Give the memory of constants back."""
        self.buffer = self.successors = None

    def _shifted(self, hidden: Tensor, candidate: Tensor | int | None) -> Tensor:
        """Hidden states with the offset of their candidate; None for those of clean text."""
        if self.offset is None or candidate is None:
            return hidden
        if isinstance(candidate, int):
            return hidden + self.offset[candidate].to(hidden.dtype)
        if not torch.is_grad_enabled():
            return hidden + self.offset[candidate].to(hidden.dtype)
        # A product instead of indexing: thousands of nodes share a row, and adding up its gradient node by
        # node took a quarter of a training step.
        chosen = F.one_hot(candidate, len(self.offset)).to(self.offset.dtype)
        return hidden + (chosen @ self.offset).to(hidden.dtype)

    def target_logp(
        self, hidden: Tensor, target: Tensor, candidate: Tensor | int | None = 0, left: Left | None = None
    ) -> Tensor:
        """Log-probability [n] of target ids [n] from hidden states [n, D], in pieces that fit in memory."""
        if takes(hidden):
            from dadlm.model.kernels.head import target_logp

            inputs = self.inputs(hidden, candidate, left)
            return target_logp(inputs, *self._weights(left is not None), target, self.mask_id)
        rows = max(1, _CHUNK // self.linear.out_features)
        if len(hidden) <= rows:
            return self._target_logp(hidden, target, candidate, left)
        pieces = []
        for first in range(0, len(hidden), rows):
            part = slice(first, first + rows)
            which = candidate[part] if isinstance(candidate, Tensor) else candidate
            near = None if left is None else left.map(lambda x, part=part: x[part])
            inputs = (hidden[part], target[part], which, near)
            # Nothing inside is random, so no generator state needs keeping.
            pieces.append(
                checkpoint(self._target_logp, *inputs, use_reentrant=False, preserve_rng_state=False)
            )
        return torch.cat(pieces)  # type: ignore[arg-type]

    def _target_logp(
        self, hidden: Tensor, target: Tensor, candidate: Tensor | int | None, left: Left | None
    ) -> Tensor:
        return -F.cross_entropy(self.token_logits(hidden, candidate, left), target, reduction="none")
