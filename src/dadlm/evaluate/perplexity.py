"""A perplexity for every family: exact where there is one order of the tokens (AR), else a valid bound.

First-hitting decoding reveals a block's tokens one by one in a random order. The mean of -log p(x | order)
over all orders bounds -log p(x) from above. With n maskable positions it is the mean over m = 1..n and over
the sets of m masked ones of (n/m)·Σ -log p(token | the rest), each token through its own marginal (DA-DLM:
through the node marginals). Drawing m evenly is the low-variance form; the paper draws a time t, masks each
position with probability t and weighs by 1/t, which has the same mean.

B rows of a batch, L tokens of a row.
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
from dadlm.evaluate.intervals import Interval, bootstrap
from dadlm.evaluate.scores import block_of, evaluating, finite, score_batch
from dadlm.evaluate.subject import describe
from dadlm.evaluate.text import about, check_length, take
from dadlm.evaluate.work import Work
from dadlm.model import Model
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
) -> dict[str, Any]:
    """Nats per token and perplexity of the first `count` rows, position 0 of each left out.

    `draws` masks are drawn for each row and form. `data` is what `rows_of` says of the rows.
    """
    check_length(model, rows.context)
    if draws < 1:
        raise ConfigError(f"draws must be at least 1, got {draws}")
    count, data = take(rows, count), data or about(rows)
    subject = {"model": describe(model, name), "data": data, "seed": seed, "count": count, "draws": draws}
    keys = [str(row) for row in range(count)]
    with Work("perplexity", subject, out, quiet) as work:
        for batch in work.batches(keys, batch_size, "perplexity"):
            index = torch.tensor([int(key) for key in batch])
            with evaluating(model):
                scores = _row_scores(model, rows.batch(index), index, count, draws, seed)
            work.add(zip(batch, finite(scores).tolist(), strict=True))
        forms = [bootstrap(form) for form in torch.tensor(work.values(keys), dtype=torch.float64).unbind(1)]
        result = {"tokens": count * (rows.context - 1), "is_bound": block_of(model, rows.context) > 1}
        return work.finish(result | _summary(forms, result["is_bound"], data.get("bytes_per_token")))


def _summary(forms: list[Interval], is_bound: bool, bytes_per_token: float | None) -> dict[str, Any]:
    nll, bits, by_time, agree = asdict(forms[0]), None, None, None
    if bytes_per_token is not None:
        bits = {side: value / math.log(2) / bytes_per_token for side, value in nll.items()}
    if len(forms) > 1:
        by_time = asdict(forms[1])
        agree = nll["low"] <= by_time["high"] and by_time["low"] <= nll["high"]
    return {
        "nll": nll,
        "perplexity": {side: math.exp(value) for side, value in nll.items()},
        "bits_per_byte": bits,
        "nll_by_time": by_time,
        "forms_agree": agree,
        "note": BOUND if is_bound else EXACT,
    }


def _row_scores(model: Model, ids: Tensor, index: Tensor, count: int, draws: int, seed: int) -> Tensor:
    """[B, 2]: nats per token in the low-variance and the t-sampled form; [B, 1] for AR, which draws none."""
    if model.config.family == "ar":
        return score_batch(model, ids, index, count, seed)[1][:, None]
    (_, L), block = ids.shape, block_of(model, ids.shape[1])
    even, by_time = [], []
    for draw in range(draws):
        # Draws are dealt out like further rows, so that those of one row are far apart too.
        masked = draw_masks(seed, index.to(model.device) * draws + draw, count * draws, L, block)
        loss = losses(model, ids.to(model.device), weigh(masked, block)).bound
        even.append(loss.sum(1).double().cpu() / (L - 1))
        by_time.append(score_batch(model, ids, index, count, seed, step=draw)[1])
    return torch.stack([torch.stack(even).mean(0), torch.stack(by_time).mean(0)], 1)


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
