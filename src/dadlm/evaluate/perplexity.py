"""A perplexity for every family: exact where there is one order of the tokens (AR), else a valid bound.

First-hitting decoding reveals a block's tokens one by one in a random order. The mean of -log p(x | order)
over all orders bounds -log p(x) from above. With n maskable positions it is the mean over m = 1..n and over
the sets of m masked ones of (n/m)·Σ -log p(token | the rest), each token through its own marginal. Drawing m
evenly is the low-variance form; the paper's draws a time t and weighs by 1/t, with the same mean.

R rows, B rows of a batch, L tokens of a row, G blocks, C strata.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dadlm import counter
from dadlm.errors import ConfigError
from dadlm.evaluate.intervals import FEW, bootstrap
from dadlm.evaluate.scores import block_of, finite, score_batch
from dadlm.evaluate.subject import describe
from dadlm.evaluate.text import about, check_length, documents_of, pick
from dadlm.evaluate.work import Work
from dadlm.model import Mode, Model, eval_mode, in_mode
from dadlm.noise import Noise, sample_time
from dadlm.objective import losses
from dadlm.tokens import Rows

EXACT = "the exact likelihood given the first token of each row, with temperature 1 and top_p 1"
BOUND = (
    "an upper bound on the negative log-likelihood of first-hitting decoding with sampled paths, "
    "temperature 1, top_p 1 and no infilling, given the first token of each row; "
    "it says nothing of other decoding settings"
)
_STEP = -1  # the t-sampled form counts its draws from 0: the two forms share no random number


def perplexity(
    model: Model,
    rows: Rows,
    *,
    count: int | None = None,
    draws: int = 1,
    seed: int = 0,
    batch_size: int = 16,
    out: str | Path | None = None,
    quiet: bool = True,
    data: Mapping[str, Any] | None = None,
    name: str = "",
    mode: Mode = "diffusion",
) -> dict[str, Any]:
    """Nats per token and perplexity of `count` rows from all over the text, position 0 of each left out.

    `draws` masks are drawn for each row and form. `data` is what `rows_of` says of the rows. In mode ar a
    model with `causal_context` is scored exactly, as the AR model that it is too.
    """
    model = in_mode(model, mode)
    check_length(model, rows.context)
    if draws < 1:
        raise ConfigError(f"draws must be at least 1, got {draws}")
    index = pick(rows, count, seed)
    subject = {
        "model": describe(model, name),
        "data": about(rows, (data or {}).get("source"), index),
        "seed": seed,
        "count": len(index),
        "draws": draws,
    }
    keys = [str(place) for place in range(len(index))]  # masks are spread over the rows picked, not over all
    with Work("perplexity", subject, out, quiet) as work:
        for batch in work.batches(keys, batch_size, "perplexity"):
            place = torch.tensor([int(key) for key in batch])
            ids = rows.batch([index[int(key)] for key in batch])
            with eval_mode(model), torch.no_grad():
                work.add(zip(batch, _pieces(model, ids, place, len(index), draws, seed), strict=True))
        groups = documents_of(rows, model.config.eot_id)[index]
        is_bound = block_of(model, rows.context) > 1
        result = {
            "tokens": len(index) * (rows.context - 1),
            "groups": len(groups.unique()),
            "is_bound": is_bound,
            "note": BOUND if is_bound else EXACT,
        }
        return work.finish(result | _summary(work.values(keys), groups, rows.context - 1))


def _summary(pieces: list[dict[str, Any]], groups: Tensor, tokens: int) -> dict[str, Any]:
    """Intervals from the pieces of all rows, each of so many tokens."""
    nats, blocks, by_time = (
        torch.tensor([piece[name] for piece in pieces], dtype=torch.float64)
        for name in ("nats", "blocks", "by_time")
    )
    even = level(nats, blocks)
    nll, bits, time_nll, agree = asdict(bootstrap(even / tokens, groups)), None, None, None
    size = [piece["bytes"] for piece in pieces]
    if all(size):  # neither unknown nor nothing
        bits = asdict(bootstrap(even / math.log(2), groups, per=torch.tensor(size)))
    if by_time.shape[1]:
        time_nll = asdict(bootstrap(by_time[:, 0] / tokens, groups))
        if len(groups.unique()) >= FEW:  # an interval of fewer is too narrow to blame the forms
            difference = bootstrap(nats.sum(1) - by_time[:, 0], groups)
            agree = difference.low <= 0 <= difference.high
    return {
        "nll": nll,
        "perplexity": {side: math.exp(value) for side, value in nll.items()},
        "bits_per_byte": bits,
        "nll_by_time": time_nll,
        "forms_agree": agree,
    }


def _pieces(
    model: Model, ids: Tensor, place: Tensor, count: int, draws: int, seed: int
) -> list[dict[str, Any]]:
    """For each row: sums over the blocks of each stratum, nats in the t-sampled form, bytes of its text.

    AR draws nothing: one stratum and no other form.
    """
    (B, L), block = ids.shape, block_of(model, ids.shape[1])
    if model.config.family == "ar":
        nats, blocks = score_batch(model, ids, place, count, seed)[1][:, None] * (L - 1), torch.ones(B, 1)
        by_time = torch.zeros(B, 0)
    else:
        nats, blocks = torch.zeros(2, B, KINDS, dtype=torch.float64)
        by_time = torch.zeros(B, 1, dtype=torch.float64)
        for draw in range(draws):
            # Draws are dealt out like further rows, so that those of one row are far apart too.
            masked = draw_masks(seed, place.to(model.device) * draws + draw, count * draws, L, block)
            loss = losses(model, ids.to(model.device), weigh(masked, block)).bound.double().cpu()
            stratum = strata(masked.view(B, -1, block).sum(-1).cpu(), block, count * draws)
            nats.scatter_add_(1, stratum, loss / draws)
            blocks.scatter_add_(1, stratum, torch.ones_like(loss))
            by_time += score_batch(model, ids, place, count, seed, step=draw)[1][:, None] * (L - 1) / draws
    finite(torch.cat([nats, by_time], 1))
    names = ("nats", "blocks", "by_time", "bytes")
    columns = (nats.tolist(), blocks.tolist(), by_time.tolist(), (_bytes(model, row) for row in ids))
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _bytes(model: Model, ids: Tensor) -> int | None:
    """Length of the text of a row without its first token, which is given."""
    if model.tokenizer is None:
        return None
    whole, given = (len(model.tokenizer.decode(part).encode()) for part in (ids.tolist(), ids[:1].tolist()))
    return whole - given


def draw_masks(seed: int, rows: Tensor, count: int, length: int, block: int) -> Tensor:
    """Masks [B, L] of the rows so numbered out of `count`: in each block m positions, m even over 1..n.

    The m are stratified over the blocks of all rows; which positions they are is a hash of (seed, row,
    position). Position 0 is never masked.
    """
    position = torch.arange(length, device=rows.device).view(-1, block)
    n = (position > 0).sum(-1)
    u = sample_time(seed, _STEP, rows, count, len(n), 0.0, 1.0)
    m = (1 + (u * n).long()).minimum(n)  # u may be rounded to 1; a block of position 0 alone has no m
    lot = counter.hash_counters(seed, _STEP, counter.MASK, rows[:, None, None], position)
    lot = lot.masked_fill(position == 0, torch.iinfo(torch.int64).max)
    return (lot.argsort(-1).argsort(-1) < m[..., None]).flatten(1)


def weigh(masked: Tensor, block: int) -> Noise:
    """The noise of masks [B, L]: a block with m of its n maskable positions masked weighs n/m."""
    m = masked.view(len(masked), -1, block).sum(-1)
    n = torch.full_like(m, block)
    n[:, 0] -= 1  # position 0
    return Noise(masked, m / n.clamp(min=1), n / m.clamp(min=1))


_MOST, _FILL = 16, 8  # kinds at most, and blocks of each kind at least, on average
KINDS = 2 * (_MOST + 1)
"""C: a row's first block and the others, each with no masks or one of the kinds."""


def strata(m: Tensor, block: int, rows: int) -> Tensor:
    """[B, G]: which kind a block is of by its m masks [B, G]; a row's first block has kinds of its own.

    One kind for each m, or fewer that join neighbours where blocks are long, or too few for a mean of each.
    """
    G = m.shape[1]
    n = torch.full((G,), block)
    n[0] -= 1
    total = torch.full((G,), rows * max(1, G - 1))
    total[0] = rows
    kinds = n.clamp(max=_MOST).minimum(total // _FILL).clamp(min=1)
    kind = -(-m * kinds // n.clamp(min=1))  # rounded up: m = n is kind `kinds`
    kind[:, 1:] += _MOST + 1
    return kind


def level(nats: Tensor, blocks: Tensor) -> Tensor:
    """Rows' nats [R] without the luck of their masks, from sums over the blocks of each stratum [R, C].

    What a row costs depends on how many masks its blocks happen to have. Over all rows every number of masks
    comes equally often, so this chance does not move the mean, and must not widen its interval either: each
    block counts by its distance from its stratum's mean.
    """
    usual = nats.sum(0) / blocks.sum(0).clamp(min=1)
    row = nats.sum(1)
    return row - blocks @ usual + row.mean()
