"""Confidence: every step keeps all tokens that are sure enough, and the surest one in any case."""

import torch
from torch import Tensor

from dadlm.decode.samplers.base import Block, Proposal, Sampler, highest


class Confidence(Sampler):
    name = "confidence"
    summary = "all tokens whose confidence reaches `threshold`, at least the surest"
    options = ("threshold", "transition_weight")
    sees_tokens = True

    def keep(self, block: Block, infilled: Tensor, settings, proposal: Proposal | None = None):
        assert proposal is not None
        threshold = settings.threshold[:, None]
        kept = confident(block.masked, infilled, proposal.confidence, threshold, proposal.ending)
        return kept, block.step


def confident(
    masked: Tensor,
    infilled: Tensor,
    confidence: Tensor,
    threshold: float | Tensor,
    ending: Tensor | None = None,
) -> Tensor:
    """Keep what is at least as sure as the threshold (or each row's, [B, 1]), and the surest in any case.

    Where texts are padded, `ending` [B, N] are end-of-texts: the last positions of a block are surest to be
    padding, which is nobody's text. So the surest is one of the others; if there is none, the first end.
    """
    confidence = confidence.masked_fill(~masked, -1.0)
    forced = confidence
    if ending is not None:
        late = torch.arange(1, masked.shape[1] + 1, device=masked.device) / -(masked.shape[1] + 1)
        forced = torch.where(masked & ending, late, confidence)
    return infilled | (masked & ((confidence >= threshold) | highest(forced)))
