"""Tokens of short vocabularies in one launch: the kernels against their torch twins.

Also in Triton's interpreter, without a GPU: `TRITON_INTERPRET=1 pytest -m gpu tests/gpu/test_sampling.py`.
"""

import os

import pytest
import torch
from torch import Tensor

from dadlm.decode import sample
from dadlm.decode.position_nucleus import inside_together

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available() and not INTERPRETED, reason="needs CUDA"),
]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def hard_rows(n: int, V: int) -> Tensor:
    """Logits with ties, rows that are flat, that hold one token, or half of them."""
    logits = torch.randn(n, V, generator=torch.Generator().manual_seed(4)) * 3
    logits[1], logits[2], logits[3] = 0.0, -torch.inf, logits[3].round()
    logits[2, : V // 2] = 9.0
    logits[4] = -torch.inf
    logits[4, V // 2] = 1.0
    return logits


@pytest.mark.parametrize("V", [10, 500, 8192] if DEVICE == "cuda" else [10, 500])
@pytest.mark.parametrize("standard", [True, False])
def test_draws_of_the_nucleus(V: int, standard: bool) -> None:
    from dadlm.decode.kernels.short_row import draw

    n, generator = 48, torch.Generator().manual_seed(5)
    logits, uniform = hard_rows(n, V), torch.rand(n, generator=generator)
    uniform[0] = 1 - 2**-24
    top_p = torch.tensor([torch.inf, 0.9, 0.7, 0.3, 1e-6, 0.999], dtype=torch.float64).repeat(n // 6)
    scale = torch.tensor([1.0, 1 / 0.7, 3.0]).repeat(n // 3)
    crossing = torch.full((n,), int(standard), dtype=torch.int32)
    on = (x.to(DEVICE) for x in (logits, uniform, scale, top_p, crossing))
    fast = draw(*on).cpu()
    weight = ((logits - logits.amax(-1, keepdim=True)) * scale[:, None]).exp()
    kept = sample._nucleus(weight, top_p[:, None], crossing[:, None] != 0)
    # exp differs in its last bit between the devices: next to a border the neighbour is right as well.
    assert (fast == sample.draw(kept, uniform)).float().mean() >= 0.95
    assert (kept.gather(-1, fast[:, None]) > 0).float().mean() >= 0.95
    flat = [1, 2, 4]
    assert torch.equal(fast[flat], sample.draw(kept, uniform)[flat]), (
        "equal weights are exact: ties must be too"
    )


@pytest.mark.parametrize(
    ("K", "V"), [(1, 10), (4, 500), (3, 8192)] if DEVICE == "cuda" else [(1, 10), (4, 500)]
)
def test_nucleus_of_all_candidates(K: int, V: int) -> None:
    from dadlm.decode.kernels.short_row import inside_together as fused

    n, generator = 24, torch.Generator().manual_seed(6)
    logits = hard_rows(n * K, V).view(n, K, V)
    logits[:, -1] = torch.randn(n, V, generator=generator)
    prior = torch.rand(n, K, generator=generator).softmax(-1)
    temperature = torch.tensor([1.0, 0.7, 2.0]).repeat(n // 3)
    top_p = torch.tensor([torch.inf, 0.9, 0.3, 1e-6], dtype=torch.float64).repeat(n // 4)
    inside, mass = (x.cpu() for x in fused(*(x.to(DEVICE) for x in (logits, prior, temperature, top_p))))
    slow, slow_mass = inside_together(logits, prior, temperature, top_p)
    assert ((inside != slow).sum(1) <= 1).all(), (
        "a token at the edge may fall either way: its weight is rounded"
    )
    assert (inside != slow).any(1).float().mean() < 0.2
    same = (inside == slow).all(1)
    torch.testing.assert_close(mass[same], slow_mass[same])
