"""One denoising step of a block: the paper's figure as a function.

Nothing in it waits for the device or depends on how many tokens are masked, so that on CUDA a whole step
can be captured once and replayed (`engine`). What stands behind the end of a text is never seen, so nothing
is denoised there: see `settle`.

B rows, N block size, K candidates, V vocabulary without the mask, D width.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dadlm import counter, dag
from dadlm.decode import remask
from dadlm.decode.infill import short_gaps
from dadlm.decode.inside import draw_inside
from dadlm.decode.places import places, put
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
    reveal: Tensor
    """[B, N]: step at which the random sampler keeps each position; zeros for the other samplers."""
    seed: Tensor
    """[B]: the row's seed."""
    inside: Tensor
    """[B, N]: part of the row's text; False in the padding of a shorter MDLM window."""
    ends: Tensor
    """[B, N]: where end-of-text ends the text: what is masked at first, but nowhere in a text with gaps."""

    def uniform(self, purpose: int) -> Tensor:
        """[B, N]: this step's random numbers for a purpose."""
        return remask.block_uniform(self.seed, self.number, self.step, self.ids.shape[1], purpose)


@dataclass(frozen=True)
class Step:
    """What happened in one step, for whoever wants to look before the next one is made."""

    block: Block
    """As it entered the step."""
    prediction: Prediction
    path: Tensor
    """[B, N]: the chosen node of each group."""
    kept: Tensor
    """[B, N]: decided in this step, infilled ones and all behind the text's end included."""
    infilled: Tensor
    """[B, N]: decided because they lay in a short gap."""
    at: Tensor
    """[B]: the step number at which `kept` was decided."""
    ids: Tensor
    """[B, N]: tokens after the step; meaningless where still masked."""


def denoise_step(
    model: Model, predictor: Predictor, block: Block, settings: DecodeSettings, room: int | None = None
) -> tuple[Block, Step]:
    """Predict the graph, choose a path and its tokens, keep some of them, remask the rest.

    `room` is how many tokens are drawn, if their number must not depend on the data.
    """
    prediction = predictor.predict(block.ids, block.masked, block.first)
    infilled = torch.zeros_like(block.masked)
    if settings.infill is not None:
        infilled = short_gaps(block.masked, block.inside, *settings.infill)
    if settings.sampler == "confidence":  # what is kept depends on what was drawn
        path, drawn, emitted = choose(model, prediction, block, block.masked, settings, room)
        sure = composite(emitted, prediction.transition_logp, path, settings.transition_weight)
        ending = block.ends & (drawn == model.config.eot_id) if settings.padded else None
        kept = remask.confident(block.masked, infilled, sure, settings.threshold, ending)
        at = block.step
    else:  # what is kept does not: only that is drawn
        kept, at = keep(block, infilled, settings)
        path, drawn, _ = choose(model, prediction, block, kept, settings, room)
    ids = torch.where(kept, drawn, block.ids)
    ids, kept = settle(block, ids, kept, model.config.eot_id, settings.padded)
    after = replace(block, ids=ids, masked=block.masked & ~kept, step=at + 1)
    return after, Step(block, prediction, path, kept, infilled, at, ids)


def settle(
    block: Block, ids: Tensor, kept: Tensor, eot_id: int, padded: bool | Tensor = False
) -> tuple[Tensor, Tensor]:
    """Tokens and what is decided [B, N], the rest of the block included where the text has come to its end.

    It has where end-of-text stands and nothing before it is open: while something is, what follows
    the end-of-text is context for it and has to be denoised, unless that is known to be end-of-text too
    (`padded`, or each row's, [B, 1]).
    """
    masked = block.masked & ~kept
    end = block.ends & (ids == eot_id)
    over = (end & (masked.cumsum(1) == 0)).any(1, keepdim=True)
    if padded is not False:
        over = over | (((end & ~masked).cumsum(1) > 0) & padded)
    return ids.masked_fill(masked & over, eot_id), kept | (masked & over)


