"""Drawing a path and finding the best one; a lane of the program walks one chain, as the torch twins do.

B chains, N groups, K candidates; S chains per program.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_S = 32
_INF = tl.constexpr(float("inf"))


def sample(transition_logp: Tensor, uniform: Tensor) -> Tensor:
    """Paths [B, N] by inverse CDF from transitions [B, N, K, K] and uniform [B, N] in fp32."""
    B, N, K, _ = transition_logp.shape
    path = torch.empty(B, N, device=transition_logp.device, dtype=torch.int64)
    _sample[(triton.cdiv(B, _S),)](transition_logp, uniform, path, B, N, K, _S, num_warps=1)
    return path


def best(emission_logp: Tensor, transition_logp: Tensor) -> tuple[Tensor, Tensor]:
    """Best paths [B, N] and their log-probabilities [B] in fp32."""
    B, N, K = emission_logp.shape
    device = emission_logp.device
    path = torch.empty(B, N, device=device, dtype=torch.int64)
    logp = torch.empty(B, device=device, dtype=torch.float32)
    score = torch.empty(2, B, K, device=device, dtype=torch.float32)
    origin = torch.empty(B, N, K, device=device, dtype=torch.int32)
    _best[(triton.cdiv(B, _S),)](
        emission_logp, transition_logp, score, origin, path, logp, B, N, K, _S, num_warps=1
    )
    return path, logp


@triton.jit
def _sample(transition, uniform, path, B, N, K, S: tl.constexpr):
    chain = tl.program_id(0) * S + tl.arange(0, S)
    real = chain < B
    node = tl.zeros([S], tl.int64)
    for i in range(N):
        row = transition + ((chain.to(tl.int64) * N + i) * K + node) * K
        total = tl.zeros([S], tl.float32)
        for k in range(K):
            total += tl.exp(tl.load(row + k, mask=real, other=-_INF).to(tl.float32))
        threshold = tl.load(uniform + chain * N + i, mask=real, other=0.0) * total
        node = tl.zeros([S], tl.int64)
        last = tl.zeros([S], tl.int64)
        cumulative = tl.zeros([S], tl.float32)
        for k in range(K):
            p = tl.exp(tl.load(row + k, mask=real, other=-_INF).to(tl.float32))
            cumulative += p
            node += (cumulative <= threshold).to(tl.int64)
            last = tl.where(p > 0, k, last)
        node = tl.minimum(node, last)
        tl.store(path + chain * N + i, node, mask=real)


@triton.jit
def _best(emission, transition, score, origin, path, logp, B, N, K, S: tl.constexpr):
    chain = (tl.program_id(0) * S + tl.arange(0, S)).to(tl.int64)
    real = chain < B
    for k in range(K):
        first = tl.load(transition + chain * N * K * K + k, mask=real, other=-_INF).to(tl.float32)
        first += tl.load(emission + chain * N * K + k, mask=real, other=-_INF).to(tl.float32)
        tl.store(score + chain * K + k, first, mask=real)
    for i in range(1, N):
        here, there = score + (i % 2) * B * K, score + ((i + 1) % 2) * B * K
        tl.debug_barrier()  # a lane reads what it wrote in the round before
        for k in range(K):
            top = tl.full([S], -_INF, tl.float32)
            best_from = tl.zeros([S], tl.int32)
            for j in range(K):
                step = tl.load(transition + ((chain * N + i) * K + j) * K + k, mask=real, other=-_INF)
                arrive = tl.load(there + chain * K + j, mask=real, other=-_INF) + step.to(tl.float32)
                best_from = tl.where(arrive > top, j, best_from)  # ties stay with the lowest index
                top = tl.maximum(top, arrive)
            top += tl.load(emission + (chain * N + i) * K + k, mask=real, other=-_INF).to(tl.float32)
            tl.store(here + chain * K + k, top, mask=real)
            tl.store(origin + (chain * N + i) * K + k, best_from, mask=real)
    tl.debug_barrier()
    final = score + ((N - 1) % 2) * B * K
    top = tl.full([S], -_INF, tl.float32)
    node = tl.zeros([S], tl.int32)
    for k in range(K):
        value = tl.load(final + chain * K + k, mask=real, other=-_INF)
        node = tl.where(value > top, k, node)
        top = tl.maximum(top, value)
    tl.store(logp + chain, top, mask=real)
    for back in range(N):
        i = N - 1 - back
        tl.store(path + chain * N + i, node.to(tl.int64), mask=real)
        if i > 0:
            node = tl.load(origin + (chain * N + i) * K + node, mask=real, other=0)
