"""Confidence: every step keeps all tokens that are sure enough, and the surest one in any case."""

from torch import Tensor

from dadlm.decode.samplers.base import Block, Proposal, Sampler, beginnings, heads, surest


class Confidence(Sampler):
    name = "confidence"
    summary = "all tokens whose confidence reaches `threshold`, at least the surest"
    options = ("threshold", "transition_weight")
    sees_tokens = True

    def keep(self, block: Block, infilled: Tensor, settings, proposal: Proposal | None = None):
        assert proposal is not None
        return confident(block.masked, infilled, proposal, settings.threshold[:, None]), block.step


def confident(masked: Tensor, infilled: Tensor, proposal: Proposal, threshold: float | Tensor) -> Tensor:
    """Keep what is at least as sure as the threshold (or each row's, [B, 1]), and the surest in any case.

    With token edges a token is as sure as that only beside its left neighbour: it is kept where that one is
    known, or kept too.
    """
    confidence = proposal.confidence
    candidates = heads(masked) if proposal.chained else masked
    sure = infilled | (confidence >= threshold) | surest(candidates, confidence, proposal.ending)
    return beginnings(masked, sure) if proposal.chained else masked & sure