def choose(
    model: Model,
    prediction: Prediction,
    block: Block,
    wanted: Tensor,
    settings: DecodeSettings,
    room: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The path [B, N]; the tokens of its nodes [B, N] and their untempered probabilities [B, N].

    Both are meant to be read at the positions `wanted` [B, N]; probabilities by the confidence sampler only.
    """
    if settings.path != "sample":
        return choose_best(model, prediction, block.masked, settings.path == "lookahead")
    if settings.of_position and prediction.hidden.shape[2] > 1:
        uniform = block.uniform(counter.PATH), block.uniform(counter.TOKEN)
        heat, share = (
            torch.full_like(block.seed, number, dtype=torch.float64)
            for number in (settings.temperature, settings.top_p)
        )
        return draw_inside(model, prediction, wanted, uniform, heat, share, room)
    # Path first, head second: the path depends on the transitions alone.
    path = dag.sample_path(prediction.transition_logp, block.uniform(counter.PATH))
    place = places(wanted, room)
    some = place.clamp(max=wanted.numel() - 1)  # what spare room holds is not looked at
    hidden, node = at_path(prediction.hidden, path).flatten(0, 1)[some], path.flatten()[some]
    logits = model.head.token_logits(hidden, node)
    uniform = block.uniform(counter.TOKEN).flatten()[some]
    drawn = draw_tokens(logits, uniform, settings.temperature, settings.top_p, settings.nucleus)
    tokens = put(drawn, place, wanted)
    if settings.sampler != "confidence":
        return path, tokens, torch.ones_like(tokens, dtype=torch.float32)
    probability = logits.softmax(-1).gather(-1, drawn[:, None]).squeeze(-1)
    return path, tokens, put(probability, place, wanted)


def choose_best(
    model: Model, prediction: Prediction, masked: Tensor, ahead: bool | Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The best path [B, N] through blocks masked [B, N], its tokens and their probabilities.

    `ahead` (or each row's, [B, 1]): the best node after each node, not the best path of the block.
    """
    best_logp, best_token = best_tokens(model, prediction)
    emission = torch.where(masked[..., None], best_logp, 0.0)
    emission = emission.masked_fill(~prediction.active, -torch.inf)
    graph = emission, prediction.transition_logp
    if isinstance(ahead, Tensor):
        path = torch.where(ahead, dag.lookahead_path(*graph), dag.best_path(*graph)[0])
    else:
        path = dag.lookahead_path(*graph) if ahead else dag.best_path(*graph)[0]
    tokens, logp = (x.gather(2, path[..., None]).squeeze(2) for x in (best_token, best_logp))
    return path, tokens, logp.exp()


def best_tokens(model: Model, prediction: Prediction) -> tuple[Tensor, Tensor]:
    """Log-probability and id of the most probable token of every node [B, N, K], a candidate at a time."""
    best = []
    for k, hidden in enumerate(prediction.hidden.unbind(2)):
        logits = model.head.token_logits(hidden, k)
        best.append((logits.amax(-1) - logits.logsumexp(-1), most_probable(logits)))
    logp, token = zip(*best, strict=True)
    return torch.stack(logp, -1), torch.stack(token, -1)


def composite(emitted: Tensor, transition_logp: Tensor, path: Tensor, weight: float | Tensor) -> Tensor:
    """Confidence [B, N]: (1 - w)·emission + w·mean of the incoming and outgoing transition on the path.

    The end-of-block node is certain. With one node per position there are no transitions to speak of.
    A weight for each row is fp64 [B, 1].
    """
    rest = 1 - weight
    if isinstance(rest, Tensor) and isinstance(weight, Tensor):  # rounded where a number would be
        rest, weight = rest.float(), weight.float()
    if transition_logp.shape[-1] == 1:
        return emitted
    source = torch.cat([torch.zeros_like(path[:, :1]), path[:, :-1]], 1)
    rows = transition_logp.exp().gather(
        2, source[..., None, None].expand(*path.shape, 1, transition_logp.shape[-1])
    )
    incoming = rows.squeeze(2).gather(-1, path[..., None]).squeeze(-1)
    outgoing = torch.cat([incoming[:, 1:], torch.ones_like(incoming[:, :1])], 1)
    return rest * emitted + weight * (incoming + outgoing) / 2


def keep(block: Block, infilled: Tensor, settings: DecodeSettings) -> tuple[Tensor, Tensor]:
    """Which positions a sampler that does not look at the tokens decides now [B, N], at which step [B]."""
    if settings.sampler == "first-hitting":
        return remask.first_hitting(block.masked, infilled, block.seed, block.number, block.step), block.step
    return remask.random(block.masked, infilled, block.reveal, block.step)
