"""One denoising step of a block: the paper's figure as a function.

B rows, N block size, K candidates, V vocabulary, D width.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dadlm import counter, dag
from dadlm.decode import remask
from dadlm.decode.infill import short_gaps
from dadlm.decode.predict import Prediction, Predictor
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
    tokens: Tensor
    """[B, N]: the token each chosen node gave; known ones unchanged."""
    kept: Tensor
    """[B, N]: decided in this step, infilled ones included."""
    infilled: Tensor
    """[B, N]: decided because they lay in a short gap."""
    at: Tensor
    """[B]: the step number at which `kept` was decided."""


def denoise_step(
    model: Model, predictor: Predictor, block: Block, settings: DecodeSettings
) -> tuple[Block, Step]:
    """Predict the graph, choose a path and its tokens, keep some of them, remask the rest."""
    prediction = predictor.predict(block.ids, block.masked, block.first)
    path, tokens, confidence = choose(model, prediction, block, settings)
    infilled = torch.zeros_like(block.masked)
    if settings.infill is not None:
        infilled = short_gaps(block.masked, block.inside, *settings.infill)
    kept, at = keep(block, infilled, confidence, settings)
    tokens = torch.where(block.masked, tokens, block.ids)
    after = replace(block, ids=torch.where(kept, tokens, block.ids), masked=block.masked & ~kept, step=at + 1)
    return after, Step(block, prediction, path, tokens, kept, infilled, at)


def choose(
    model: Model, prediction: Prediction, block: Block, settings: DecodeSettings
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The path [B, N], its tokens [B, N] and, if the sampler asks for it, their confidence [B, N]."""
    if settings.path == "viterbi":
        logits = prediction.all_logits(model)
        best = logits.log_softmax(-1).amax(-1)
        emission = torch.where(block.masked[..., None], best, 0.0).masked_fill(~prediction.active, -torch.inf)
        path, _ = dag.best_path(emission, prediction.transition_logp)
        logits = _at(logits, path)
        tokens = most_probable(logits)
    else:  # path first, head second: the path depends on the transitions alone
        path = dag.sample_path(prediction.transition_logp, block.uniform(counter.PATH))
        logits = prediction.path_logits(model, path)
        uniform = block.uniform(counter.TOKEN)
        tokens = draw_tokens(logits, uniform, settings.temperature, settings.top_p, settings.nucleus)
    if settings.sampler != "confidence":
        return path, tokens, None
    emitted = logits.softmax(-1).gather(-1, tokens[..., None]).squeeze(-1)
    return path, tokens, composite(emitted, prediction.transition_logp, path, settings.transition_weight)


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


def keep(
    block: Block, infilled: Tensor, confidence: Tensor | None, settings: DecodeSettings
) -> tuple[Tensor, Tensor]:
    """Which positions are decided now [B, N], and at which step [B]."""
    where = (block.masked, infilled)
    if confidence is not None:
        return remask.confident(*where, confidence, settings.threshold), block.step
    when = (block.seed, block.number, block.step)
    if settings.sampler == "first-hitting":
        return remask.first_hitting(*where, *when), block.step
    return remask.random(*where, *when, block.steps)


def _at(x: Tensor, path: Tensor) -> Tensor:
    """x [B, N, K, F] at the path's nodes: [B, N, F]."""
    return x.gather(2, path[..., None, None].expand(*path.shape, 1, x.shape[-1])).squeeze(2)
