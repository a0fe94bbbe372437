"""What only a CUDA machine can show: the fast paths there against the slow ones, and against the CPU."""

import copy

import pytest
import torch

import dadlm
from dadlm.model import Model, ModelConfig, attention, attention_dense
from dadlm.nodes import lay_out, padded_sizes
from dadlm.noise import NoiseConfig, draw_noise
from dadlm.objective import losses

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
    pytest.mark.filterwarnings("ignore"),
]
FAMILIES = ("ar", "mdlm", "bd3lm", "dadlm")


def small_model(family: str, **changes) -> Model:
    torch.manual_seed(0)
    shape = {"context": 256, "block_size": 8, "layers": 3, "width": 64, "heads": 2, "candidates": 3}
    config = ModelConfig(family=family, vocab_size=60, eot_id=58, **(shape | changes))
    model = Model(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    return model


def batch(model: Model, rows: int = 4, device: str = "cpu", **how):
    ids = torch.randint(0, 58, (rows, model.config.context), generator=torch.Generator().manual_seed(1))
    noise = None
    if model.config.family != "ar":
        how |= {"seed": 3, "step": 5, "rows": torch.arange(rows, device=device), "batch_rows": rows}
        length, block_size = model.config.context, model.config.block
        noise = draw_noise(NoiseConfig(), length=length, block_size=block_size, **how)
    return ids.to(device), noise


def test_random_numbers_are_the_same_bits_on_both_devices():
    _, on_cpu = batch(small_model("bd3lm"))
    _, on_gpu = batch(small_model("bd3lm"), device="cuda")
    assert torch.equal(on_cpu.masked, on_gpu.masked.cpu())
    assert torch.equal(on_cpu.time, on_gpu.time.cpu())


@pytest.mark.parametrize("block_size", [4, 8, 16])
@pytest.mark.parametrize("candidates", [1, 3, 4])
def test_flex_prefix_equals_the_dense_twin(block_size, candidates):
    """Values and gradients, block 0 (no prefix), fully anchored and fully masked blocks included."""
    torch.manual_seed(2)
    length, rows, heads, width = 256, 3, 2, 32
    blocks = length // block_size
    masked = torch.rand(rows, blocks, block_size, device="cuda") < torch.rand(rows, blocks, 1, device="cuda")
    masked[0, 1], masked[1, 2] = False, True
    first = torch.arange(0, length, block_size, device="cuda").expand(rows, -1)
    nodes = lay_out(masked, first, candidates=candidates, start=candidates > 1)
    count = nodes.position.shape[1]
    q, k, v = (torch.randn(rows, count, heads, width, device="cuda", requires_grad=True) for _ in range(3))
    prefix = [torch.randn(rows, length, heads, width, device="cuda", requires_grad=True) for _ in range(2)]
    real = torch.ones(rows, count, dtype=torch.bool, device="cuda")
    if nodes.slot_of_node is not None:
        real = nodes.slot_of_node >= 0
    probe = torch.randn(rows, count, heads, width, device="cuda") * real[..., None, None]
    outcomes = []
    for attend in (attention.attend_nodes, attention_dense.attend_nodes):
        out = attend(q, k, v, tuple(prefix), nodes)
        grads = torch.autograd.grad((out * probe).sum(), (q, k, v, *prefix))
        outcomes.append((out[real], *grads))
    for fast, slow in zip(*outcomes, strict=True):
        assert torch.isfinite(fast).all()
        torch.testing.assert_close(fast, slow, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize(("family", "copies"), [*((one, 1) for one in FAMILIES), ("bd3lm", 3), ("dadlm", 3)])
def test_losses_and_gradients_equal_the_cpu(family, copies):
    model = small_model(family, expand_at=1 if family == "dadlm" else 0)
    twin = copy.deepcopy(model).cuda()
    results = []
    for one, device in ((model, "cpu"), (twin, "cuda")):
        loss = losses(one, *batch(one, device=device, masks_per_row=copies)).train.mean()
        loss.backward()
        results.append((loss.detach().cpu(), [p.grad.cpu() for p in one.parameters()]))
    torch.testing.assert_close(results[0][0], results[1][0], atol=1e-3, rtol=1e-3)
    for a, b in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(a, b, atol=2e-3 * float(a.abs().max() + 1e-3), rtol=2e-2)


@pytest.mark.parametrize(
    ("spans", "masks", "late", "transition"),
    [(False, 1, 0, "single"), (True, 1, 1, "gated"), (False, 3, 1, "single")],
)
def test_sizes_decided_before_change_nothing(spans, masks, late, transition):
    model = small_model("dadlm", expand_at=late, transition=transition).cuda()
    ids, rows = torch.randint(0, 58, (4, 256), generator=torch.Generator().manual_seed(1)), torch.arange(4)
    how = {"seed": 3, "step": 5, "rows": rows, "batch_rows": 4, "length": 256, "block_size": 8}
    maskable = (torch.arange(256) < 100).expand(4, -1) if spans else None
    noise = draw_noise(NoiseConfig(), maskable=maskable, masks_per_row=masks, **how)
    assert (noise.blocks is not None) == spans
    masked, found = noise.split_blocks(ids, 8)[1].flatten(1), []
    for sizes in (None, padded_sizes(masked, 8, 3, True)):
        loss = losses(model, ids.cuda(), noise.to(torch.device("cuda")), sizes=sizes).train.sum()
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in model.parameters())])
        model.zero_grad(set_to_none=True)
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-3 * float(a.abs().max() + 1e-3))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sampler": "random"},
        {"sampler": "random", "nucleus": "position"},
        {"sampler": "random", "top_k": 3, "top_p": 0.7},
        {"sampler": "random", "top_k": 3, "nucleus": "position"},
        {"sampler": "confidence", "path": "viterbi"},
        {"sampler": "confidence", "path": "lookahead", "padded": True, "infill": (4, 0.25)},
        {"sampler": "entropy", "bound": 4.0},
    ],
)
def test_samples_equal_the_cpu(family, options):
    model = small_model(family).eval()
    prompts = [[1, 2, 3], [4] * 17, [5] * 30]
    on_cpu = dadlm.generate(model, prompts, max_new_tokens=40, seed=7, **options)
    on_gpu = dadlm.generate(copy.deepcopy(model).cuda(), prompts, max_new_tokens=40, seed=7, **options)
    assert on_cpu.tokens == on_gpu.tokens
    assert on_cpu.forward_passes == on_gpu.forward_passes
