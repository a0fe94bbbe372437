"""Tokens of models with token edges: from left to right, since each depends on the one before it.

A pass draws every run of masked positions from the last known token up to the last position that is kept;
what is drawn on the way and not kept is forgotten.

B rows, N block size, V vocabulary without the mask, D width.
"""

import torch
from torch import Tensor

from dadlm.decode.batched_settings import BatchedSettings, Features
from dadlm.decode.places import places
from dadlm.decode.predict import Choice, Prediction, at_path
from dadlm.decode.sample import LONGEST, draw_each, entropy_of
from dadlm.decode.samplers import Block
from dadlm.decode.shortlist import IN_ONE_LAUNCH, MOST_LOGITS, Shortlist, Vocabulary
from dadlm.model import Model
from dadlm.model.edge import Bilinear, Left, on_the_way
from dadlm.model.emission import Head
from dadlm.model.kernels import takes


def left_at(tokens: Tensor, masked: Tensor, before: Tensor, i: int, mask_id: int) -> Left:
    """The left neighbours [B] of position i of blocks [B, N]."""
    if i == 0:
        return Left(before, torch.zeros_like(masked[:, 0]))
    second = None
    if i > 1:
        second = tokens[:, i - 2].masked_fill(~(masked[:, i - 2] & masked[:, i - 1]), mask_id)
    return Left(tokens[:, i - 1], masked[:, i - 1], second)


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
        left = left_at(tokens, block.masked, before, i, head.mask_id).map(lambda x, rows=rows: x[rows])
        place = candidates.place[rows, i]
        logits, ids = candidates.score(head, hidden[rows, i], path[rows, i], left, place)
        drawn = draw_each(logits, uniform[rows, i], settings, rows, cold, top_k)
        said = logits.softmax(-1).gather(-1, drawn[:, None]).squeeze(-1)
        if ids is not None:
            drawn = ids.gather(1, drawn[:, None]).squeeze(1)
        for known, new in ((tokens, drawn), (probability, said), (entropy, entropy_of(logits))):
            known[rows, i] = torch.where(needed[rows, i], new, known[rows, i])
    return tokens, probability, entropy
