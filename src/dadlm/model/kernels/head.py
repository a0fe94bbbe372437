"""The vocabulary head and cross-entropy in one: log-probabilities of targets.

Logits are made a piece at a time, reduced to one number per node, and made again for the gradient, or kept
for it where all of them take but a small share of the device's memory. Rows of the weights are padded to a
multiple of 64: matrix products over a vocabulary of odd size fall back to slow kernels.

n nodes, D width, V tokens without the mask, P padded vocabulary.
"""

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

_PIECE = 1 << 30  # logits of one piece
_KEPT = 10  # all of them are kept if they take at most one part in so many of the device's memory


def target_logp(hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, tokens: int) -> Tensor:
    """fp32 log-probability [n] of target ids [n] among the first `tokens` of the vocabulary. hidden [n, D];
    weight [·, D] and bias [·] are the parameters, cast as autocast would."""
    dtype = hidden.dtype
    if torch.is_autocast_enabled(hidden.device.type):
        dtype = torch.get_autocast_dtype(hidden.device.type)
    grad = torch.is_grad_enabled()  # within `forward` it never is
    return _TargetLogp.apply(hidden, weight, bias, target, tokens, dtype, grad)  # type: ignore[return-value]


class _TargetLogp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        hidden, weight, bias, target, tokens, dtype, grad = inputs
        with torch.autocast(hidden.device.type, enabled=False):
            h = hidden.to(dtype)
            w, b = _padded(weight, bias, tokens, dtype)
            logp, lse = (torch.empty(len(h), device=h.device, dtype=torch.float32) for _ in range(2))
            memory = torch.cuda.get_device_properties(h.device).total_memory
            kept = [] if grad and len(h) * len(w) * h.itemsize <= memory // _KEPT else None
            for part in _parts(len(h), len(w)):
                logits = _logits(h[part], w, b)
                _reduce[(len(logits),)](
                    logits, target[part], logp[part], lse[part], tokens, len(w), 4096, num_warps=8
                )
                if kept is not None:
                    kept.append(logits)
            ctx.kept = kept
            ctx.save_for_backward(hidden, weight, bias, target, lse)
            ctx.tokens, ctx.dtype = tokens, dtype
            return logp

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, target, lse = ctx.saved_tensors
        with torch.autocast(hidden.device.type, enabled=False):
            h = hidden.to(ctx.dtype)
            w, b = _padded(weight, bias, ctx.tokens, ctx.dtype)
            to_hidden = torch.empty_like(h)
            to_weight = torch.zeros(w.shape, device=w.device, dtype=torch.float32)
            to_bias = None if bias is None else torch.zeros(len(w), device=w.device, dtype=torch.float32)
            grad = grads[0].contiguous()
            kept, ctx.kept = ctx.kept, None  # they become the gradient in place: good for one time
            for part in _parts(len(h), len(w)):
                logits = _logits(h[part], w, b) if kept is None else kept.pop(0)
                _differentiate[(len(logits),)](
                    logits, target[part], lse[part], grad[part], ctx.tokens, len(w), 4096, num_warps=8
                )
                torch.mm(logits, w, out=to_hidden[part])
                to_weight += logits.t() @ h[part]
                if to_bias is not None:
                    to_bias += logits.sum(0, dtype=torch.float32)
            to_weight = _fit(to_weight, len(weight)).to(weight.dtype)
            to_bias = None if to_bias is None else _fit(to_bias, len(weight)).to(bias.dtype)
            return to_hidden.to(hidden.dtype), to_weight, to_bias, None, None, None, None


def _parts(n: int, P: int) -> list[slice]:
    size = max(1, _PIECE // P // 128 * 128)
    return [slice(first, min(first + size, n)) for first in range(0, n, size)]


def _padded(weight: Tensor, bias: Tensor | None, tokens: int, dtype: Any) -> tuple[Tensor, Tensor | None]:
    """The rows of the tokens, and zeros up to a multiple of 64."""
    spare = -tokens % 64
    w = F.pad(weight[:tokens].to(dtype), (0, 0, 0, spare))
    return w, None if bias is None else F.pad(bias[:tokens].to(dtype), (0, spare))


def _fit(x: Tensor, rows: int) -> Tensor:
    """As many rows as the parameter has: the padding goes, the mask's row gets zeros (or was padding)."""
    return x[:rows] if len(x) >= rows else F.pad(x, (*[0] * (2 * x.dim() - 1), rows - len(x)))


def _logits(h: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    return h @ w.t() if b is None else torch.addmm(b, h, w.t())


@triton.jit
def _reduce(logits, target, logp, lse, V, P, CHUNK: tl.constexpr):
    """Log normaliser of a row, and its target's log-probability."""
    row = tl.program_id(0)
    logits += row.to(tl.int64) * P
    lane = tl.arange(0, CHUNK)
    top = tl.full([CHUNK], -float("inf"), tl.float32)
    total = tl.zeros([CHUNK], tl.float32)
    for first in range(0, V, CHUNK):
        x = tl.load(logits + first + lane, mask=first + lane < V, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(top, x)
        base = tl.where(higher == -float("inf"), 0.0, higher)
        total = total * tl.exp(top - base) + tl.exp(x - base)
        top = higher
    highest = tl.max(top, 0)
    normaliser = highest + tl.log(tl.sum(total * tl.exp(top - highest), 0))
    tl.store(lse + row, normaliser)
    tl.store(logp + row, tl.load(logits + tl.load(target + row)).to(tl.float32) - normaliser)


@triton.jit
def _differentiate(logits, target, lse, grad, V, P, CHUNK: tl.constexpr):
    """Replace a row of logits by the gradient: grad · (1 at the target − probability)."""
    row = tl.program_id(0)
    logits += row.to(tl.int64) * P
    lane = tl.arange(0, CHUNK)
    wanted = tl.load(target + row)
    g = tl.load(grad + row).to(tl.float32)
    normaliser = tl.load(lse + row)
    for first in range(0, P, CHUNK):
        place = first + lane
        x = tl.load(logits + place, mask=place < V, other=-float("inf")).to(tl.float32)
        change = g * (tl.where(place == wanted, 1.0, 0.0) - tl.exp(x - normaliser))
        tl.store(logits + place, change.to(logits.dtype.element_ty), mask=place < P)
