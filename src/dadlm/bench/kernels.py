"""The fused kernels compared with their torch twins, at the shapes of the paper's model."""

from typing import Any

import torch
from torch import Tensor

from dadlm import dag
from dadlm.bench.machine import Machine, check_counts, log
from dadlm.dag._recursion import alphas, posteriors
from dadlm.decode.sample import draw, draw_tokens, nucleus


def bench_kernels(rows: int = 32, device: str = "cuda") -> dict[str, Any]:
    """Milliseconds of each piece, fused (on CUDA) and in plain torch."""
    check_counts(rows=rows)
    machine, chains = Machine(device), rows * 64
    emission, transition = (x.requires_grad_() for x in graph(chains, machine.device))
    few_emission, few_transition = graph(rows, machine.device)
    path_uniform = torch.rand(rows, 16, device=machine.device)
    # There is no kernel for float64.
    doubles = [x.double() for x in (few_emission, few_transition, path_uniform)]
    logits = torch.randn(rows, 50257, device=machine.device) * 3
    uniform = torch.rand(rows, device=machine.device)

    def forward() -> None:
        logp = dag.forward_logp(emission, transition)
        torch.autograd.grad(logp, (emission, transition), torch.ones_like(logp))

    @torch.no_grad()
    def plain_forward() -> None:
        for logp in posteriors(alphas(emission, transition), transition):
            logp.exp()

    def plain_nucleus() -> Tensor:
        return draw(nucleus((logits - logits.amax(-1, keepdim=True)).exp(), 0.9), uniform)

    pieces = {
        f"forward recursion and gradient, {chains} chains": (forward, plain_forward),
        f"sampled path, {rows} chains": (
            lambda: dag.sample_path(few_transition, path_uniform),
            lambda: dag.sample_path(doubles[1], doubles[2]),
        ),
        f"best path, {rows} chains": (
            lambda: dag.best_path(few_emission, few_transition),
            lambda: dag.best_path(doubles[0], doubles[1]),
        ),
        f"nucleus 0.9 of 50,257 tokens, {rows} rows": (
            lambda: draw_tokens(logits, uniform, 1.0, 0.9, "standard"),
            plain_nucleus,
        ),
    }
    table = []
    for name, (fused, plain) in pieces.items():
        ms, torch_ms = machine.median_ms(fused), machine.median_ms(plain)
        table.append({"piece": name, "ms": ms, "torch_ms": torch_ms, "speedup": torch_ms / ms})
        log(table[-1])
    return {"kind": "kernels", **machine.describe(), "pieces": table}


def graph(chains: int, device: torch.device, N: int = 16, K: int = 4) -> tuple[Tensor, Tensor]:
    """Random emissions [B, N, K] and transitions [B, N, K, K] of half-masked chains."""
    masked = torch.rand(chains, N, 1, device=device) < 0.5
    active = masked | (torch.arange(K, device=device) == 0)
    emission = torch.where(active, torch.randn(chains, N, K, device=device) * masked, -torch.inf)
    logits = torch.randn(chains, N, K, K, device=device).masked_fill(~active[:, :, None], -torch.inf)
    return emission, logits.log_softmax(-1)
