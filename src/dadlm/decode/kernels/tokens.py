"""What a step does around the vocabulary head, a launch each instead of a dozen: which position is revealed,
which states go to the head, and what the block is afterwards.

The torch twins are `samplers.FirstHitting.keep`, `choose._draws` and `step.after_step`.

B rows, N block size, n draws, K candidates, D width.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from dadlm.decode.kernels.counters import uniform_at

MOST_PLACES = 4096
"""Positions of all rows that every program of `take` looks through."""


class Taken(NamedTuple):
    """Of the wanted positions, in order; of spare places it says nothing but where they are, at B·N."""

    place: Tensor
    """[n]: flat index of the position."""
    row: Tensor
    node: Tensor
    """[n]: on the path."""
    hidden: Tensor
    """[n, D]."""
    uniform: Tensor


def _lanes(count: int) -> int:
    return max(16, triton.next_power_of_2(count))


def reveal(masked: Tensor, infilled: Tensor, counters: tuple[Tensor, Tensor, Tensor], purpose: int) -> Tensor:
    """[B, N]: `infilled`, and in every row the masked position with the highest random number."""
    B, N = masked.shape
    kept = torch.empty(B, N, device=masked.device, dtype=torch.bool)
    _reveal[(B,)](
        masked, infilled, *counters, kept, masked.stride(0), infilled.stride(0), N, purpose,
        _lanes(N),
    )  # fmt: skip
    return kept


@triton.jit
def _reveal(
    masked, infilled, seed, block, step, kept, masked_row, infilled_row, N, purpose, SIZE: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, SIZE)
    given = tl.load(infilled + row * infilled_row + i, mask=i < N, other=0) != 0
    candidate = (tl.load(masked + row * masked_row + i, mask=i < N, other=0) != 0) & (given == 0)
    u = uniform_at(tl.load(seed + row), tl.load(block + row), tl.load(step + row), i, purpose, SIZE)
    u = tl.where(candidate, u, -1.0)
    first = tl.min(tl.where(u == tl.max(u, 0), i, SIZE), 0)
    tl.store(kept + row * N + i, given | (candidate & (i == first)), mask=i < N)


def take(
    wanted: Tensor,
    count: int,
    hidden: Tensor,
    path: Tensor,
    counters: tuple[Tensor, Tensor, Tensor],
    purpose: int,
) -> Taken:
    """The first `count` wanted [B, N] positions: hidden states [B, N, K, D] of their node on the path."""
    (B, N), D, device = wanted.shape, hidden.shape[-1], hidden.device
    place, row, node = torch.empty(3, count, device=device, dtype=torch.int64).unbind(0)
    out = torch.empty(count, D, device=device, dtype=hidden.dtype)
    uniform = torch.empty(count, device=device, dtype=torch.float32)
    _take_out[(count,)](
        wanted.contiguous(), hidden, path.contiguous(), *counters, place, row, node, out, uniform,
        *hidden.stride()[:3], B * N, N, D, purpose, _lanes(B * N), _lanes(D),
    )  # fmt: skip
    return Taken(place, row, node, out, uniform)


@triton.jit
def _take_out(
    wanted, hidden, path, seed, block, step, place, row, node, out, uniform, h_row, h_place, h_node,
    COUNT, N, D, purpose, SIZE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    draw = tl.program_id(0)
    i = tl.arange(0, SIZE)
    flag = (tl.load(wanted + i, mask=i < COUNT, other=0) != 0).to(tl.int32)
    here = tl.min(tl.where((flag == 1) & (tl.cumsum(flag, 0) == draw + 1), i, COUNT), 0)
    tl.store(place + draw, here.to(tl.int64))
    some = tl.minimum(here, COUNT - 1)  # what spare places hold is not looked at
    mine, at = (some // N).to(tl.int64), some % N
    which = tl.load(path + some)
    tl.store(row + draw, mine)
    tl.store(node + draw, which)
    one = at + tl.arange(0, 1)
    u = uniform_at(tl.load(seed + mine), tl.load(block + mine), tl.load(step + mine), one, purpose, 1)
    tl.store(uniform + draw + tl.arange(0, 1), u)
    d = tl.arange(0, WIDTH)
    state = tl.load(hidden + mine * h_row + at * h_place + which * h_node + d, mask=d < D, other=0.0)
    tl.store(out + draw.to(tl.int64) * D + d, state, mask=d < D)


def settle(
    masked: Tensor,
    wanted: Tensor,
    ends: Tensor,
    ids: Tensor,
    tokens: Tensor,
    kept: Tensor,
    at: Tensor,
    padded: Tensor | None,
    end_ids: tuple[int, ...],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tokens, what is decided, what is masked [B, N] and the next step [B]: see `step.after_step`."""
    (B, N), tokens, kept = masked.shape, tokens.contiguous(), kept.contiguous()
    new_ids = torch.empty(B, N, device=ids.device, dtype=ids.dtype)
    new_kept, new_masked = torch.empty(2, B, N, device=ids.device, dtype=torch.bool).unbind(0)
    new_step = torch.empty_like(at)
    _settle[(B,)](
        masked, wanted, ends, ids, tokens, kept, at, at if padded is None else padded,
        new_ids, new_kept, new_masked, new_step,
        *(x.stride(0) for x in (masked, wanted, ends, ids, tokens, kept)), N,
        end_ids[0], end_ids[-1],  # twice the same where nothing but end-of-text ends a text
        padded is not None, _lanes(N),
    )  # fmt: skip
    return new_ids, new_kept, new_masked, new_step


@triton.jit
def _settle(
    masked, wanted, ends, ids, tokens, kept, at, padded, new_ids, new_kept, new_masked, new_step,
    masked_row, wanted_row, ends_row, ids_row, tokens_row, kept_row, N, eot, turn_end,
    PADDED: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, SIZE)
    real = i < N
    chosen = tl.load(kept + row * kept_row + i, mask=real, other=0) != 0
    token = tl.load(ids + row * ids_row + i, mask=real, other=0)
    token = tl.where(chosen, tl.load(tokens + row * tokens_row + i, mask=real, other=0), token)
    left = (tl.load(masked + row * masked_row + i, mask=real, other=0) != 0) & (chosen == 0)
    may_end = tl.load(ends + row * ends_row + i, mask=real, other=0) != 0
    end = may_end & ((token == eot) | (token == turn_end))
    asked = left & (tl.load(wanted + row * wanted_row + i, mask=real, other=0) != 0)
    known = tl.cumsum(left.to(tl.int32), 0) == 0  # nothing is open up to here
    is_over = tl.sum((end & known).to(tl.int32), 0) + (tl.sum(asked.to(tl.int32), 0) == 0).to(tl.int32)
    over = tl.zeros([SIZE], tl.int32) + is_over
    if PADDED:
        behind = tl.cumsum((may_end & (token == eot) & (left == 0)).to(tl.int32), 0)
        over += tl.where(tl.load(padded + row) != 0, behind, 0)
    filled = left & (over > 0)
    place = row * N + i
    tl.store(new_ids + place, tl.where(filled, eot, token), mask=real)
    tl.store(new_kept + place, chosen | filled, mask=real)
    tl.store(new_masked + place, left & (over == 0), mask=real)
    tl.store(new_step + row, tl.load(at + row) + 1)
