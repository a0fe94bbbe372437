"""`counter.uniform` of a whole block in one launch instead of some forty: the same bits.

B rows, N positions.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

# The constants of dadlm.counter.
_GOLDEN = tl.constexpr(-7046029254386353131)
_MIX_1 = tl.constexpr(-4658895280553007687)
_MIX_2 = tl.constexpr(-7723592293110705685)


def uniform(seed: Tensor, block: Tensor, step: Tensor, positions: int, purpose: int) -> Tensor:
    """uniform(seed, block, step, position, purpose) [B, N] for counters [B] and all positions."""
    out = torch.empty(len(seed), positions, device=seed.device, dtype=torch.float32)
    size = min(1024, triton.next_power_of_2(positions))
    grid = (len(seed), triton.cdiv(positions, size))
    _uniform[grid](seed, block, step, out, positions, purpose, size)
    return out


@triton.jit
def _mix(x):
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * _MIX_1
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * _MIX_2
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


@triton.jit
def _take(state, value):
    return _mix(state * 31 + value * _GOLDEN + _GOLDEN)


@triton.jit
def uniform_at(seed, block, step, position, purpose, SIZE: tl.constexpr):
    """uniform(seed, block, step, position, purpose) [SIZE] of numbers and some positions [SIZE]."""
    state = tl.zeros([SIZE], tl.int64)
    state = _take(state, seed)
    state = _take(state, block)
    state = _take(state, step)
    state = _take(state, position.to(tl.int64))
    state = _take(state, tl.zeros([SIZE], tl.int64) + purpose)
    return ((state >> 40) & 0xFFFFFF).to(tl.float32) * 5.9604644775390625e-08  # 2 ** -24


@triton.jit
def _uniform(seed, block, step, out, N, purpose, SIZE: tl.constexpr):
    row = tl.program_id(0)
    position = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    value = uniform_at(
        tl.load(seed + row), tl.load(block + row), tl.load(step + row), position, purpose, SIZE
    )
    tl.store(out + row * N + position, value, mask=position < N)
