"""Kernels whose keys and values are shared by several queries, against the same ones repeated.

Also in Triton's interpreter, without a GPU: `TRITON_INTERPRET=1 pytest -m gpu tests/gpu/test_grouped.py`.
"""

import os

import pytest
import torch
from tests.model.test_grouped import LLAMA, without_groups
from tests.model.tiny import gradients, random_ids, random_noise, tiny_model
from torch import Tensor

from dadlm.model import kernels
from dadlm.nodes import lay_out
from dadlm.noise import Noise
from dadlm.objective import losses

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available() and not INTERPRETED, reason="needs CUDA"),
    pytest.mark.filterwarnings("ignore:overflow encountered"),  # by numpy, which the interpreter uses
]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
B, H, E = 3, 6, 16


def numbers(length: int, heads: int) -> Tensor:
    return torch.randn(B, length, heads, E, device=DEVICE)


@pytest.mark.parametrize("shared", [2, 6])
@pytest.mark.parametrize("C", [1, 17, 65])
@torch.no_grad()
def test_prefix_and_block(C: int, shared: int) -> None:
    from dadlm.model.kernels.attend import attend

    L = 130
    visible, is_key = torch.randint(0, L + 1, (B, C), device=DEVICE), torch.rand(B, C, device=DEVICE) < 0.6
    visible[0], is_key[:, 0] = 0, True
    q, shares = numbers(C, H), [numbers(n, H // shared) for n in (L, L, C, C)]
    found = []
    for repeats in (1, shared):
        k, v, own_k, own_v = (x.repeat_interleave(repeats, 2) for x in shares)
        found.append(attend(q, k, v, visible, (own_k, own_v, is_key), normaliser=True))
        found.append(attend(q, k, v, visible, normaliser=True))
    for grouped, truth in zip(found[0] + found[1], found[2] + found[3], strict=True):
        torch.testing.assert_close(grouped, truth, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shared", [2, 6])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("N", "K"), [(4, 3), (16, 1)])
def test_inside_a_block(N: int, K: int, packed: bool, shared: int) -> None:
    """Values and gradients."""
    from dadlm.model.kernels.inside import attend_inside

    G = 2
    masked = torch.rand(B, G, N, device=DEVICE) < torch.rand(B, G, 1, device=DEVICE)
    first = (torch.arange(G, device=DEVICE) * N).expand(B, -1).contiguous()
    nodes = lay_out(masked, first, candidates=K, start=K > 1, packed=packed)
    C = nodes.position.shape[1]
    q, k, v, average = (numbers(C, heads).requires_grad_() for heads in (H, H // shared, H // shared, H))
    normaliser = torch.randn(B, C, H, device=DEVICE, requires_grad=True)
    real = torch.ones(B, C, 1, 1, device=DEVICE)
    if nodes.slot_of_node is not None:
        real = (nodes.slot_of_node >= 0)[..., None, None]
    probe, found = numbers(C, H) * real, list[tuple[Tensor, ...]]()
    for repeats in (1, shared):
        keys, values = (x.repeat_interleave(repeats, 2) for x in (k, v))
        out = attend_inside(q, keys, values, nodes, (average, normaliser)) * real
        found.append((out, *torch.autograd.grad((out * probe).sum(), (q, k, v, average, normaliser))))
    for grouped, truth in zip(*found, strict=True):
        torch.testing.assert_close(grouped, truth, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["ar", "bd3lm", "dadlm"])
def test_networks(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses and gradients, for which torch's own kernels on CUDA get keys and values repeated."""
    monkeypatch.setattr(kernels, "takes", lambda x: x.dtype != torch.float64)
    model = tiny_model(family, **LLAMA | {"head_width": 16}).to(DEVICE)
    ids, noise = random_ids(model.config).to(DEVICE), random_noise(model)
    noise = None if family == "ar" else Noise(*(x if x is None else x.to(DEVICE) for x in noise))
    twin = without_groups(model).to(DEVICE)
    values = [losses(one, ids, noise).train for one in (model, twin)]
    torch.testing.assert_close(*values, atol=1e-4, rtol=1e-4)
    grads = [gradients(one, loss.sum()) for one, loss in zip((model, twin), values, strict=True)]
    for name in grads[0]:
        if ".qkv." not in name:
            torch.testing.assert_close(grads[0][name], grads[1][name], atol=1e-3, rtol=1e-3)
