"""A path and its tokens from what the model says of a block: drawn, or the best ones.

B rows, N block size, K candidates, V vocabulary without the mask, D width.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from dadlm import counter, dag
from dadlm.decode.batched_settings import BatchedSettings, Features
from dadlm.decode.chain import best_chain, draw_chains
from dadlm.decode.places import one_of_each_row, put, some_of_all
from dadlm.decode.position_nucleus import draw_filtered, draw_in_position_nucleus
from dadlm.decode.predict import Choice, Prediction, at_path
from dadlm.decode.sample import draw_each, entropy_of, most_probable
from dadlm.decode.samplers import Block
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

    def draw(rows: Tensor | slice) -> Choice:
        # Path first, head second: the path depends on the transitions alone.
        path = _drawn_path(prediction.transition_logp, uniform_path)
        plain = wanted & ~settings.best[:, None] if features.best else wanted
        plain = plain & ~settings.position[:, None] if features.position else plain
        if model.head.edge is not None:
            how = prediction, path, block, plain, uniform_token, settings, features, capacity is not None
            return draw_chains(model, *how)
        one_each = capacity is not None and features.most_kept(wanted.shape[1]) == 1
        draws = _draws(plain, capacity, one_each, prediction, path, block, uniform_token)
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

    def take_best(rows: Tensor | slice) -> Choice:
        both = features.viterbi and features.lookahead
        lookahead = settings.lookahead[rows, None] if both else features.lookahead
        if model.head.edge is not None:
            return best_chain(model, prediction[rows], block.ids[rows], block.masked[rows], lookahead)
        return choose_best(model, prediction[rows], block.masked[rows], lookahead, features.entropy)

    def draw_by_position(rows: Tensor | slice) -> Choice:
        uniform = uniform_path[rows], uniform_token[rows]
        top_k = settings.top_k[rows] if features.top_k else None
        how = settings.temperature[rows], settings.top_p[rows], top_k
        if model.head.edge is not None:
            some = prediction[rows], block.ids[rows], block.masked[rows], wanted[rows]
            return draw_filtered(model, *some, uniform, *how)
        seen = features.sees_tokens
        return draw_in_position_nucleus(model, prediction[rows], wanted[rows], uniform, *how, capacity, seen)

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


def _in_one_launch(wanted: Tensor, capacity: int | None) -> bool:
    if capacity is None or wanted.shape[1] == 1 or not kernels.takes(wanted):
        return False
    from dadlm.decode.kernels.tokens import MOST_PLACES

    return wanted.numel() <= MOST_PLACES


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
    wanted: Tensor,
    capacity: int | None,
    one_each: bool,
    prediction: Prediction,
    path: Tensor,
    block: Block,
    uniform: Tensor,
) -> _Draws:
    """The draws of the wanted positions [B, N], at most one in each row if `one_each`."""
    if capacity is not None and _in_one_launch(wanted, capacity):
        from dadlm.decode.kernels.tokens import take

        taken = take(wanted, capacity, prediction.hidden, path, block.counters, counter.TOKEN)
        states = taken.row, taken.node, taken.hidden, taken.uniform
        return _Draws(*states, lambda drawn: put(drawn, taken.place, wanted))
    take_some, row, put_some = one_of_each_row(wanted) if one_each else some_of_all(wanted, capacity)
    hidden = take_some(at_path(prediction.hidden, path))
    return _Draws(row, take_some(path), hidden, take_some(uniform), put_some)


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
