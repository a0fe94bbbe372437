"""A path and its tokens from what the model says of a block: drawn, or the best ones.

B rows, N block size, K candidates, V vocabulary without the mask, D width.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from dadlm import counter, dag
from dadlm.decode.batched_settings import BatchedSettings, Features
from dadlm.decode.chain import draw_chains
from dadlm.decode.places import one_of_each_row, put, some_of_all
from dadlm.decode.position_nucleus import draw_filtered, draw_in_position_nucleus
from dadlm.decode.predict import Choice, Prediction, at_path
from dadlm.decode.sample import draw_each, entropy_of, most_probable
from dadlm.decode.samplers import Block
from dadlm.decode.search import best_chain
from dadlm.model import Model, kernels


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
    in_one_launch = _in_one_launch(wanted, capacity)  # then with the states that they are for
    if features.drawn or features.position:
        if features.position or model.head.edge is not None or not in_one_launch:
            uniform_token = block.uniform(counter.TOKEN)
        if prediction.transition_logp.shape[-1] > 1:
            uniform_path = block.uniform(counter.PATH)
    uniform = uniform_path, uniform_token
    asked = _Asked(model, prediction, block, wanted, settings, features, capacity, in_one_launch, *uniform)
    ways: list[tuple[bool, Tensor, Callable[[_Asked, Tensor | slice], Choice]]] = [
        (features.drawn, settings.best, _draw),
        (features.best, settings.best, _take_best),
        (features.position, settings.position, _draw_by_position),
    ]
    (_, _, first), *others = [way for way in ways if way[0]]
    found = first(asked, slice(None))
    for _, which, way in others:
        found = _replaced(found, which, capacity is not None, partial(way, asked))
    return found


def _in_one_launch(wanted: Tensor, capacity: int | None) -> bool:
    if capacity is None or wanted.shape[1] == 1 or not kernels.takes(wanted):
        return False
    from dadlm.decode.kernels.tokens import MOST_PLACES

    return wanted.numel() <= MOST_PLACES


class _Asked(NamedTuple):
    """Of `choose`."""

    model: Model
    prediction: Prediction
    block: Block
    wanted: Tensor
    settings: BatchedSettings
    features: Features
    capacity: int | None
    in_one_launch: bool
    """Whether states and random numbers of what is drawn are found in one launch."""
    uniform_path: Tensor
    uniform_token: Tensor
    """[B, N], where they are drawn and needed."""


def _draw(asked: _Asked, rows: Tensor | slice) -> Choice:
    """Of all rows: it comes first."""
    model, prediction, block, wanted, settings, features, capacity, *_ = asked
    # Path first, head second: the path depends on the transitions alone.
    path = _drawn_path(prediction.transition_logp, asked.uniform_path)
    plain = wanted & ~settings.best[:, None] if features.best else wanted
    plain = plain & ~settings.position[:, None] if features.position else plain
    if model.head.edge is not None:
        how = asked.uniform_token, settings, features, capacity is not None
        return draw_chains(model, prediction, path, block, plain, *how)
    if capacity is not None and asked.in_one_launch:
        draws = _draws_in_one_launch(prediction.hidden, path, plain, capacity, block)
    else:
        one_each = capacity is not None and features.most_kept(wanted.shape[1]) == 1
        draws = _draws(prediction.hidden, path, plain, capacity, one_each, asked.uniform_token)
    row, node, hidden, uniform, put_back = draws
    logits = model.head.token_logits(hidden, node)
    drawn = draw_each(logits, uniform, settings, row, features.cold, features.top_k)
    tokens = put_back(drawn)
    if not features.sees_tokens:
        nothing = torch.zeros_like(wanted, dtype=torch.float32)
        return Choice(path, tokens, nothing, nothing)
    probability = put_back(logits.softmax(-1).gather(-1, drawn[:, None]).squeeze(-1))
    entropy = put_back(entropy_of(logits)) if features.entropy else probability
    return Choice(path, tokens, probability, entropy)


def _take_best(asked: _Asked, rows: Tensor | slice) -> Choice:
    model, prediction, block, _, settings, features, *_ = asked
    both = features.viterbi and features.lookahead
    lookahead = settings.lookahead[rows, None] if both else features.lookahead
    if model.head.edge is not None:
        return best_chain(model, prediction[rows], block.ids[rows], block.masked[rows], lookahead)
    return choose_best(model, prediction[rows], block.masked[rows], lookahead, features.entropy)


def _draw_by_position(asked: _Asked, rows: Tensor | slice) -> Choice:
    model, prediction, block, wanted, settings, features, capacity, *_ = asked
    uniform = asked.uniform_path[rows], asked.uniform_token[rows]
    top_k = settings.top_k[rows] if features.top_k else None
    how = settings.temperature[rows], settings.top_p[rows], top_k
    if model.head.edge is not None:
        some = prediction[rows], block.ids[rows], block.masked[rows], wanted[rows]
        return draw_filtered(model, *some, uniform, *how)
    seen = features.sees_tokens
    return draw_in_position_nucleus(model, prediction[rows], wanted[rows], uniform, *how, capacity, seen)


class _Draws(NamedTuple):
    """What is drawn, [n] each, spare capacity included."""

    row: Tensor | slice
    node: Tensor
    hidden: Tensor
    """[n, D]."""
    uniform: Tensor
    put: Callable[[Tensor], Tensor]
    """Values [n] at their positions [B, N]."""


def _draws(
    hidden: Tensor, path: Tensor, wanted: Tensor, capacity: int | None, one_each: bool, uniform: Tensor
) -> _Draws:
    """The draws of the wanted positions [B, N], at most one in each row if `one_each`."""
    take_some, row, put_some = one_of_each_row(wanted) if one_each else some_of_all(wanted, capacity)
    return _Draws(row, take_some(path), take_some(at_path(hidden, path)), take_some(uniform), put_some)


def _draws_in_one_launch(hidden: Tensor, path: Tensor, wanted: Tensor, capacity: int, block: Block) -> _Draws:
    """The same, random numbers included."""
    from dadlm.decode.kernels.tokens import take

    taken = take(wanted, capacity, hidden, path, block.counters, counter.TOKEN)
    states = taken.row, taken.node, taken.hidden, taken.uniform
    return _Draws(*states, lambda drawn: put(drawn, taken.place, wanted))


def _drawn_path(transition_logp: Tensor, uniform: Tensor) -> Tensor:
    """[B, N]; with one node at every position there is one path."""
    if transition_logp.shape[-1] > 1:
        return dag.sample_path(transition_logp, uniform)
    return torch.zeros(transition_logp.shape[:2], device=uniform.device, dtype=torch.int64)


def _replaced(found: Choice, which: Tensor, fixed: bool, way: Callable[[Tensor | slice], Choice]) -> Choice:
    """What was found, but for rows `which` [B] as this way chooses.

    All their nodes go through the vocabulary head: the other rows are spared that unless shapes are fixed.
    """
    rows = torch.arange(len(which), device=which.device) if fixed else which.nonzero().squeeze(1)
    return Choice(
        *(
            old.index_copy(0, rows, torch.where(which[rows, None], new, old[rows]))
            for old, new in zip(found, way(rows), strict=True)
        )
    )


def choose_best(
    model: Model, prediction: Prediction, masked: Tensor, lookahead: bool | Tensor, entropy: bool = False
) -> Choice:
    """The best path [B, N] through blocks masked [B, N], its tokens and their probabilities.

    `lookahead` (or each row's, [B, 1]): the best node after each node, not the best path of the block.
    `entropy`: that of the path's nodes is wanted, for which they go through the head once more.
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
    probability = logp.exp()
    if not entropy:
        return Choice(path, tokens, probability, probability)
    return Choice(
        path, tokens, probability, entropy_of(model.head.token_logits(at_path(prediction.hidden, path), path))
    )


def best_tokens(model: Model, prediction: Prediction) -> tuple[Tensor, Tensor]:
    """Log-probability and id of the most probable token of every node [B, N, K], a candidate at a time."""
    best = []
    for k, hidden in enumerate(prediction.hidden.unbind(2)):
        logits = model.head.token_logits(hidden, k)
        best.append((logits.amax(-1) - logits.logsumexp(-1), most_probable(logits)))
    logp, token = zip(*best, strict=True)
    return torch.stack(logp, -1), torch.stack(token, -1)
