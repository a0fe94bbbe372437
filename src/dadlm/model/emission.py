"""The vocabulary head: hidden states → token log-probabilities. The mask token is impossible (SUBS)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dadlm.model.config import ModelConfig

_CHUNK = 1 << 28  # logits held at once in training (elements); larger sets are recomputed in backward


class Head(nn.Module):
    def __init__(self, config: ModelConfig, embedding: nn.Embedding) -> None:
        super().__init__()
        self.mask_id = config.mask_id
        self.linear = nn.Linear(config.width, config.vocab_size, bias=config.architecture == "bd3lm")
        if config.tie_embedding:
            self.linear.weight = embedding.weight
        offset = config.candidate_offset if config.family == "dadlm" else None
        self.offset = (
            None if offset is None else nn.Parameter(offset * torch.randn(config.candidates, config.width))
        )

    def logits(self, hidden: Tensor, candidate: Tensor | int = 0) -> Tensor:
        """fp32 logits [..., V] of hidden states [..., D] of the given candidates; the mask has -inf."""
        return F.pad(self._token_logits(hidden, candidate), (0, 1), value=-torch.inf)

    def _token_logits(self, hidden: Tensor, candidate: Tensor | int) -> Tensor:
        """fp32 logits of all tokens but the mask, which is the last id."""
        if self.offset is not None:
            hidden = hidden + self.offset[candidate].to(hidden.dtype)
        bias = None if self.linear.bias is None else self.linear.bias[: self.mask_id]
        return F.linear(hidden, self.linear.weight[: self.mask_id], bias).float()

    def target_logp(self, hidden: Tensor, target: Tensor, candidate: Tensor | int = 0) -> Tensor:
        """Log-probability [n] of target ids [n] from hidden states [n, D], in pieces that fit memory."""
        rows = max(1, _CHUNK // self.linear.out_features)
        if len(hidden) <= rows:
            return self._target_logp(hidden, target, candidate)
        pieces = []
        for first in range(0, len(hidden), rows):
            cut = slice(first, first + rows)
            which = candidate if isinstance(candidate, int) else candidate[cut]
            inputs = (hidden[cut], target[cut], which)
            # Nothing inside is random, so no generator state needs keeping.
            pieces.append(
                checkpoint(self._target_logp, *inputs, use_reentrant=False, preserve_rng_state=False)
            )
        return torch.cat(pieces)  # type: ignore[arg-type]

    def _target_logp(self, hidden: Tensor, target: Tensor, candidate: Tensor | int) -> Tensor:
        return -F.cross_entropy(self._token_logits(hidden, candidate), target, reduction="none")
