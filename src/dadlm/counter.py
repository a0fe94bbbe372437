"""Counter-based random numbers: a hash of integers instead of a stateful generator. A number depends only on
what it is *for* (seed, step, row, block, position, purpose); CPU and CUDA give the same bits."""

import operator

import torch
from torch import Tensor

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB
# Purposes keep streams that share the other counters apart.
TIME, MASK, SHIFT, ORDER, PATH, TOKEN, REMASK, REVEAL, DROPOUT, FULL, CHAIN, DRAFT, ACCEPT = range(1, 14)


def _wrap(number: int) -> int:
    """A Python integer wrapped to 64 bits: Python's own do not overflow."""
    return (number + 2**63) % 2**64 - 2**63


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift: torch's is arithmetic on signed integers."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


_TURNS = [_wrap(turn * _GOLDEN) for turn in range(1, 7)]  # multiples of the golden constant


def _mix(x: Tensor) -> Tensor:
    """Finaliser of splitmix64: every input bit flips every output bit with probability about one half."""
    x = (x ^ _shift_right(x, 30)) * _MIX_1
    x = (x ^ _shift_right(x, 27)) * _MIX_2
    return x ^ _shift_right(x, 31)


def hash_counters(*counters: int | Tensor) -> Tensor:
    """Hash broadcastable integers into int64; the order of the counters matters."""
    device = next((c.device for c in counters if isinstance(c, Tensor)), torch.device("cpu"))
    state = torch.zeros((), dtype=torch.int64, device=device)
    for counter in counters:
        if isinstance(counter, Tensor):
            turn = counter.to(device, torch.int64) * _GOLDEN + _GOLDEN
        else:  # a plain number needs no tensor, so nothing is copied to the device
            turn = _wrap(operator.index(counter) * _GOLDEN + _GOLDEN)
        state = _mix(state * 31 + turn)
    return state


def uniform(*counters: int | Tensor) -> Tensor:
    """Uniform fp32 numbers in [0, 1) with 24 bits, one per broadcast element of the counters."""
    return _shift_right(hash_counters(*counters), 40).to(torch.float32) * 2.0**-24


def permute(index: Tensor, size: int, seed: int, epoch: int | Tensor) -> Tensor:
    """A pseudo-random permutation of range(size), evaluated only at `index`. A Feistel network permutes the
    next power of two; values outside the range follow their cycle until they fall inside."""
    bits = max(6, (size - 1).bit_length())  # fewer bits mix too little
    low_bits = bits // 2
    low_mask, high_mask = (1 << low_bits) - 1, (1 << (bits - low_bits)) - 1
    key = hash_counters(seed, torch.as_tensor(epoch, device=index.device), ORDER).expand_as(index)

    def feistel(x: Tensor, key: Tensor) -> Tensor:
        low, high = x & low_mask, x >> low_bits
        for turn in range(3):
            low = low ^ (_mix(key + _TURNS[2 * turn] + high) & low_mask)
            high = high ^ (_mix(key + _TURNS[2 * turn + 1] + low) & high_mask)
        return (high << low_bits) | low

    x = feistel(index.to(torch.int64), key)
    while len(outside := (x >= size).nonzero().squeeze(-1)):
        x[outside] = feistel(x[outside], key[outside])
    return x
