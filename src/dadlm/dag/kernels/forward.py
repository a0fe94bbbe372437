"""The forward recursion of `dag._recursion`, its gradient (posteriors of nodes and pairs) and tilted links. A
program walks some chains from the first group to the last (or back), with their state in registers.

B chains, N groups, K candidates; S chains per program, P the power of two above K.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_INF = tl.constexpr(float("inf"))


def alphas(emission_logp: Tensor, transition_logp: Tensor) -> tuple[Tensor, Tensor]:
    """Prefix sums [B, N, K] and the total [B], both in fp32."""
    B, N, K = emission_logp.shape
    alpha = torch.empty(B, N, K, device=emission_logp.device, dtype=torch.float32)
    total = torch.empty(B, device=emission_logp.device, dtype=torch.float32)
    _launch(_forward, (B, N, K), emission_logp, transition_logp, alpha, total)
    return alpha, total


def gradients(alpha: Tensor, transition_logp: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """grad [B] times the posterior of each node [B, N, K] and of each pair [B, N, K, K], in fp32."""
    B, N, K = alpha.shape
    to_emission = torch.empty(B, N, K, device=alpha.device, dtype=torch.float32)
    to_transition = torch.empty(B, N, K, K, device=alpha.device, dtype=torch.float32)
    _launch(_backward, (B, N, K), alpha, transition_logp, grad, to_emission, to_transition)
    return to_emission, to_transition


def tilt(emission_logp: Tensor, transition_logp: Tensor) -> Tensor:
    """Links [B, N, K, K] in fp32 whose paths are weighted by their emissions [B, N, K]."""
    B, N, K = emission_logp.shape
    links = torch.empty(B, N, K, K, device=emission_logp.device, dtype=torch.float32)
    _launch(_tilt, (B, N, K), emission_logp, transition_logp, links)
    return links


def _launch(kernel: Any, shape: tuple[int, int, int], *tensors: Tensor) -> None:
    P = triton.next_power_of_2(shape[2])
    S = max(1, 512 // (P * P))
    kernel[(triton.cdiv(shape[0], S),)](*tensors, *shape, S, P)


@triton.jit
def _chains(B, N, K, S: tl.constexpr, P: tl.constexpr):
    """Of a program: chains [S], candidates [P], which nodes [S, P] and pairs [S, P, P] are real, and where
    those of group 0 stand."""
    chain = (tl.program_id(0) * S + tl.arange(0, S)).to(tl.int64)
    k = tl.arange(0, P)
    real = (chain < B)[:, None] & (k < K)[None, :]
    pair = real[:, :, None] & (k < K)[None, None, :]
    node = (chain[:, None] * N) * K + k[None, :]
    edge = ((chain[:, None, None] * N) * K + k[None, :, None]) * K + k[None, None, :]
    return chain, k, real, pair, node, edge


@triton.jit
def _forward(emission, transition, alpha, total, B, N, K, S: tl.constexpr, P: tl.constexpr):
    chain, k, real, pair, node, edge = _chains(B, N, K, S, P)
    # The start node is row 0 of group 0.
    start = chain[:, None] * N * K * K + k[None, :]
    state = tl.load(transition + start, mask=real, other=-_INF).to(tl.float32)
    state += tl.load(emission + node, mask=real, other=-_INF).to(tl.float32)
    tl.store(alpha + node, state, mask=real)
    for i in range(1, N):
        step = tl.load(transition + edge + i * K * K, mask=pair, other=-_INF).to(tl.float32)
        arrive = state[:, :, None] + step
        top = tl.max(arrive, 1)
        base = tl.where(top == -_INF, 0.0, top)
        state = base + tl.log(tl.sum(tl.exp(arrive - base[:, None, :]), 1))
        state += tl.load(emission + node + i * K, mask=real, other=-_INF).to(tl.float32)
        tl.store(alpha + node + i * K, state, mask=real)
    highest = tl.max(state, 1)
    below = tl.where(highest == -_INF, 0.0, highest)
    tl.store(total + chain, below + tl.log(tl.sum(tl.exp(state - below[:, None]), 1)), mask=chain < B)


@triton.jit
def _backward(alpha, transition, grad, to_emission, to_transition, B, N, K, S: tl.constexpr, P: tl.constexpr):
    chain, j, real, pair, node, edge = _chains(B, N, K, S, P)
    last = tl.load(alpha + node + (N - 1) * K, mask=real, other=-_INF)
    highest = tl.max(last, 1)
    weight = tl.exp(last - tl.where(highest == -_INF, 0.0, highest)[:, None])
    total = tl.sum(weight, 1)
    # A chain without any possible path has posterior and gradient zero.
    g = tl.load(grad + chain, mask=chain < B, other=0.0).to(tl.float32)
    g = tl.where(highest == -_INF, 0.0, g)
    posterior = weight / tl.where(total == 0.0, 1.0, total)[:, None] * g[:, None]
    for back in range(1, N):
        i = N - back
        tl.store(to_emission + node + i * K, posterior, mask=real)
        before = tl.load(alpha + node + (i - 1) * K, mask=real, other=-_INF)
        step = tl.load(transition + edge + i * K * K, mask=pair, other=-_INF).to(tl.float32)
        came = before[:, :, None] + step
        top = tl.max(came, 1)
        came = tl.exp(came - tl.where(top == -_INF, 0.0, top)[:, None, :])
        mass = tl.sum(came, 1)
        came = came / tl.where(mass == 0.0, 1.0, mass)[:, None, :] * posterior[:, None, :]
        tl.store(to_transition + edge + i * K * K, came, mask=pair)
        posterior = tl.sum(came, 2)
    tl.store(to_emission + node, posterior, mask=real)
    first = tl.where((j == 0)[None, :, None], posterior[:, None, :], 0.0)
    tl.store(to_transition + edge, first, mask=pair)


@triton.jit
def _tilt(emission, transition, links, B, N, K, S: tl.constexpr, P: tl.constexpr):
    _, _, real, pair, node, edge = _chains(B, N, K, S, P)
    later = tl.zeros([S, P], tl.float32)
    for back in range(N):
        i = N - 1 - back
        later += tl.load(emission + node + i * K, mask=real, other=-_INF).to(tl.float32)
        link = (
            tl.load(transition + edge + i * K * K, mask=pair, other=-_INF).to(tl.float32) + later[:, None, :]
        )
        top = tl.max(link, 2)
        base = tl.where(top == -_INF, 0.0, top)
        later = base + tl.log(tl.sum(tl.exp(link - base[:, :, None]), 2))
        tl.store(links + edge + i * K * K, link - tl.where(top == -_INF, 0.0, later)[:, :, None], mask=pair)
