"""The fused pieces beside their torch twins, at the shapes of the paper's model."""

from typing import Any

import torch
from torch import Tensor

from dadlm import dag
from dadlm.bench.machine import describe_machine, log, measure_ceilings, median_ms
from dadlm.dag._recursion import alphas, posteriors
from dadlm.decode.sample import draw, draw_tokens, nucleus


def bench_kernels(rows: int = 32, device: str = "cuda") -> dict[str, Any]:
    """Milliseconds of each piece, fused (on CUDA) and in plain torch."""
    place = torch.device(device)
    dtype = torch.bfloat16 if place.type == "cuda" else torch.float32
    table = [_forward(rows * 64, place), *_paths(rows, place), _tokens(rows, place)]
    for row in table:
        row["speedup"] = row["torch_ms"] / row["ms"]
        log(row)
    machine = describe_machine(place, dtype, measure_ceilings(place, dtype))
    return {"kind": "kernels", **machine, "pieces": table}


def graph(chains: int, place: torch.device, N: int = 16, K: int = 4) -> tuple[Tensor, Tensor]:
    """Random emissions [B, N, K] and transitions [B, N, K, K] of chains in which half is masked."""
    masked = torch.rand(chains, N, 1, device=place) < 0.5
    active = masked | (torch.arange(K, device=place) == 0)
    emission = torch.where(active, torch.randn(chains, N, K, device=place) * masked, -torch.inf)
    logits = torch.randn(chains, N, K, K, device=place).masked_fill(~active[:, :, None], -torch.inf)
    return emission, logits.log_softmax(-1)


def _forward(chains: int, place: torch.device) -> dict[str, Any]:
    emission, transition = (x.requires_grad_() for x in graph(chains, place))
    ones = torch.ones(chains, device=place)

    def fused() -> None:
        torch.autograd.grad(dag.forward_logp(emission, transition), (emission, transition), ones)

    @torch.no_grad()
    def plain() -> None:
        alpha = alphas(emission, transition)
        for logp in posteriors(alpha, transition):
            logp.exp()

    name = f"forward recursion and gradient, {chains} chains"
    return {"piece": name, "ms": median_ms(fused, place), "torch_ms": median_ms(plain, place)}


def _paths(chains: int, place: torch.device) -> list[dict[str, Any]]:
    emission, transition = graph(chains, place)
    uniform = torch.rand(chains, 16, device=place)
    double = (emission.double(), transition.double(), uniform.double())  # has no kernel
    return [
        {
            "piece": f"sampled path, {chains} chains",
            "ms": median_ms(lambda: dag.sample_path(transition, uniform), place),
            "torch_ms": median_ms(lambda: dag.sample_path(double[1], double[2]), place),
        },
        {
            "piece": f"best path, {chains} chains",
            "ms": median_ms(lambda: dag.best_path(emission, transition), place),
            "torch_ms": median_ms(lambda: dag.best_path(double[0], double[1]), place),
        },
    ]


def _tokens(rows: int, place: torch.device) -> dict[str, Any]:
    logits, uniform = torch.randn(rows, 50257, device=place) * 3, torch.rand(rows, device=place)

    def plain() -> Tensor:
        return draw(nucleus((logits - logits.amax(-1, keepdim=True)).exp(), 0.9), uniform)

    name = f"nucleus 0.9 of 50,257 tokens, {rows} rows"
    fused = median_ms(lambda: draw_tokens(logits, uniform, 1.0, 0.9, "standard"), place)
    return {"piece": name, "ms": fused, "torch_ms": median_ms(plain, place)}
