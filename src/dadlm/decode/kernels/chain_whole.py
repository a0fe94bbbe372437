"""The chain of a block over the whole vocabulary: two short launches a place, and none but these.

What the token to the left adds to the logits of a place is spread over the device; then a program for each
row draws from them. Rows that do not need the place do nothing. `chain._place_by_place` is the torch twin.

B rows, N block size, R rank, S rank of second order, V vocabulary without the mask.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dadlm.decode.batched_settings import BatchedSettings
from dadlm.decode.kernels.short_row import drawn_of, size_of
from dadlm.decode.samplers import Block
from dadlm.model.edge import Bilinear

_ROWS, _LANES, _COLUMNS = 16, 64, 32  # rows, tokens and columns that a program multiplies at once


def draw(
    base: Tensor,
    columns: Tensor,
    edge: Bilinear,
    gain: Tensor,
    block: Block,
    before: Tensor,
    needed: Tensor,
    uniform: Tensor,
    settings: BatchedSettings,
    looked_at: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens [B, N] where `needed`, the block's elsewhere; their probabilities and entropies if `looked_at`.

    base [B, N, V] are logits without edges, columns [V, R + S] what the factors of the edges are multiplied
    with, `gain` [B, N, R + S] is `Bilinear.gain` of the nodes on the path, `before` [B] the token before each
    block.
    """
    (B, N, V), (R, S) = base.shape, edge.ranks
    tokens, size_and_warps = block.ids.clone(), size_of(V)
    probability, entropy = torch.zeros(2, B, N, device=base.device)
    logits = torch.empty(B, V, device=base.device, dtype=torch.float32)
    base, gain, masked = base.contiguous(), gain.contiguous(), block.masked.contiguous()
    needed, uniform = needed.contiguous(), uniform.contiguous()
    factors = edge.left.weight, edge.second_weight, edge.scale, gain, columns, columns.stride(0)
    how = settings.inverse_temperature, settings.top_p, settings.standard, settings.cold
    tiles = (triton.cdiv(V, _LANES), triton.cdiv(B, _ROWS))
    for i in range(N):
        _score[tiles](
            base, *factors, tokens, before, masked, needed, logits, i, B, N, V, R, S, _ROWS, _LANES, _COLUMNS
        )
        size, warps = size_and_warps
        _place[(B,)](
            logits,
            needed,
            uniform,
            *how,
            tokens,
            probability,
            entropy,
            i,
            N,
            V,
            size,
            looked_at,
            num_warps=warps,
        )
    return tokens, probability, entropy


@triton.jit
def _score(
    base, left, second, scale, gain, columns, stride, tokens, before, masked, needed, logits,
    i, B, N, V, R, S,
    ROWS: tl.constexpr, LANES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The logits of place i: those without edges, and ⟨[λ A(token to the left); C(token before it)] ⊙ gain,
    column⟩."""
    b = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    v = tl.program_id(0) * LANES + tl.arange(0, LANES)
    at = b.to(tl.int64) * N + i
    need = tl.load(needed + at, mask=b < B, other=0).to(tl.int32) != 0
    if tl.max(need.to(tl.int32), 0) > 0:
        inside = need & (b * 0 + i > 0)
        token = tl.load(tokens + at - 1, mask=inside, other=0)
        token += tl.load(before + b, mask=need & (b * 0 + i == 0), other=0)
        is_open = tl.load(masked + at - 1, mask=inside, other=0).to(tl.int64)
        two_open = inside & (is_open != 0) & (b * 0 + i > 1)
        two_open &= tl.load(masked + at - 2, mask=two_open, other=0).to(tl.int32) != 0
        further = tl.load(tokens + at - 2, mask=two_open, other=0)
        sums = tl.zeros([ROWS, LANES], tl.float32)
        for start in range(0, R + S, COLUMNS):
            r = start + tl.arange(0, COLUMNS)
            one = need[:, None] & (r < R)[None, :]
            two = two_open[:, None] & (r >= R)[None, :] & (r < R + S)[None, :]
            factor = tl.load(left + token[:, None] * R + r[None, :], mask=one, other=0.0).to(tl.float32)
            factor *= tl.load(scale + is_open[:, None] * R + r[None, :], mask=one, other=0.0).to(tl.float32)
            place = further[:, None] * S + r[None, :] - R
            factor += tl.load(second + place, mask=two, other=0.0).to(tl.float32)
            gains = gain + at[:, None] * (R + S) + r[None, :]
            factor *= tl.load(gains, mask=one | two, other=0.0).to(tl.float32)
            near = (r < R + S)[:, None] & (v < V)[None, :]
            column = tl.load(columns + v[None, :].to(tl.int64) * stride + r[:, None], mask=near, other=0.0)
            sums += tl.dot(factor.to(column.dtype), column, input_precision="ieee")
        here = need[:, None] & (v < V)[None, :]
        sums += tl.load(base + at[:, None] * V + v[None, :], mask=here, other=0.0)
        tl.store(logits + b[:, None].to(tl.int64) * V + v[None, :], sums, mask=here)


@triton.jit
def _place(
    logits, needed, uniform, scale, top_p, crossing, cold, tokens, probability, entropy, i, N, V,
    SIZE: tl.constexpr, LOOKED_AT: tl.constexpr,
):  # fmt: skip
    """Draw the token of place i of a row, as `short_row` does, or take the likeliest."""
    row, place = tl.program_id(0), tl.arange(0, SIZE)
    at = row.to(tl.int64) * N + i
    if tl.load(needed + at).to(tl.int32) != 0:
        x = tl.load(logits + row.to(tl.int64) * V + place, mask=place < V, other=-float("inf"))
        top = tl.max(x, 0)
        found = tl.min(tl.where(x == top, place, V), 0)
        if tl.load(cold + row).to(tl.int32) == 0:
            weight = tl.exp((x - top) * tl.load(scale + row))
            p, standard = tl.load(top_p + row), tl.load(crossing + row) != 0
            found = drawn_of(weight, tl.load(uniform + at), p, standard, V, SIZE)
        tl.store(tokens + at, found.to(tl.int64))
        if LOOKED_AT:
            low = tl.where(place < V, x - top, 0.0)
            share = tl.where(place < V, tl.exp(low), 0.0)
            total = tl.sum(share, 0)
            said = tl.exp(tl.sum(tl.where(place == found, low, 0.0), 0)) / total
            tl.store(probability + at, said)
            product = tl.where(share > 0, share * low, 0.0)
            tl.store(entropy + at, tl.log(total) - tl.sum(product, 0) / total)
