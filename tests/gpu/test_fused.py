"""The layers in few launches: every kernel against torch, and whole passes against whole layers.

Also in Triton's interpreter, without a GPU: `TRITON_INTERPRET=1 pytest -m gpu tests/gpu/test_fused.py`.
"""

import os
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.decode.tiny import prompt_of, tiny
from tests.model.tiny import random_ids, tiny_model
from torch import Tensor

from dadlm import generate
from dadlm.decode.cache import Cache
from dadlm.model import fused, kernels, layer

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available() and not INTERPRETED, reason="needs CUDA"),
    pytest.mark.filterwarnings("ignore:overflow encountered"),  # by numpy, which the interpreter uses
]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16  # the interpreter cannot multiply in the other
CLOSE: dict[torch.dtype, Any] = {
    torch.float32: {"atol": 1e-5, "rtol": 1e-5},
    HALF: {"atol": 3e-2, "rtol": 3e-2},
}
dtypes = pytest.mark.parametrize("dtype", [torch.float32, HALF])


@pytest.fixture(autouse=True)
def with_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter runs them on CPU tensors."""
    monkeypatch.setattr(kernels, "takes", lambda x: x.dtype != torch.float64)


def numbers(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(dtype)


@dtypes
@pytest.mark.parametrize("width", [64, 96, 100, 1000, 4096])
@pytest.mark.parametrize(("with_bias", "gated", "modulated"), [(True, True, True), (False, False, False)])
@pytest.mark.parametrize("centred", [True, False])
@torch.no_grad()
def test_sum_and_norm(width, dtype, with_bias, gated, modulated, centred) -> None:
    from dadlm.model.kernels import pointwise

    x, weight = numbers(2, 3, width, dtype=dtype), numbers(width, dtype=dtype)
    branch = numbers(2, 3, 2 * width, dtype=dtype)[..., :width]  # rows of a wider product
    bias, gate, shift, scale = numbers(4, width, dtype=dtype).unbind(0)
    bias, gate = bias if with_bias else None, gate if gated else None
    shift, scale = (shift, scale) if modulated else (None, None)
    total, normed = pointwise.add_norm(x, branch, bias, gate, weight, shift, scale, centred, 1e-5)
    added = branch.float() + (0 if bias is None else bias.float())
    expected = (x.float() + added * (1 if gate is None else gate.float())).to(dtype)
    torch.testing.assert_close(total, expected, **CLOSE[dtype])
    twin = pointwise.norm_modulate(total, weight, shift, scale, centred, 1e-5)
    assert torch.equal(normed, twin), "the norm must be of what was stored"


@dtypes
@pytest.mark.parametrize("width", [64, 100, 2048, 3000])
@pytest.mark.parametrize("with_bias", [True, False])
@torch.no_grad()
def test_gelu(width: int, with_bias: bool, dtype: torch.dtype) -> None:
    from dadlm.model.kernels import pointwise

    hidden, bias = 4 * numbers(3, 2, width, dtype=dtype), numbers(width, dtype=dtype)
    slow = F.gelu(hidden.float() + (bias.float() if with_bias else 0), approximate="tanh").to(dtype)
    fast = pointwise.gelu(hidden, bias if with_bias else None)
    torch.testing.assert_close(fast, slow, **CLOSE[dtype])
    extreme = torch.tensor([-1e4, -100.0, -0.0, 0.0, 100.0, 1e4], device=DEVICE)
    torch.testing.assert_close(pointwise.gelu(extreme, None), F.gelu(extreme, approximate="tanh"))


@dtypes
@pytest.mark.parametrize(("C", "L", "E", "shared"), [(1, 64, 16, 1), (17, 100, 32, 3), (65, 130, 64, 1)])
@torch.no_grad()
def test_rotary_turn_and_write_with_attention(C: int, L: int, E: int, shared: int, dtype) -> None:
    """Against the turn, then the write, then attention with keys and values repeated for every query that
    shares them; the cache is a view of some slots."""
    from dadlm.model.kernels.attend import attend

    B, H = 2, 3
    heads = (H, H // shared, H // shared)
    q, own_k, own_v = numbers(B, C, sum(heads), E, dtype=dtype).split(heads, -2)
    k, v = (numbers(4, L + 7, H // shared, E, dtype=dtype)[1:3, :L] for _ in range(2))
    first = torch.tensor([[0], [L - C]], device=DEVICE)
    position = first + torch.arange(C, device=DEVICE)
    turn, visible = layer.rotation(position, E), first.expand(B, C)
    is_key = torch.rand(B, C, device=DEVICE) < 0.6
    is_key[:, 0] = True
    turned_q, turned_k = layer.rotate(q, turn), layer.rotate(own_k, turn)
    whole_k, whole_v, *before = (x.repeat_interleave(shared, 2) for x in (turned_k, own_v, k, v))
    for counts in (is_key, torch.ones_like(is_key)):
        slow, _ = attend(turned_q, *before, visible, (whole_k, whole_v, counts))
        fast, _ = attend(q, k, v, visible, (own_k, own_v, counts), turn=turn)
        torch.testing.assert_close(fast, slow, **CLOSE[dtype])
    before_k, before_v = k.clone(), v.clone()
    written, _ = attend(q, k, v, visible, (own_k, own_v, None), turn=turn, place=position)
    torch.testing.assert_close(written, fast, **CLOSE[dtype])  # compiled apart: a sum may round otherwise
    row = torch.arange(B, device=DEVICE)[:, None]
    before_k[row, position], before_v[row, position] = turned_k, own_v
    torch.testing.assert_close(k, before_k, **CLOSE[dtype])
    assert torch.equal(v, before_v)


MODELS = [
    ("dadlm", {"expand_at": 1, "layers": 3, "width": 48, "heads": 3}),
    ("bd3lm", {"architecture": "bd3lm", "heads": 2}),
    ("ar", {"architecture": "bd3lm-ar", "heads": 2, "tie_embedding": False}),
    ("ar", {"architecture": "llama", "heads": 2, "kv_heads": 1, "mlp_width": 40}),
    ("bd3lm", {"lora": 3, "heads": 2, "architecture": "llama"}),
    ("mdlm", {"heads": 2}),
]


@pytest.mark.parametrize(("family", "shape"), MODELS)
@pytest.mark.parametrize("rows", [1, 3])
@torch.no_grad()
def test_passes_are_those_of_whole_layers(family: str, shape: dict, rows: int, monkeypatch) -> None:
    """Read a text, then a pass behind it."""
    model = tiny_model(family, candidates=1, **shape).to(DEVICE)
    ids, N = random_ids(model.config, rows).to(DEVICE), model.config.block
    masked = torch.rand(rows, 1, N, device=DEVICE) < 0.7
    found = []
    for whole_layers in (True, False):
        if whole_layers:
            monkeypatch.setattr(fused, "usable", lambda *_: False)
        cache = Cache(model, rows + 1, 16)
        context = cache.view(slice(1, rows + 1), torch.cat([ids[:1], ids]), 16)
        if family == "mdlm":
            found.append([model.read(ids)])
            monkeypatch.undo()
            monkeypatch.setattr(kernels, "takes", lambda x: x.dtype != torch.float64)
            continue
        position = torch.arange(8, device=DEVICE).expand(rows, -1)
        model.read(ids[:, :8], context, position=position, only_context=True)
        if family == "ar":
            here = position[:, :1] + 8
            results = [model.read(ids[:, 8 + i, None], context, position=here + i) for i in range(2)]
        else:
            first = torch.full((rows, 1), 8, device=DEVICE)
            denoised = model.denoise(ids[:, None, 8 : 8 + N], masked, first, context, packed=False)
            results = [denoised.hidden]
        found.append([*results, cache.k, cache.v])
        monkeypatch.undo()
        monkeypatch.setattr(kernels, "takes", lambda x: x.dtype != torch.float64)
    for slow, fast in zip(*found, strict=True):
        torch.testing.assert_close(fast, slow, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("family", ["ar", "bd3lm", "dadlm"])
def test_texts_are_those_of_whole_layers(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny(family).to(DEVICE)
    prompts, texts = [prompt_of(n) for n in (4, 6, 9)], []
    for whole_layers in (True, False):
        if whole_layers:
            monkeypatch.setattr(fused, "usable", lambda *_: False)
        texts.append(generate(model, prompts, max_new_tokens=8, seed=3).tokens)
        model.engines.clear()
        monkeypatch.undo()
        monkeypatch.setattr(kernels, "takes", lambda x: x.dtype != torch.float64)
    assert texts[0] == texts[1]
