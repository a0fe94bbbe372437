"""The composite confidence against its formula, position by position.

B rows, N block size, K candidates.
"""

import pytest
import torch
from tests.decode.tiny import prompt_of, silence_eot, tiny

from dadlm import generate
from dadlm.decode.step import composite as composite_of_rows


def composite(
    emitted: torch.Tensor, transition: torch.Tensor, path: torch.Tensor, weight: float
) -> torch.Tensor:
    return composite_of_rows(emitted, transition, path, torch.full((len(path), 1), weight).double())


def random_case(B: int = 5, N: int = 4, K: int = 3):
    generator = torch.Generator().manual_seed(0)
    transition = torch.randn(B, N, K, K, generator=generator).log_softmax(-1)
    return (
        torch.rand(B, N, generator=generator),
        transition,
        torch.randint(0, K, (B, N), generator=generator),
    )


@pytest.mark.parametrize("weight", [0.0, 0.3, 0.5, 1.0])
def test_equals_the_formula(weight: float):
    emitted, transition, path = random_case()
    found = composite(emitted, transition, path, weight)
    for b, i in torch.cartesian_prod(torch.arange(5), torch.arange(4)).tolist():
        before = int(path[b, i - 1]) if i else 0  # the start-of-block node is row 0
        incoming = float(transition[b, i, before, path[b, i]].exp())
        outgoing = float(transition[b, i + 1, path[b, i], path[b, i + 1]].exp()) if i < 3 else 1.0
        expected = (1 - weight) * float(emitted[b, i]) + weight * (incoming + outgoing) / 2
        assert float(found[b, i]) == pytest.approx(expected, abs=1e-6)


def test_weight_zero_is_the_emission_and_weight_one_the_transitions():
    emitted, transition, path = random_case()
    assert torch.equal(composite(emitted, transition, path, 0.0), emitted)
    assert torch.equal(
        composite(emitted, transition, path, 1.0), composite(1 - emitted, transition, path, 1.0)
    )


def test_one_node_per_position_leaves_the_emission_alone():
    emitted = torch.rand(2, 3)
    found = composite(emitted, torch.zeros(2, 3, 1, 1), torch.zeros(2, 3).long(), 0.9)
    assert torch.equal(found, emitted)


def test_the_weight_changes_the_outcome():
    model = silence_eot(tiny("dadlm"))
    how = {"max_new_tokens": 40, "seed": 0, "sampler": "confidence", "threshold": 0.5}
    passes = {
        w: generate(model, prompt_of(6), transition_weight=w, **how).forward_passes for w in (0.0, 0.5, 1.0)
    }
    assert passes[0.0] != passes[0.5] != passes[1.0]


def test_some_steps_keep_several_and_some_only_the_surest():
    """Which ones is compared with plain loops in test_generate; here, that both happen there."""
    model = silence_eot(tiny("dadlm"))
    for weight, threshold in ((0.0, 0.2), (0.3, 0.4), (0.5, 0.5)):
        how = {"sampler": "confidence", "threshold": threshold, "transition_weight": weight}
        out = generate(model, [prompt_of(8)] * 4, max_new_tokens=40, seed=0, **how)
        assert 60 < sum(out.forward_passes) < 150, (weight, out.forward_passes)  # 160 would be one each
