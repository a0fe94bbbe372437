"""What a training step changes: weights, their moving average, the optimiser's moments, the step's number."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dadlm import counter
from dadlm.model import Model
from dadlm.model.layer import Layer
from dadlm.noise import NoiseConfig
from dadlm.train.config import TrainConfig
from dadlm.train.muon import Muon


class Stream(NamedTuple):
    """The position in the sequence of rows and masks that a seed decides. It is counted over all stages of a
    route: a stage that began anew would see the (row, mask) pairs of the one before again."""

    steps: int = 0
    rows: int = 0

    def after(self, steps: int, batch_size: int) -> "Stream":
        """The position that many steps further (or back, if negative)."""
        return Stream(self.steps + steps, self.rows + steps * batch_size)


class Ema:
    """Moving average of the weights: what is validated and saved as the model. `before`: how many steps were
    averaged before the first one; the fewer, the faster the initial weights are forgotten."""

    def __init__(self, weights: Mapping[str, Tensor], limit: float, before: int = 0) -> None:
        self.limit, self.before = limit, before
        self.average = {name: tensor.detach().clone() for name, tensor in weights.items()}

    def update(self, weights: Mapping[str, Tensor], step: int) -> None:
        """Take in the weights after update number `step`, counted from 0."""
        n = self.before + step
        decay = min(self.limit, (1 + n) / (10 + n))
        current = [weights[name] for name in self.average]
        # One launch for all tensors; torch exports its foreach functions under private names only.
        torch._foreach_lerp_(list(self.average.values()), current, 1 - decay)  # pyright: ignore

    @contextmanager
    def in_place_of(self, weights: Mapping[str, Tensor]) -> Iterator[None]:
        """Inside the block the model that owns `weights` has the averages in their place."""
        self._swap(weights)
        try:
            yield
        finally:
            self._swap(weights)

    def _swap(self, weights: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, average in self.average.items():
                kept = weights[name].clone()
                weights[name].copy_(average)
                average.copy_(kept)


@dataclass
class TrainState:
    """Mutable on purpose: the loop advances it step by step."""

    model: Model
    ema: Ema
    optimizer: torch.optim.AdamW
    noise: NoiseConfig
    step: int = 0
    best: float = float("inf")
    data: list[str] = field(default_factory=list)
    """Fingerprints of the rows: a run resumes only with the data it began with."""
    scalars: frozenset[str] = frozenset()
    """Weights without a dimension; in a sharded model they are rows of one element."""
    start: Stream = field(default_factory=Stream)
    """Where the stream stood before the first step."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """More facts about a run, saved with the step. It resumes only with the same ones."""

    def begin_step(self, train: TrainConfig, rank: int = 0) -> None:
        """Set what depends on the step's number: learning rates and dropout's seed."""
        step = self.start.steps + self.step
        seed = int(counter.hash_counters(train.seed, step, counter.DROPOUT)) & (2**62 - 1)
        torch.manual_seed(seed + rank)  # each process drops other units
        for group in self.optimizer.param_groups:
            group["lr"] = train.lr_at(self.step) * group["scale"]


def start_optimizer(model: Model, train: TrainConfig) -> torch.optim.AdamW:
    """AdamW, with what DA-DLM adds in a group of its own, so that it can learn faster; or Muon, with the
    layers' matrices in one more."""
    old, new, matrices = [], [], []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if train.optimizer == "muon" and parameter.ndim == 2 and name.startswith("backbone.layers."):
            matrices.append(parameter)
        else:
            (new if name.startswith(("graph.", "head.offset")) else old).append(parameter)
    groups: list[dict[str, Any]] = [
        {"params": old, "scale": 1.0},
        {"params": new, "scale": train.graph_lr_scale},
        {"params": matrices, "scale": 1.0, "matrices": True},
    ]
    settings: dict[str, Any] = {"lr": train.lr, "betas": train.betas, "eps": 1e-8}
    settings |= {"weight_decay": train.weight_decay, "fused": model.device.type == "cuda"}
    groups = [group for group in groups if group["params"]]
    if not matrices:
        return torch.optim.AdamW(groups, **settings)
    layers = [module for module in model.backbone.layers if isinstance(module, Layer)]
    stacked = {weight: rows for layer in layers for weight, rows in layer.stacked().items()}
    return Muon(groups, stacked, **settings)


class NanWatch:
    """Whether a step's loss and gradients are finite, found out on CUDA without waiting for the device: the
    optimiser skips the update if they are not, and the host learns of it during the next step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._noted: tuple[Tensor, torch.cuda.Event, Tensor, Tensor] | None = None

    def note(self, loss: Tensor, norm: Tensor) -> None:
        """Call it before the optimiser's step, and `read` what was noted for the step before first."""
        bad = (~torch.isfinite(loss + norm)).float()
        self._optimizer.found_inf = bad  # type: ignore[attr-defined]
        on_host, known = torch.empty((), pin_memory=True), torch.cuda.Event()
        on_host.copy_(bad, non_blocking=True)
        known.record()
        self._noted = on_host, known, loss.clone(), norm

    def read(self) -> tuple[float, float] | None:
        """Loss and gradient norm of the step noted last if they were not finite, else None; forgets them."""
        noted, self._noted = self._noted, None
        if noted is None:
            return None
        bad, known, loss, norm = noted
        known.synchronize()
        return (float(loss), float(norm)) if bool(bad) else None
