"""One denoising step of a block: the paper's figure as a function.

The settings are tensors with a value for each row, so one step serves rows of any settings; what none of the
rows asks for is left out (`Features`). Nothing waits for the device or depends on how many tokens are masked,
so that on CUDA a whole step can be captured once and replayed (`engine`).

B rows, N block size, K candidates, V vocabulary without the mask, D width.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dadlm.decode.batched_settings import BatchedSettings, Features
from dadlm.decode.choose import choose
from dadlm.decode.infill import short_gaps
from dadlm.decode.predict import Prediction
from dadlm.decode.samplers import SAMPLERS, Block, Proposal
from dadlm.model import Model, kernels
from dadlm.model.edge import on_the_way


@dataclass(frozen=True)
class Step:
    """What happened in one step, valid until the next one is made."""

    block: Block
    """As it entered the step."""
    prediction: Prediction
    path: Tensor
    """[B, N]: the chosen node of each group."""
    drawn: Tensor
    """[B, N]: where a token was drawn, whether it is kept or not."""
    tokens: Tensor
    """[B, N]: what was drawn there."""
    kept: Tensor
    """[B, N]: decided in this step, infilled ones and all behind the text's end included."""
    infilled: Tensor
    """[B, N]: decided because they lay in a short gap."""
    at: Tensor
    """[B]: the step number at which `kept` was decided."""
    ids: Tensor
    """[B, N]: tokens after the step; meaningless where still masked."""


def denoise_step(
    model: Model,
    prediction: Prediction,
    block: Block,
    settings: BatchedSettings,
    features: Features,
    capacity: int | None = None,
) -> tuple[Block, Step]:
    """Choose a path and its tokens, keep some of them, remask the rest.

    `capacity` is how many tokens are drawn, if their number must not depend on the data.
    """
    infilled = _infilled(block, settings, features)
    kept, at = keep(block, infilled, settings, features)
    chained = model.head.edge is not None
    # Where the sampler looks at the tokens, all masked positions are drawn; else only what is kept.
    path, tokens, probability, entropy = choose(model, prediction, block, kept, settings, features, capacity)
    drawn = on_the_way(block.masked, kept) if chained else kept
    padded = settings.padded[:, None] if features.padded else None
    if features.sees_tokens:
        confidence = composite(
            probability, prediction.transition_logp, path, settings.transition_weight[:, None]
        )
        ending = None if padded is None else block.ends & (tokens == model.config.eot_id) & padded
        kept, at = keep(block, infilled, settings, features, Proposal(confidence, ending, entropy, chained))
    after, ids, kept = after_step(block, tokens, kept, at, model.end_ids, padded)
    return after, Step(block, prediction, path, drawn, tokens, kept, infilled, at, ids)


def _infilled(block: Block, settings: BatchedSettings, features: Features) -> Tensor:
    if not features.infill:
        return torch.zeros_like(block.masked)
    longest, ratio = settings.longest_gap[:, None], settings.known_ratio[:, None]
    return short_gaps(block.masked, block.in_window, longest, ratio)


def count_kept(block: Block, settings: BatchedSettings, features: Features) -> Tensor:
    """How many tokens the next step draws, all rows together; 0 when the blocks are decided."""
    return keep(block, _infilled(block, settings, features), settings, features)[0].sum()


def keep(
    block: Block,
    infilled: Tensor,
    settings: BatchedSettings,
    features: Features,
    proposal: Proposal | None = None,
) -> tuple[Tensor, Tensor]:
    """What each row's sampler keeps [B, N], at which step [B]; without a proposal all that it might."""
    kept: dict[str, Tensor] = {}
    at: dict[str, Tensor] = {}
    for name in features.samplers:
        sampler = SAMPLERS[name]
        kept[name], at[name] = block.masked, block.step
        if proposal is not None or not sampler.sees_tokens:
            kept[name], at[name] = sampler.keep(block, infilled, settings, proposal)
    return _by_sampler(kept, settings), _by_sampler(at, settings)


def _by_sampler(values: Mapping[str, Tensor], settings: BatchedSettings) -> Tensor:
    """For each row the value of its own sampler."""
    (_, found), *others = values.items()
    for name, value in others:
        own = settings.sampler == list(SAMPLERS).index(name)
        found = torch.where(own if value.dim() == 1 else own[:, None], value, found)
    return found


def after_step(
    block: Block,
    tokens: Tensor,
    kept: Tensor,
    at: Tensor,
    end_ids: tuple[int, ...],
    padded: Tensor | None,
) -> tuple[Block, Tensor, Tensor]:
    """The block with the kept tokens in it, its ids, and what is decided [B, N]: see `settle`."""
    if kernels.takes(tokens):
        from dadlm.decode.kernels.tokens import settle as settle_fused

        given = block.masked, block.wanted, block.ends, block.ids, tokens, kept, at, padded
        ids, kept, masked, step = settle_fused(*given, end_ids)
        return replace(block, ids=ids, masked=masked, step=step), ids, kept
    ids, kept = settle(block, torch.where(kept, tokens, block.ids), kept, end_ids, padded)
    return replace(block, ids=ids, masked=block.masked > kept, step=at + 1), ids, kept


def settle(
    block: Block, ids: Tensor, kept: Tensor, end_ids: tuple[int, ...], padded: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Tokens and what is decided [B, N], the rest of the block included where nothing more is asked for.

    That is where all wanted positions are decided, or where a text ends (`Model.end_ids`) and nothing before
    that is open: while something is, what follows the end is context for it and has to be denoised, unless
    end-of-text is known to be followed by nothing else (`padded` [B, 1]).
    """
    if ids.shape[1] == 1:
        return ids, kept  # nothing is left
    masked = block.masked > kept  # and not kept: one launch instead of two
    eot = block.ends & (ids == end_ids[0])
    end = eot
    for turn_end in end_ids[1:]:
        end = end | (block.ends & (ids == turn_end))
    open_before = (masked & block.wanted).cumsum(1)  # wanted positions come first
    over = (end & (open_before == 0)).any(1, keepdim=True) | (open_before[:, -1:] == 0)
    if padded is not None:
        over = over | (((eot & ~masked).cumsum(1) > 0) & padded)
    left = masked & over
    return ids.masked_fill(left, end_ids[0]), kept | left


def composite(emitted: Tensor, transition_logp: Tensor, path: Tensor, weight: Tensor) -> Tensor:
    """Confidence [B, N]: (1 - w)·emission + w·mean of the incoming and outgoing transition on the path.

    The end-of-block node is certain. With one node per position there are no transitions to speak of. The
    weight of each row is fp64 [B, 1], and rounded where a single number would be.
    """
    if transition_logp.shape[-1] == 1:
        return emitted
    source = torch.cat([torch.zeros_like(path[:, :1]), path[:, :-1]], 1)
    rows = transition_logp.exp().gather(
        2, source[..., None, None].expand(*path.shape, 1, transition_logp.shape[-1])
    )
    incoming = rows.squeeze(2).gather(-1, path[..., None]).squeeze(-1)
    outgoing = torch.cat([incoming[:, 1:], torch.ones_like(incoming[:, :1])], 1)
    return (1 - weight).float() * emitted + weight.float() * (incoming + outgoing) / 2
