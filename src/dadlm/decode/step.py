"""One denoising step of a block: the paper's figure as a function.

The settings are tensors with a value for each row, so one step serves rows of any settings; what none of the
rows asks for is left out (`Features`). Nothing waits for the device or depends on how many tokens are masked,
so that on CUDA a whole step can be captured once and replayed (`engine`).

B rows, N block size, K candidates, V vocabulary without the mask, D width.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dadlm import counter, dag
from dadlm.decode.batched_settings import BatchedSettings, Features
from dadlm.decode.infill import short_gaps
from dadlm.decode.places import places, put
from dadlm.decode.position_nucleus import draw_in_position_nucleus
from dadlm.decode.predict import Prediction, at_path
from dadlm.decode.sample import draw_each, most_probable
from dadlm.decode.samplers import SAMPLERS, Block, Proposal
from dadlm.model import Model

Choice = tuple[Tensor, Tensor, Tensor]
"""Paths, tokens and their untempered probabilities, [B, N] each."""


@dataclass(frozen=True)
class Step:
    """What happened in one step, valid until the next one is made."""

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
    # Where the sampler looks at the tokens, all masked positions are drawn; else only what is kept.
    path, tokens, probability = choose(model, prediction, block, kept, settings, features, capacity)
    padded = settings.padded[:, None] if features.padded else None
    if features.sees_tokens:
        confidence = composite(
            probability, prediction.transition_logp, path, settings.transition_weight[:, None]
        )
        ending = None if padded is None else block.ends & (tokens == model.config.eot_id) & padded
        kept, at = keep(block, infilled, settings, features, Proposal(confidence, ending))
    ids = torch.where(kept, tokens, block.ids)
    ids, kept = settle(block, ids, kept, model.config.eot_id, padded)
    after = replace(block, ids=ids, masked=block.masked & ~kept, step=at + 1)
    return after, Step(block, prediction, path, kept, infilled, at, ids)


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


def settle(
    block: Block, ids: Tensor, kept: Tensor, eot_id: int, padded: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Tokens and what is decided [B, N], the rest of the block included where nothing more is asked for.

    That is where all wanted positions are decided, or where end-of-text stands and nothing before it is open:
    while something is, what follows the end-of-text is context for it and has to be denoised, unless that
    is known to be end-of-text too (`padded` [B, 1]).
    """
    masked = block.masked & ~kept
    end = block.ends & (ids == eot_id)
    over = (end & (masked.cumsum(1) == 0)).any(1, keepdim=True) | ~(masked & block.wanted).any(
        1, keepdim=True
    )
    if padded is not None:
        over = over | (((end & ~masked).cumsum(1) > 0) & padded)
    return ids.masked_fill(masked & over, eot_id), kept | (masked & over)


def choose(
    model: Model,
    prediction: Prediction,
    block: Block,
    wanted: Tensor,
    settings: BatchedSettings,
    features: Features,
    capacity: int | None = None,
) -> Choice:
    """Paths and, where `wanted` [B, N], tokens and probabilities; the latter for samplers that see tokens."""
    uniform_path = uniform_token = block.seed  # not drawn where no row draws
    if features.drawn or features.position:
        uniform_path, uniform_token = block.uniform(counter.PATH), block.uniform(counter.TOKEN)

    def draw(rows: Tensor | slice) -> Choice:
        # Path first, head second: the path depends on the transitions alone.
        path = dag.sample_path(prediction.transition_logp, uniform_path)
        plain = wanted & ~settings.best[:, None] if features.best else wanted
        plain = plain & ~settings.position[:, None] if features.position else plain
        place = places(plain, capacity)
        some = place.clamp(max=wanted.numel() - 1)  # what spare capacity holds is not looked at
        hidden, node, row = (
            at_path(prediction.hidden, path).flatten(0, 1)[some],
            path.flatten()[some],
            some // wanted.shape[1],
        )
        logits = model.head.token_logits(hidden, node)
        drawn = draw_each(logits, uniform_token.flatten()[some], settings, row, features.cold)
        tokens = put(drawn, place, wanted)
        if not features.sees_tokens:
            return path, tokens, torch.zeros_like(wanted, dtype=torch.float32)
        probability = logits.softmax(-1).gather(-1, drawn[:, None]).squeeze(-1)
        return path, tokens, put(probability, place, wanted)

    def take_best(rows: Tensor | slice) -> Choice:
        both = features.viterbi and features.lookahead
        lookahead = settings.lookahead[rows, None] if both else features.lookahead
        return choose_best(model, prediction[rows], block.masked[rows], lookahead)

    def draw_by_position(rows: Tensor | slice) -> Choice:
        uniform = uniform_path[rows], uniform_token[rows]
        how = settings.temperature[rows], settings.top_p[rows]
        return draw_in_position_nucleus(model, prediction[rows], wanted[rows], uniform, *how, capacity)

    ways: list[tuple[bool, Tensor, Callable[[Tensor | slice], Choice]]] = [
        (features.drawn, settings.best, draw),
        (features.best, settings.best, take_best),
        (features.position, settings.position, draw_by_position),
    ]
    (_, _, first), *others = [way for way in ways if way[0]]
    found = first(slice(None))
    for _, which, way in others:
        found = _replaced(found, which, capacity is not None, way)
    return found


def _replaced(found: Choice, which: Tensor, fixed: bool, way: Callable[[Tensor | slice], Choice]) -> Choice:
    """What was found, but for rows `which` [B] as this way chooses.

    All their nodes go through the vocabulary head: the other rows are spared that unless shapes are fixed.
    """
    rows = torch.arange(len(which), device=which.device) if fixed else which.nonzero().squeeze(1)
    path, tokens, probability = (
        old.index_copy(0, rows, torch.where(which[rows, None], new, old[rows]))
        for old, new in zip(found, way(rows), strict=True)
    )
    return path, tokens, probability


def choose_best(model: Model, prediction: Prediction, masked: Tensor, lookahead: bool | Tensor) -> Choice:
    """The best path [B, N] through blocks masked [B, N], its tokens and their probabilities.

    `lookahead` (or each row's, [B, 1]): the best node after each node, not the best path of the block.
    """
    best_logp, best_token = best_tokens(model, prediction)
    emission = torch.where(masked[..., None], best_logp, 0.0)
    emission = emission.masked_fill(~prediction.active, -torch.inf)
    graph = emission, prediction.transition_logp
    if isinstance(lookahead, Tensor):
        path = torch.where(lookahead, dag.lookahead_path(*graph), dag.best_path(*graph)[0])
    else:
        path = dag.lookahead_path(*graph) if lookahead else dag.best_path(*graph)[0]
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
