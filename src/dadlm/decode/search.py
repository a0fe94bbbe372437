"""The best path and tokens of blocks of models with token edges: a beam over what the next token depends on.

B rows, N block size, K candidates, V vocabulary without the mask, M states of a beam.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dadlm.decode.predict import Choice, Prediction, at_path
from dadlm.decode.sample import entropy_of
from dadlm.model import Model
from dadlm.model.edge import Left, left_of

_BEAM = 32
_AT_ONCE = 1 << 26  # log-probabilities that a search holds


def best_chain(
    model: Model, prediction: Prediction, ids: Tensor, masked: Tensor, lookahead: bool | Tensor
) -> Choice:
    """The most probable path and tokens of blocks ids [B, N], masked where `masked`; with `lookahead` (or
    each row's, [B, 1]) the best step after each step, whatever follows."""
    graph = model, prediction, ids, masked
    if not isinstance(lookahead, Tensor):
        return search(*graph, beam=1 if lookahead else _BEAM)
    both = zip(search(*graph, beam=1), search(*graph), strict=True)
    return Choice(*(torch.where(lookahead, near, far) for near, far in both))


class _States(NamedTuple):
    """Of a beam at one place, [B, M] each."""

    score: Tensor
    source: Tensor
    """The state of the place before that each comes from."""
    node: Tensor
    token: Tensor
    second: Tensor
    """The token before it, where both are open; else the mask."""


def search(model: Model, prediction: Prediction, ids: Tensor, masked: Tensor, beam: int = _BEAM) -> Choice:
    """A beam over (node, token): exact where it holds all of them. With edges of second order a state is all
    that was chosen since the last known token."""
    before, edge = prediction.before, model.head.edge
    assert before is not None and edge is not None
    B, N, K, _ = prediction.hidden.shape
    device, V = before.device, model.config.mask_id
    rows = max(1, _AT_ONCE // (max(beam, N) * K * V))
    if rows < B:  # what a row takes is known, so many rows must not
        parts = [slice(first, first + rows) for first in range(0, B, rows)]
        found = [search(model, prediction[part], ids[part], masked[part], beam) for part in parts]
        return Choice(*map(torch.cat, zip(*found, strict=True)))
    head, candidate = model.head, torch.arange(K, device=device)
    columns = head.edge_columns()
    inputs, base = head.inputs(prediction.hidden, candidate), head.token_logits(prediction.hidden, candidate)
    nothing = torch.zeros_like(before)[:, None]
    last = _States(nothing.float(), nothing, nothing, before[:, None], nothing + V)
    steps = list[_States]()
    for i in range(N):
        M = last.node.shape[1]
        link = prediction.transition_logp[:, i].gather(1, last.node[..., None].expand(B, M, K))
        reached = last.score[..., None] + link  # [B, M, K]
        is_open, known = masked[:, i - 1, None] & (i > 0), ~masked[:, i]
        logp = None
        if device.type != "cpu" or masked[:, i].any():  # a device would have to be waited for
            # Of a node's logits [V] all but a product of rank R is the same after every state.
            left = Left(last.token[..., None], is_open[..., None].expand(B, M, 1), last.second[..., None])
            factors = edge.factors(inputs[:, i, None], left)
            logp = (F.linear(factors, columns)[..., :V] + base[:, i, None]).log_softmax(-1)  # [B, M, K, V]
        here, apart = ids[:, i].clamp(max=V - 1), edge.second is not None
        last = _extended(last, reached, logp, here, known, beam, apart)
        last = last._replace(second=torch.where(is_open & ~known[:, None], last.second, V))
        steps.append(last)
    return _traced(model, prediction, steps, masked)


def _extended(
    last: _States, reached: Tensor, logp: Tensor | None, here: Tensor, known: Tensor, beam: int, apart: bool
) -> _States:
    """The best states of the next place, whose nodes were `reached` [B, M, K] and say logp [B, M, K, V] of
    the tokens there, or whose token is the one that is `here` [B] where it is known [B] (everywhere without
    logp). A (node, token) that several states lead to is one state unless they stay `apart`."""
    best, source = reached.max(1)  # [B, K]
    if logp is None:
        score, node = _highest(best, beam)
        token, source = here[:, None].expand_as(node), source.gather(1, node)
        return _States(score, source, node, token, last.token.gather(1, source))
    (B, M, K, V), known = logp.shape, known[:, None, None, None]
    every, which = logp.add_(reached[..., None]), torch.arange(M, device=logp.device)[:, None, None]
    if not apart:
        every, which = every.max(1, keepdim=True)
    # A known token ends what was apart: the best way to each of its nodes is one state.
    certain = torch.full((B, V), -torch.inf, device=logp.device).scatter(1, here[:, None], 0.0)
    certain = (best[..., None] + certain[:, None])[:, None].expand_as(every)
    first = torch.arange(every.shape[1], device=logp.device)[:, None, None] == 0
    every = torch.where(known, certain.masked_fill(~first, -torch.inf), every)
    score, state = _highest(every.flatten(1), beam)
    source = torch.where(known, source[:, None, :, None], which).expand_as(every).flatten(1).gather(1, state)
    return _States(score, source, state // V % K, state % V, last.token.gather(1, source))


def _highest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """How a stable sort of values [B, n] in descending order begins, without sorting the rest."""
    n, count = values.shape[1], min(count, values.shape[1])
    top, index = values.topk(count)
    is_least = values == top[:, -1:]  # which of these `topk` takes is not known
    first = torch.where(is_least, torch.arange(n, device=values.device), n).topk(count, largest=False).values
    index = torch.cat([torch.where(top > top[:, -1:], index, n), first], 1).sort(1).values
    order = F.pad(values, (0, 1), value=-torch.inf).gather(1, index).sort(dim=1, descending=True, stable=True)
    return order.values[:, :count], index.gather(1, order.indices[:, :count])


def _traced(model: Model, prediction: Prediction, found: list[_States], masked: Tensor) -> Choice:
    """The choice that ends in the first state of the last beam; each state knows which one it comes from."""
    assert prediction.before is not None
    state, steps = torch.zeros_like(prediction.before)[:, None], list[tuple[Tensor, Tensor]]()
    for one in reversed(found):
        steps.append((one.node.gather(1, state).squeeze(1), one.token.gather(1, state).squeeze(1)))
        state = one.source.gather(1, state)
    path, tokens = (torch.stack(x, 1) for x in zip(*steps[::-1], strict=True))
    left = left_of(tokens, masked, prediction.before, model.config.mask_id)
    logp = model.head.token_logits(at_path(prediction.hidden, path), path, left).log_softmax(-1)
    said = logp.gather(2, tokens[..., None]).squeeze(2).exp()
    return Choice(path, tokens, said * masked, entropy_of(logp) * masked)
