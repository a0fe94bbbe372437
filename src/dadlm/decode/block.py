"""One denoising step of a block: the paper's figure as a function.

B rows, N block size, K candidates, V vocabulary, D width.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dadlm import counter, dag
from dadlm.decode import remask
from dadlm.decode.infill import short_gaps
from dadlm.decode.predict import Prediction, Predictor, at_path
from dadlm.decode.sample import draw_tokens, most_probable
from dadlm.decode.settings import DecodeSettings
from dadlm.model import Model


@dataclass(frozen=True)
class Block:
    """The block that each row is working on."""

    ids: Tensor
    """[B, N]: tokens; meaningless where masked."""
    masked: Tensor
    """[B, N]: still to be decided."""
    first: Tensor
    """[B]: sequence position of the block's first token."""
    number: Tensor
    """[B]: index of the block in its row."""
    step: Tensor
    """[B]: next denoising step."""
    steps: Tensor
    """[B]: steps that the random sampler may take in this block."""
    seed: Tensor
    """[B]: the row's seed."""
    inside: Tensor
    """[B, N]: part of the row's text; False in the padding of a shorter MDLM window."""

    def uniform(self, purpose: int) -> Tensor:
        """[B, N]: this step's random numbers for a purpose."""
        position = torch.arange(self.ids.shape[1], device=self.ids.device)
        counters = (self.seed[:, None], self.number[:, None], self.step[:, None], position, purpose)
        return counter.uniform(*counters)


@dataclass(frozen=True)
class Step:
    """What happened in one step, for whoever wants to look."""

    block: Block
    """As it entered the step."""
    prediction: Prediction
    path: Tensor
    """[B, N]: the chosen node of each group."""
    kept: Tensor
    """[B, N]: decided in this step, infilled ones included."""
    infilled: Tensor
    """[B, N]: decided because they lay in a short gap."""
    at: Tensor
    """[B]: the step number at which `kept` was decided."""
    ids: Tensor
    """[B, N]: tokens after the step; meaningless where still masked."""


def denoise_step(
    model: Model, predictor: Predictor, block: Block, settings: DecodeSettings
) -> tuple[Block, Step]:
    """Predict the graph, choose a path and its tokens, keep some of them, remask the rest."""
    prediction = predictor.predict(block.ids, block.masked, block.first)
    infilled = torch.zeros_like(block.masked)
    if settings.infill is not None:
        infilled = short_gaps(block.masked, block.inside, *settings.infill)
    if settings.sampler == "confidence":  # what is kept depends on what was drawn
        path, logits, drawn = choose(model, prediction, block, block.masked, settings)
        sure = confidence(logits, drawn, block.masked, prediction, path, settings.transition_weight)
        kept, at = remask.confident(block.masked, infilled, sure, settings.threshold), block.step
        drawn = drawn[kept[block.masked]]
    else:  # what is kept does not: only that is drawn
        kept, at = keep(block, infilled, settings)
        path, _, drawn = choose(model, prediction, block, kept, settings)
    ids = block.ids.masked_scatter(kept, drawn)
    after = replace(block, ids=ids, masked=block.masked & ~kept, step=at + 1)
    return after, Step(block, prediction, path, kept, infilled, at, ids)


def choose(
    model: Model, prediction: Prediction, block: Block, wanted: Tensor, settings: DecodeSettings
) -> tuple[Tensor, Tensor, Tensor]:
    """The path [B, N]; logits [n, V] and tokens [n] of its nodes at the n positions `wanted` [B, N]."""
    if settings.path == "viterbi":
        logits = prediction.all_logits(model)
        best = logits.amax(-1) - logits.logsumexp(-1)
        emission = torch.where(block.masked[..., None], best, 0.0)
        path, _ = dag.best_path(
            emission.masked_fill(~prediction.active, -torch.inf), prediction.transition_logp
        )
        chosen = at_path(logits, path)[wanted]
        drawn = most_probable(chosen)
    else:  # path first, head second: the path depends on the transitions alone
        path = dag.sample_path(prediction.transition_logp, block.uniform(counter.PATH))
        chosen = model.head.logits(at_path(prediction.hidden, path)[wanted], path[wanted])
        uniform = block.uniform(counter.TOKEN)[wanted]
        drawn = draw_tokens(chosen, uniform, settings.temperature, settings.top_p, settings.nucleus)
    return path, chosen, drawn


def confidence(
    logits: Tensor, drawn: Tensor, wanted: Tensor, prediction: Prediction, path: Tensor, weight: float
) -> Tensor:
    """[B, N]: how sure the tokens drawn at the positions `wanted` are; untempered."""
    emitted = logits.softmax(-1).gather(-1, drawn[:, None]).squeeze(-1)
    emitted = torch.zeros_like(wanted, dtype=emitted.dtype).masked_scatter(wanted, emitted)
    return composite(emitted, prediction.transition_logp, path, weight)


def composite(emitted: Tensor, transition_logp: Tensor, path: Tensor, weight: float) -> Tensor:
    """Confidence [B, N]: (1 - w)·emission + w·mean of the incoming and outgoing transition on the path.

    The end-of-block node is certain. With one node per position there are no transitions to speak of.
    """
    if transition_logp.shape[-1] == 1:
        return emitted
    source = torch.cat([torch.zeros_like(path[:, :1]), path[:, :-1]], 1)
    rows = transition_logp.exp().gather(
        2, source[..., None, None].expand(*path.shape, 1, transition_logp.shape[-1])
    )
    incoming = rows.squeeze(2).gather(-1, path[..., None]).squeeze(-1)
    outgoing = torch.cat([incoming[:, 1:], torch.ones_like(incoming[:, :1])], 1)
    return (1 - weight) * emitted + weight * (incoming + outgoing) / 2


def keep(block: Block, infilled: Tensor, settings: DecodeSettings) -> tuple[Tensor, Tensor]:
    """Which positions a sampler that does not look at the tokens decides now [B, N], at which step [B]."""
    where, when = (block.masked, infilled), (block.seed, block.number, block.step)
    if settings.sampler == "first-hitting":
        return remask.first_hitting(*where, *when), block.step
    return remask.random(*where, *when, block.steps)
