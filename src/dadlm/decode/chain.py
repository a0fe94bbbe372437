"""Tokens of models with token edges: from left to right, since each depends on the one before it.

A pass draws every run of masked positions from the last known token up to the last position that is kept;
what is drawn on the way and not kept is forgotten.

B rows, N block size, K candidates, V vocabulary without the mask, D width, M states of a beam.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from dadlm.decode.batched_settings import BatchedSettings, Features
from dadlm.decode.places import places
from dadlm.decode.predict import Choice, Prediction, at_path
from dadlm.decode.sample import LONGEST, draw_each, entropy_of
from dadlm.decode.samplers import Block
from dadlm.decode.shortlist import IN_ONE_LAUNCH, MOST_LOGITS, Shortlist, Vocabulary
from dadlm.model import Model
from dadlm.model.edge import Bilinear, Left, left_of, on_the_way
from dadlm.model.emission import Head
from dadlm.model.kernels import takes

_BEAM = 32
_AT_ONCE = 1 << 26  # log-probabilities that a search holds


def left_at(tokens: Tensor, masked: Tensor, before: Tensor, i: int) -> Left:
    """The left neighbours [B] of position i of blocks [B, N]."""
    return (
        Left(before, torch.zeros_like(masked[:, 0])) if i == 0 else Left(tokens[:, i - 1], masked[:, i - 1])
    )


def draw_chains(
    model: Model,
    prediction: Prediction,
    path: Tensor,
    block: Block,
    wanted: Tensor,
    uniform: Tensor,
    settings: BatchedSettings,
    features: Features,
    fixed: bool,
) -> Choice:
    """`draw_chain` for rows that draw from the whole vocabulary and for rows that draw from shortlists."""
    listed = settings.shortlist[:, None] > 0
    graph, how = (
        (model, prediction, path, block),
        (uniform, settings, features.cold, fixed, features.sees_tokens),
    )
    k = features.top_k
    if not features.shortlist:
        return draw_chain(*graph, wanted, *how, top_k=k)
    found = draw_chain(*graph, wanted & listed, *how, shortlist=features.shortlist, top_k=k)
    if not features.vocabulary:
        return found
    both = zip(found, draw_chain(*graph, wanted & ~listed, *how, top_k=k), strict=True)
    return Choice(*(torch.where(listed, short, full) for short, full in both))


def in_one_launch(hidden: Tensor, shortlist: int) -> bool:
    """Whether the kernel takes these states and lists that long."""
    return takes(hidden) and shortlist <= IN_ONE_LAUNCH


def by_kernels(hidden: Tensor, vocabulary: int) -> bool:
    """Whether there are kernels for these states [B, N, D] and the whole vocabulary; they need the logits of
    all places at once."""
    fits = hidden.shape[:2].numel() * vocabulary <= MOST_LOGITS
    return takes(hidden) and vocabulary <= LONGEST and fits


def draw_chain(
    model: Model,
    prediction: Prediction,
    path: Tensor,
    block: Block,
    wanted: Tensor,
    uniform: Tensor,
    settings: BatchedSettings,
    cold: bool,
    fixed: bool,
    looked_at: bool = True,
    shortlist: int = 0,
    top_k: int = 0,
) -> Choice:
    """Draw the tokens of a path [B, N] where `wanted` [B, N], and on the way there.

    `fixed`: shapes must not depend on the data; else only what is needed goes through the head. `looked_at`:
    whether a sampler sees probabilities and entropies. `shortlist`: the longest that a row asks for, if these
    rows draw from shortlists and not from the vocabulary. `top_k`: the largest of these rows, which the
    kernels do not know.
    """
    needed, before = on_the_way(block.masked, wanted), prediction.before
    assert before is not None
    head, hidden = model.head, at_path(prediction.hidden, path)
    launched = head.edge if isinstance(head.edge, Bilinear) and not top_k else None  # by kernels
    if shortlist:
        launched = launched if in_one_launch(hidden, shortlist) else None
    elif not by_kernels(hidden, model.config.mask_id):
        launched = None
    rows = block, before, needed, uniform, settings
    if launched is not None and not shortlist:
        from dadlm.decode.kernels.chain_whole import draw as draw_whole

        base, columns = head.token_logits(hidden, path), head.edge_columns()
        gain = launched.gain(head.inputs(hidden, path))
        return Choice(path, *draw_whole(base, columns, launched, gain, *rows, looked_at))
    everywhere = fixed or launched is not None
    at = torch.arange(path.numel(), device=path.device) if everywhere else places(needed, None)
    listed = None
    if shortlist:
        listed = Shortlist.of(head, hidden, path, settings.shortlist, shortlist, at)
    if launched is None or listed is None:
        candidates = listed or Vocabulary.of(head, hidden, path, at)
        return Choice(path, *_place_by_place(head, hidden, path, candidates, *rows, cold, fixed, top_k))
    from dadlm.decode.kernels.chain import draw

    assert head.successors is not None
    gain = launched.gain(head.inputs(hidden, path))
    return Choice(path, *draw(listed, head.successors, launched, gain, *rows))


def _place_by_place(
    head: Head,
    hidden: Tensor,
    path: Tensor,
    candidates: Shortlist | Vocabulary,
    block: Block,
    before: Tensor,
    needed: Tensor,
    uniform: Tensor,
    settings: BatchedSettings,
    cold: bool,
    fixed: bool,
    top_k: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """The torch twin of the kernels: tokens, probabilities and entropies [B, N]."""
    tokens, (probability, entropy) = block.ids.clone(), torch.zeros(2, *path.shape, device=path.device)
    rows = torch.arange(len(path), device=path.device)
    for i in range(path.shape[1]):
        if not fixed:
            rows = needed[:, i].nonzero().squeeze(1)
        if not len(rows):
            continue
        left = Left(*(x[rows] for x in left_at(tokens, block.masked, before, i)))
        place = candidates.place[rows, i]
        logits, ids = candidates.score(head, hidden[rows, i], path[rows, i], left, place)
        drawn = draw_each(logits, uniform[rows, i], settings, rows, cold, top_k)
        said = logits.softmax(-1).gather(-1, drawn[:, None]).squeeze(-1)
        if ids is not None:
            drawn = ids.gather(1, drawn[:, None]).squeeze(1)
        for known, new in ((tokens, drawn), (probability, said), (entropy, entropy_of(logits))):
            known[rows, i] = torch.where(needed[rows, i], new, known[rows, i])
    return tokens, probability, entropy


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


def search(model: Model, prediction: Prediction, ids: Tensor, masked: Tensor, beam: int = _BEAM) -> Choice:
    """A beam over (node, token): exact where it holds all of them."""
    before, edge = prediction.before, model.head.edge
    assert before is not None and edge is not None
    B, N, K, _ = prediction.hidden.shape
    device, V = before.device, model.config.mask_id
    rows = max(1, _AT_ONCE // (max(beam, N) * K * V))
    if rows < B:  # what a row takes is known, so many rows must not
        parts = [slice(first, first + rows) for first in range(0, B, rows)]
        found = [search(model, prediction[part], ids[part], masked[part], beam) for part in parts]
        return Choice(*map(torch.cat, zip(*found, strict=True)))
    head, node, token = model.head, torch.zeros_like(before)[:, None], before[:, None]  # [B, M]
    score = torch.zeros(B, 1, device=device)
    candidate, columns = torch.arange(K, device=device), head.edge_columns()
    inputs, base = head.inputs(prediction.hidden, candidate), head.token_logits(prediction.hidden, candidate)
    found = list[tuple[Tensor, Tensor, Tensor]]()
    for i in range(N):
        M, known = node.shape[1], ~masked[:, i, None, None]
        link = prediction.transition_logp[:, i].gather(1, node[..., None].expand(B, M, K))
        reached, here = score[..., None] + link, ids[:, i].clamp(max=V - 1)
        best, source = reached.max(1)  # [B, K]
        if device.type == "cpu" and not masked[:, i].any():  # a device would have to be waited for
            score, node = _highest(best, beam)
            source, token = source.gather(1, node), here[:, None].expand_as(node)
        else:
            # Of a node's logits [V] all but a product of rank R is the same after every state.
            is_open = masked[:, i - 1, None, None] if i else torch.zeros_like(known)
            factors = edge.factors(inputs[:, i, None], Left(token[..., None], is_open.expand(B, M, 1)))
            logp = (F.linear(factors, columns)[..., :V] + base[:, i, None]).log_softmax(-1)  # [B, M, K, V]
            every, which = logp.add_(reached[..., None]).max(1)  # [B, K, V]
            anchor = torch.full((B, V), -torch.inf, device=device).scatter(1, here[:, None], 0.0)
            every = torch.where(known, best[..., None] + anchor[:, None], every)
            score, state = _highest(every.flatten(1), beam)
            source = torch.where(known, source[..., None], which).flatten(1).gather(1, state)
            node, token = state // V, state % V
        found.append((source, node, token))
    return _traced(model, prediction, found, masked)


def _highest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """How a stable sort of values [B, n] in descending order begins, without sorting the rest."""
    n, count = values.shape[1], min(count, values.shape[1])
    top, index = values.topk(count)
    is_least = values == top[:, -1:]  # which of these `topk` takes is not known
    first = torch.where(is_least, torch.arange(n, device=values.device), n).topk(count, largest=False).values
    index = torch.cat([torch.where(top > top[:, -1:], index, n), first], 1).sort(1).values
    order = F.pad(values, (0, 1), value=-torch.inf).gather(1, index).sort(dim=1, descending=True, stable=True)
    return order.values[:, :count], index.gather(1, order.indices[:, :count])


def _traced(
    model: Model, prediction: Prediction, found: list[tuple[Tensor, Tensor, Tensor]], masked: Tensor
) -> Choice:
    """The choice that ends in the first state of the last beam; each state knows which one it comes from."""
    assert prediction.before is not None
    state, steps = torch.zeros_like(prediction.before)[:, None], list[tuple[Tensor, Tensor]]()
    for source, node, token in reversed(found):
        steps.append((node.gather(1, state).squeeze(1), token.gather(1, state).squeeze(1)))
        state = source.gather(1, state)
    path, tokens = (torch.stack(x, 1) for x in zip(*steps[::-1], strict=True))
    left = left_of(tokens, masked, prediction.before)
    logp = model.head.token_logits(at_path(prediction.hidden, path), path, left).log_softmax(-1)
    said = logp.gather(2, tokens[..., None]).squeeze(2).exp()
    return Choice(path, tokens, said * masked, entropy_of(logp) * masked)
