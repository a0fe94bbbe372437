"""A perplexity for every family: exact where there is one order of the tokens (AR), else a valid bound.

First-hitting decoding reveals a block's tokens one by one in a random order. The mean of -log p(x | order)
over all orders bounds -log p(x) from above. With n maskable positions it is the mean over m = 1..n and over
the sets of m masked ones of (n/m)·Σ -log p(token | the rest), each token through its own marginal. Drawing m
evenly is the low-variance form; the paper's draws a time t and weighs by 1/t, with the same mean.
`one_pass` has the exact likelihood of another sampler, which writes a block at once.

R rows, B rows of a batch, L tokens of a row, G blocks, C strata.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from dadlm.errors import ConfigError
from dadlm.evaluate.intervals import FEW, bootstrap
from dadlm.evaluate.masks import KINDS, draw_masks, level, strata, weigh
from dadlm.evaluate.one_pass import NOTE as ONE_PASS
from dadlm.evaluate.one_pass import check_passes, mean_by_place, place_nats
from dadlm.evaluate.scores import block_of, finite, score_batch
from dadlm.evaluate.subject import describe
from dadlm.evaluate.text import about, check_length, documents_of, pick
from dadlm.evaluate.work import Work
from dadlm.model import Model, eval_mode, in_mode
from dadlm.objective import check_chains, exact_or, losses
from dadlm.tokens import Rows

EXACT = "the exact likelihood given the first token of each row, with temperature 1 and top_p 1"
BOUND = (
    "an upper bound on the negative log-likelihood of first-hitting decoding with sampled paths, "
    "temperature 1, top_p 1 and no infilling, given the first token of each row; "
    "it says nothing of other decoding settings"
)


def perplexity(
    model: Model,
    rows: Rows,
    *,
    count: int | None = None,
    draws: int = 1,
    passes: int | None = None,
    chains: int = 64,
    seed: int = 0,
    batch_size: int = 16,
    out: str | Path | None = None,
    quiet: bool = True,
    data: Mapping[str, Any] | None = None,
    name: str = "",
    mode: Literal["diffusion", "ar"] = "diffusion",
) -> dict[str, Any]:
    """Nats per token and perplexity of `count` rows from all over the text, position 0 of each left out.

    `draws` masks are drawn for each row and form. With `passes` 1 it is the exact likelihood of whole blocks
    written in one pass each. `chains` sum out the open left neighbours of a token where there are token edges
    and a large vocabulary (`objective.exact_or`; 0: exactly, at any cost, but not of
    second order). `data` is what `rows_of` says of the rows. In mode ar a model with `causal_context` is
    scored exactly, as the AR model that it is too.
    """
    model = in_mode(model, mode)
    check_length(model, rows.context)
    check_passes(model, passes)
    check_chains(chains)
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
    drawn = None  # chains, where there is something to sum out
    if passes:
        subject["passes"] = passes
    elif model.head.edge is not None:
        drawn = subject["chains"] = exact_or(chains, model)
    keys = [str(place) for place in range(len(index))]  # masks are spread over the rows picked, not over all
    with Work("perplexity", subject, out, quiet) as work:
        for batch in work.batches(keys, batch_size, "perplexity"):
            place = torch.tensor([int(key) for key in batch])
            ids = rows.batch([index[int(key)] for key in batch])
            with eval_mode(model), torch.no_grad():
                how = (passes, 0 if drawn is None else drawn)
                work.add(zip(batch, _pieces(model, ids, place, len(index), draws, seed, *how), strict=True))
        groups = documents_of(rows, model.config.eot_id)[index]
        block, pieces = block_of(model, rows.context), work.values(keys)
        is_bound = block > 1 and not passes
        result = {
            "passes": passes,
            "chains": drawn,
            "tokens": len(index) * (rows.context - 1),
            "groups": len(groups.unique()),
            "is_bound": is_bound,
            "note": (BOUND if is_bound else ONE_PASS if passes and block > 1 else EXACT) + _summed(drawn),
            "by_place": mean_by_place(pieces, rows.context // block - 1),
            "by_chains": _by_chains(pieces, drawn, rows.context - 1),
        }
        return work.finish(result | _summary(pieces, groups, rows.context - 1))


def _summed(chains: int | None) -> str:
    """What a note says of token edges."""
    if chains is None:
        return ""
    how = f"by {chains} sampled chains, which loosens the bound a little" if chains else "exactly"
    return f"; the open left neighbours of a token are summed out {how}"


def _by_chains(pieces: list[dict[str, Any]], chains: int | None, tokens: int) -> dict[str, float] | None:
    """Nats per token with a quarter, half and all of the chains: how much their number loosens the bound."""
    if not chains:
        return None
    sums = torch.tensor([piece["by_chains"] for piece in pieces], dtype=torch.float64).mean(0) / tokens
    return dict(zip(map(str, (chains // 4, chains // 2, chains)), sums.tolist(), strict=True))


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
    model: Model,
    ids: Tensor,
    place: Tensor,
    count: int,
    draws: int,
    seed: int,
    passes: int | None,
    chains: int,
) -> list[dict[str, Any]]:
    """For each row: sums over the blocks of each stratum, nats in the t-sampled form, by the number of chains
    and by place, bytes of its text.

    AR and a single pass draw nothing: one stratum and no other form.
    """
    (B, L), block = ids.shape, block_of(model, ids.shape[1])
    by_time = by_chains = places = torch.zeros(B, 0)
    if model.config.family == "ar":
        nats, blocks = score_batch(model, ids, place, count, seed)[1][:, None] * (L - 1), torch.ones(B, 1)
    elif passes:
        each = place_nats(model, ids.to(model.device)).double().cpu()
        nats, blocks, places = each.sum((1, 2))[:, None], torch.ones(B, 1), each[:, 1:].sum(1)
    else:
        nats, blocks = torch.zeros(2, B, KINDS, dtype=torch.float64)
        by_time = torch.zeros(B, 1, dtype=torch.float64)
        for draw in range(draws):
            # Draws are dealt out like further rows, so that those of one row are far apart too.
            masked = draw_masks(seed, place.to(model.device) * draws + draw, count * draws, L, block)
            noise = weigh(masked, block)
            found = losses(model, ids.to(model.device), noise, chains=chains, seed=seed)
            loss = found.bound.double().cpu()
            if found.by_chains is not None:
                some = found.by_chains.double().sum(-1).T.cpu() / draws
                by_chains = by_chains + some if draw else some
            stratum = strata(masked.view(B, -1, block).sum(-1).cpu(), block, count * draws)
            nats.scatter_add_(1, stratum, loss / draws)
            blocks.scatter_add_(1, stratum, torch.ones_like(loss))
            scores = score_batch(model, ids, place, count, seed, step=draw, chains=chains)
            by_time += scores[1][:, None] * (L - 1) / draws
    columns = {"nats": nats, "blocks": blocks, "by_time": by_time, "by_chains": by_chains, "places": places}
    finite(torch.cat(list(columns.values()), 1))
    lists = [column.tolist() for column in columns.values()] + [[_bytes(model, row) for row in ids]]
    return [dict(zip((*columns, "bytes"), row, strict=True)) for row in zip(*lists, strict=True)]


def _bytes(model: Model, ids: Tensor) -> int | None:
    """Length of the text of a row without its first token, which is given."""
    if model.tokenizer is None:
        return None
    whole, given = (len(model.tokenizer.decode(part).encode()) for part in (ids.tolist(), ids[:1].tolist()))
    return whole - given
