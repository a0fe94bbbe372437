"""The chain of a block over shortlists in one launch: a program draws a row's tokens from left to right.

A place costs the columns of its candidates, some thresholds of the nucleus, and no launch. The torch twin is
`chain._place_by_place` with `shortlist.Shortlist`.

B rows, N block size, M tokens by base logits, S successors, R rank, F rank of second order, V vocabulary
without the mask.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dadlm.decode.batched_settings import BatchedSettings
from dadlm.decode.kernels.short_row import drawn_of
from dadlm.decode.samplers import Block
from dadlm.decode.shortlist import Shortlist
from dadlm.model.edge import Bilinear
from dadlm.model.successors import Successors

_LANES, _COLUMNS = 128, 64  # of a list, and of the rank, at once


def draw(
    listed: Shortlist,
    successors: Successors,
    edge: Bilinear,
    context: Tensor,
    block: Block,
    before: Tensor,
    needed: Tensor,
    uniform: Tensor,
    settings: BatchedSettings,
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, probabilities and entropies [B, N] of all positions in the order of the list, where `needed`.

    `context` [B, N, R + F] is `Bilinear.gain` of the nodes on the path; `before` [B] the token before each
    block.
    """
    (B, N), (V, S), M = needed.shape, successors.table.shape, listed.top.shape[1]
    tokens = torch.empty(B, N, device=before.device, dtype=torch.int64)
    probability, entropy = torch.empty(2, B, N, device=before.device)
    lists = listed.top, listed.top_logits, listed.other_logits, successors.table
    weights = successors.columns, edge.left.weight, edge.second_weight, edge.scale, context.contiguous()
    rows = block.ids.contiguous(), block.masked.contiguous(), needed.contiguous(), before.contiguous()
    how = settings.inverse_temperature, settings.top_p, settings.standard, settings.cold
    (R, F), SIZE = edge.ranks, max(_LANES, triton.next_power_of_2(M + S))
    scores = torch.empty(B, SIZE, device=before.device, dtype=torch.float32)
    _chain[(B,)](
        scores, *lists, *weights, *rows, uniform.contiguous(), *how, tokens, probability, entropy,
        M, S, V, N, R, F, SIZE, _LANES, _COLUMNS, num_warps=8,
    )  # fmt: skip
    return tokens, probability, entropy


@triton.jit
def _candidates(top, table, place, token, lane, M, S):
    """Ids of the candidates of a place after a token, at some lanes of their list."""
    ids = tl.load(top + place * M + lane, mask=lane < M, other=0)
    return ids + tl.load(table + token * S + lane - M, mask=(lane >= M) & (lane < M + S), other=0).to(
        tl.int64
    )


@triton.jit
def _score(
    scores, top, top_logits, other_logits, table, columns, left, second, scale, context, place, token,
    is_open, further, two_open, M, S, V, R: tl.constexpr, F: tl.constexpr,
    SIZE: tl.constexpr, LANES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write the logits of the candidates of a place: some lanes at a time, whose columns fit registers."""
    for first in range(0, SIZE, LANES):
        lane = first + tl.arange(0, LANES)
        ids = _candidates(top, table, place, token, lane, M, S)
        logits = tl.load(top_logits + place * M + lane, mask=lane < M, other=-float("inf"))
        is_near = (lane >= M) & (lane < M + S)
        others = tl.load(other_logits + place * V + ids, mask=is_near, other=-float("inf"))
        logits = tl.where(is_near, others, logits)
        for start in range(0, R + F, COLUMNS):
            r = start + tl.arange(0, COLUMNS)
            two = (r >= R) & (r < R + F * two_open)
            factor = tl.load(left + token * R + r, mask=r < R, other=0.0).to(tl.float32)
            factor *= tl.load(scale + is_open * R + r, mask=r < R, other=0.0).to(tl.float32)
            factor += tl.load(second + further * F + r - R, mask=two, other=0.0).to(tl.float32)
            factor *= tl.load(context + place * (R + F) + r, mask=r < R + F, other=0.0).to(tl.float32)
            some = (lane < M + S)[:, None] & (r < R + F)[None, :]
            own = columns + ids[:, None] * (R + F) + r[None, :]
            column = tl.load(own, mask=some, other=0.0).to(tl.float32)
            logits += tl.sum(column * factor[None, :], 1)
        tl.store(scores + lane, logits)


@triton.jit
def _chain(
    scores, top, top_logits, other_logits, table, columns, left, second, scale, context, ids, masked, needed,
    before, uniform, inverse_temperature, top_p, standard, cold, tokens, probability, entropy, M, S, V,
    N: tl.constexpr, R: tl.constexpr, F: tl.constexpr,
    SIZE: tl.constexpr, LANES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    lane = tl.arange(0, SIZE)
    scores += row * SIZE
    token, is_open = tl.load(before + row), 0
    further, two_open = token, 0  # the token before it, and whether both are open
    heat, share = tl.load(inverse_temperature + row), tl.load(top_p + row)
    rule, is_cold = tl.load(standard + row) != 0, tl.load(cold + row)
    for i in range(N):
        place = row.to(tl.int64) * N + i
        next_token, said, unsure = tl.load(ids + place), 0.0, 0.0
        if tl.load(needed + place) != 0:
            _score(
                scores, top, top_logits, other_logits, table, columns, left, second, scale, context, place,
                token, is_open, further, two_open, M, S, V, R, F, SIZE, LANES, COLUMNS,
            )  # fmt: skip
            tl.debug_barrier()  # what other threads wrote is read
            logits = tl.load(scores + lane)
            tl.debug_barrier()  # and is not written again before
            highest = tl.max(logits, 0)
            heated = tl.exp((logits - highest) * heat)
            found = drawn_of(heated, tl.load(uniform + place), share, rule, M + S, SIZE)
            best = tl.min(tl.where(logits == highest, lane, SIZE), 0)
            found = tl.where(is_cold != 0, best, found)
            below = tl.where(logits == -float("inf"), 0.0, logits - highest)
            weight = tl.exp(logits - highest)
            total = tl.sum(weight, 0)
            next_token = tl.sum(_candidates(top, table, place, token, found + tl.arange(0, 1), M, S), 0)
            said = tl.sum(tl.where(lane == found, weight, 0.0), 0) / total
            unsure = tl.log(total) - tl.sum(weight * below, 0) / total
        tl.store(tokens + place, next_token)
        tl.store(probability + place, said)
        tl.store(entropy + place, unsure)
        now_open = tl.load(masked + place).to(tl.int32)
        further, two_open = token, is_open * now_open
        token, is_open = next_token, now_open
