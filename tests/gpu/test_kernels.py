"""Every Triton kernel against its torch twin, and the algorithms over paths against enumeration."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dadlm import counter, dag
from dadlm.dag import naive
from dadlm.decode import sample
from dadlm.decode.samplers import base
from dadlm.model import layer as rotary
from dadlm.model.attention import merge, softmax_average
from dadlm.nodes import Nodes, lay_out
from dadlm.nodes.moves import take

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]
SHAPES = [(1, 4), (2, 1), (3, 3), (5, 2), (7, 5), (16, 4), (16, 8), (4, 17), (33, 4)]


def chains(count: int, N: int, K: int, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Blocks of every kind: mixed; the first all anchors, the second all masked, the third impossible."""
    generator = torch.Generator().manual_seed(seed)
    masked = torch.rand(count, N, 1, generator=generator) < torch.rand(count, 1, 1, generator=generator)
    masked[0], masked[1] = False, True
    active = masked | (torch.arange(K) == 0)
    emission = torch.randn(count, N, K, generator=generator) * 3 * masked
    emission = emission.masked_fill(~active, -torch.inf)
    emission[2, N // 2] = -torch.inf
    logits = 2 * torch.randn(count, N, K, K, generator=generator)
    transition = logits.masked_fill(~active[:, :, None], -torch.inf).log_softmax(-1)
    return emission.to("cuda", dtype), transition.to("cuda", dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("N", "K"), SHAPES)
def test_forward_and_gradients(N: int, K: int, dtype: torch.dtype) -> None:
    emission, transition = chains(37, N, K, dtype)
    results = []
    for inputs in ((emission, transition), (emission.double(), transition.double())):  # double has no kernel
        inputs = [x.clone().requires_grad_() for x in inputs]
        value = dag.forward_logp(*inputs)
        grads = torch.autograd.grad(
            value, inputs, torch.linspace(-1, 2, 37, device="cuda", dtype=value.dtype)
        )
        results.append((value, *grads))
    tolerance = 1e-4 if dtype == torch.float32 else 1e-2  # gradients come back in the inputs' dtype
    for fast, slow in zip(*results, strict=True):
        torch.testing.assert_close(fast.double(), slow, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("N", "K"), SHAPES)
@torch.no_grad()
def test_tilted_links_priors_and_prefixes(N: int, K: int) -> None:
    emission, transition = chains(37, N, K, torch.float32)
    for fast, slow in (
        (dag.tilted(transition, emission), dag.tilted(transition.double(), emission.double())),
        (dag.node_marginals(transition), dag.node_marginals(transition.double())),
        (dag.prefix_logp(emission, transition), dag.prefix_logp(emission.double(), transition.double())),
    ):
        # Prefixes reach 1e20. Single precision has 4e-6 between neighbours at the logarithm of that, 46, and
        # an error of the logarithm is a relative one of the value: some roundings are more than 1e-5.
        torch.testing.assert_close(fast.exp().double(), slow.exp(), atol=1e-5, rtol=1e-4)


def test_the_gradient_of_a_sum() -> None:
    """It arrives expanded from a single number, not as a tensor of ones."""
    emission, transition = (x.view(4, 3, *x.shape[1:]) for x in chains(12, 5, 3, torch.float32))
    grads = []
    for kind in (torch.float32, torch.float64):
        inputs = [x.to(kind).requires_grad_() for x in (emission, transition)]
        value = dag.forward_logp(*inputs).nan_to_num(neginf=0.0)
        grads.append(torch.autograd.grad(value.sum(), inputs))
        grads.append(torch.autograd.grad(dag.forward_logp(*inputs).sum(), inputs))
    for fast, slow in zip(grads[0] + grads[1], grads[2] + grads[3], strict=True):
        torch.testing.assert_close(fast.double(), slow, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("N", "K"), [(1, 4), (3, 3), (4, 2), (5, 3)])
def test_forward_and_best_path_by_enumeration(N: int, K: int) -> None:
    emission, transition = chains(9, N, K, torch.float32, seed=1)
    on_cpu = (emission.cpu(), transition.cpu())
    torch.testing.assert_close(dag.forward_logp(emission, transition).cpu(), naive.forward_logp(*on_cpu))
    path, logp = dag.best_path(emission, transition)
    slow_path, slow_logp = naive.best_path(*on_cpu)
    torch.testing.assert_close(logp.cpu(), slow_logp)
    assert torch.equal(path.cpu(), slow_path)


@pytest.mark.parametrize(("N", "K"), SHAPES)
def test_paths_equal_the_cpu(N: int, K: int) -> None:
    emission, transition = chains(101, N, K, torch.float32, seed=2)
    uniform = torch.rand(101, N, generator=torch.Generator().manual_seed(3))
    drawn = dag.sample_path(transition, uniform.cuda())
    assert torch.equal(drawn.cpu(), dag.sample_path(transition.cpu(), uniform))
    ahead = dag.lookahead_path(emission, transition)
    assert torch.equal(ahead.cpu(), dag.lookahead_path(emission.cpu(), transition.cpu()))
    path, logp = dag.best_path(emission, transition)
    slow_path, slow_logp = dag.best_path(emission.cpu(), transition.cpu())
    assert torch.equal(path.cpu(), slow_path)
    torch.testing.assert_close(logp.cpu(), slow_logp)


def test_random_numbers_are_the_same_bits() -> None:
    counters = [torch.tensor(values) for values in ([3, -5, 2**62], [0, 1, 7], [2, 0, 5])]
    fast = base.block_uniform(*(x.cuda() for x in counters), 1500, counter.TOKEN)
    assert torch.equal(fast.cpu(), base.block_uniform(*counters, 1500, counter.TOKEN))


@pytest.mark.parametrize("V", [10, 20, 4096, 50257])
@pytest.mark.parametrize("rule", ["standard", "bd3lm"])
def test_tokens_equal_the_sorted_nucleus(V: int, rule: str) -> None:
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(64, V, generator=generator) * 3
    logits[1], logits[2], logits[3] = 0.0, -torch.inf, logits[3].round()  # ties
    logits[2, : V // 2] = 9.0
    logits[4] = -torch.inf
    logits[4, V // 2] = 1.0
    uniform = torch.rand(64, generator=generator)
    uniform[0] = 1 - 2**-24
    for top_p, temperature in itertools.product((1.0, 0.9, 0.7, 0.3, 1e-6), (1.0, 0.7)):
        fast = sample.draw_tokens(logits.cuda(), uniform.cuda(), temperature, top_p, rule).cpu()
        weight = ((logits - logits.amax(-1, keepdim=True)) / temperature).exp().double()
        ordered, index = weight.sort(dim=-1, descending=True, stable=True)
        mass, wanted = ordered.cumsum(-1), weight.sum(-1, keepdim=True) * top_p
        inside = mass - ordered < wanted if rule == "standard" else mass <= wanted
        inside[:, 0] = True
        kept = weight * torch.zeros_like(inside).scatter(-1, index, inside)
        slow = sample.draw(kept, uniform)
        # exp differs in its last bit between the devices: next to a border the neighbour is right as well.
        assert (fast == slow).float().mean() >= 0.96
        assert torch.equal(fast[[1, 2, 4]], slow[[1, 2, 4]]), "equal weights are exact: ties must be too"
        assert (kept.gather(-1, fast[:, None]) > 0).float().mean() >= 0.96


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("C", "L", "E"), [(1, 64, 16), (17, 100, 32), (65, 1024, 64), (200, 130, 128)])
def test_attention_over_prefix_and_block(C: int, L: int, E: int, dtype: torch.dtype) -> None:
    from dadlm.model.kernels.attend import attend

    generator = torch.Generator("cuda").manual_seed(5)
    B, H = 3, 2
    qkv = torch.randn(B, C, 3, H, E, device="cuda", generator=generator).to(dtype)
    q, own_k, own_v = qkv.unbind(2)
    k, v = (torch.randn(B, L, H, E, device="cuda", generator=generator).to(dtype) for _ in range(2))
    visible = torch.randint(0, L + 1, (B, C), device="cuda", generator=generator)
    visible[0] = 0
    is_key = torch.rand(B, C, device="cuda", generator=generator) < 0.6
    is_key[:, 0] = True
    q2, k2, v2, ok2, ov2 = (x.double().transpose(1, 2) for x in (q, k, v, own_k, own_v))
    before = softmax_average(q2, k2, v2, torch.arange(L, device="cuda") < visible[:, None, :, None])
    inside = softmax_average(q2, ok2, ov2, is_key[:, None, None])
    tolerance = {"atol": 1e-4, "rtol": 1e-4} if dtype == torch.float32 else {"atol": 2e-2, "rtol": 2e-2}
    both, _ = attend(q, k, v, visible, (own_k, own_v, is_key))
    torch.testing.assert_close(both.double(), merge(before, inside).transpose(1, 2), **tolerance)
    out, lse = attend(q, k, v, visible, normaliser=True)
    torch.testing.assert_close(out.double(), before[0].transpose(1, 2), **tolerance)
    torch.testing.assert_close(lse.double(), before[1].double().transpose(1, 2), atol=1e-2, rtol=1e-2)


def blocks(N: int, K: int, packed: bool, start: bool) -> Nodes:
    """Three rows of five blocks: as slots, or packed."""
    B, G = 3, 5
    masked = torch.rand(B, G, N, device="cuda") < torch.rand(B, G, 1, device="cuda")
    masked[0, 0], masked[1, 1] = False, True
    first = (torch.arange(G, device="cuda") * N).expand(B, -1).contiguous()
    return lay_out(masked, first, candidates=K, start=start, packed=packed)


either = pytest.mark.parametrize("packed", [False, True])


@either
@pytest.mark.parametrize(("N", "K"), [(4, 3), (16, 1), (16, 4), (5, 7), (16, 8)])
def test_attention_inside_a_block_joined_with_the_prefix(N: int, K: int, packed: bool) -> None:
    from dadlm.model import attention
    from dadlm.model.kernels.inside import attend_inside

    torch.manual_seed(7)
    H, E = 2, 32
    nodes = blocks(N, K, packed, K > 1)
    B, C = nodes.position.shape
    qkv = torch.randn(B, C, 3, H, E, device="cuda", requires_grad=True)
    average = torch.randn(B, C, H, E, device="cuda", requires_grad=True)
    normaliser = torch.randn(B, C, H, device="cuda").masked_fill((nodes.visible == 0)[..., None], -torch.inf)
    normaliser.requires_grad_()
    real = torch.ones(B, C, dtype=torch.bool, device="cuda")
    if nodes.slot_of_node is not None:
        real = nodes.slot_of_node >= 0
    probe = torch.randn(B, C, H, E, device="cuda") * real[..., None, None]
    inside = attention._inside(*qkv.unbind(2), nodes, softmax_average)
    slow = merge((average, normaliser), inside)
    fast = attend_inside(*qkv.unbind(2), nodes, (average, normaliser))
    torch.testing.assert_close(fast[real], slow[real], atol=1e-4, rtol=1e-4)
    inputs = (qkv, average, normaliser)
    grads = [torch.autograd.grad((out * probe).sum(), inputs) for out in (fast, slow)]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b.nan_to_num(), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@either
@pytest.mark.parametrize(("N", "K", "H", "E"), [(16, 4, 2, 64), (5, 3, 1, 96), (1, 2, 3, 16), (4, 8, 1, 320)])
def test_scores_of_links(N: int, K: int, H: int, E: int, packed: bool, dtype: torch.dtype) -> None:
    from dadlm.model import transition
    from dadlm.model.kernels import links

    torch.manual_seed(8)
    nodes = blocks(N, K, packed, True)
    q, k = (torch.randn(*nodes.position.shape, H * E, device="cuda").to(dtype) for _ in range(2))
    twins = [(q.clone().requires_grad_(), k.clone().requires_grad_())]
    twins.append(tuple(x.double().requires_grad_() for x in (q, k)))  # double has no kernel
    fast, slow = links.scores(*twins[0], nodes, H), transition._scores(*twins[1], nodes, H)
    torch.testing.assert_close(fast, slow.float(), atol=1e-4, rtol=1e-4)
    probe = torch.randn_like(fast)
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2  # gradients come back in the inputs' dtype
    for inputs, out in zip(twins, (fast, slow), strict=True):
        (out * probe).sum().backward()
        assert all(x.grad is not None for x in inputs)
    for a, b in zip(*twins, strict=True):
        torch.testing.assert_close(a.grad.double(), b.grad, atol=tolerance, rtol=tolerance)


@torch.no_grad()
def test_pointwise_parts() -> None:
    from dadlm.model.kernels import pointwise

    x, weight = torch.randn(5, 3, 96, device="cuda"), torch.randn(96, device="cuda")
    shift, scale = torch.randn(2, 96, device="cuda").unbind(0)
    normed = F.layer_norm(x, (96,)) * weight * (1 + scale) + shift
    torch.testing.assert_close(pointwise.norm_modulate(x, weight, shift, scale, True, 1e-5), normed)
    rms = F.rms_norm(x, (96,), weight, 1e-6)
    torch.testing.assert_close(pointwise.norm_modulate(x, weight, None, None, False, 1e-6), rms)
    torch.testing.assert_close(pointwise.add_gated(x, scale, normed), x + scale * normed)
    q = torch.randn(5, 7, 3, 4, 24, device="cuda")[:, :, 1]
    position = torch.randint(-1, 900, (5, 7), device="cuda")
    turns = rotary.rotation(position, 24)
    cos, sin = turns
    a, b = q.chunk(2, -1)
    expected = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    torch.testing.assert_close(pointwise.rotate(q, *turns), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("features", [(), (5,), (3, 700)])
def test_taking_rows(features: tuple[int, ...], dtype: torch.dtype) -> None:
    x = (torch.randn(3, 40, *features) * 5).to(dtype)
    index = torch.randint(-1, 40, (3, 77))
    assert torch.equal(take(x.cuda(), index.cuda()).cpu(), take(x, index))


@pytest.mark.parametrize("piece", [1 << 30, 1 << 16])
@pytest.mark.parametrize("kept", [10, 1 << 40])
@pytest.mark.parametrize("bias", [False, True])
def test_head_and_cross_entropy(bias: bool, kept: int, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from dadlm.model.kernels import head

    monkeypatch.setattr(head, "_PIECE", piece)
    monkeypatch.setattr(head, "_KEPT", kept)
    generator = torch.Generator("cuda").manual_seed(6)
    hidden, weight, b = (
        torch.randn(*shape, device="cuda", generator=generator, requires_grad=True)
        for shape in ((700, 32), (1001, 32), (1001,))
    )
    inputs = [hidden, weight, b] if bias else [hidden, weight]
    target = torch.randint(0, 1000, (700,), device="cuda", generator=generator)
    logits = F.linear(hidden, weight[:1000], b[:1000] if bias else None)
    slow = -F.cross_entropy(logits, target, reduction="none")
    fast = head.target_logp(hidden, weight, b if bias else None, target, 1000)
    torch.testing.assert_close(fast, slow, atol=1e-4, rtol=1e-4)
    grad = torch.randn(700, device="cuda", generator=generator)
    for a, c in zip(
        torch.autograd.grad(fast, inputs, grad), torch.autograd.grad(slow, inputs, grad), strict=True
    ):
        torch.testing.assert_close(a, c, atol=1e-3, rtol=1e-3)
