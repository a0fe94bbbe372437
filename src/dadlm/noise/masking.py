"""One stratified time per (row, block) and the masks drawn at it. `rows` are indices into the *global* batch
of the step: the same numbers come out however the batch is split.

B rows of this call, G blocks per row, N block size, L = G·N.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from dadlm import counter
from dadlm.errors import ConfigError

FLOOR = 1e-3  # smallest time of the whole range; the weight diverges at zero
_REDRAWS = 64  # after that many draws a block is kept as it is: some intervals fit no number of tokens


@dataclass(frozen=True)
class Schedule:
    """The masking probability p(t) at time t in (0, 1], and the weight of the loss there: p'(t) / p(t)."""

    mask_probability: Callable[[Tensor], Tensor]
    weight: Callable[[Tensor], Tensor]


def _cosine_weight(t: Tensor) -> Tensor:
    # sin(x) / (1 - cos(x)) = cot(x / 2), which stays exact near zero.
    return (math.pi / 2) / (t * (math.pi / 4)).tan()


SCHEDULES: dict[str, Schedule] = {
    "loglinear": Schedule(lambda t: t, lambda t: 1 / t),
    "cosine": Schedule(lambda t: 2 * (t * (math.pi / 4)).sin().square(), _cosine_weight),
    "square": Schedule(lambda t: t.square(), lambda t: 2 / t),
    "square-root": Schedule(lambda t: t.sqrt(), lambda t: 0.5 / t),
}


@dataclass(frozen=True, kw_only=True)
class NoiseConfig:
    """How training text is masked."""

    schedule: str = "loglinear"
    """Masking probability as a function of time: loglinear, cosine, square or square-root."""
    low: float = FLOOR
    """Smallest time drawn."""
    high: float = 1.0
    """Largest time drawn."""
    clip_search: bool = False
    """At each validation, search the interval (low, high) in
    which the loss varies least, and draw times from it."""
    full_share: float = 0.0
    """Share of blocks masked completely whatever the schedule says, as in one-pass decoding;
    useful for token edges. Uniform times do so for one block in N + 1."""
    even: bool = False
    """Draw the number of masked tokens of a block uniformly from 1 to N, not a time.
    The loss has the same mean and a smaller variance (docs/maths.md §17)."""

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise ConfigError(
                f"unknown noise schedule {self.schedule!r}; choose one of {', '.join(SCHEDULES)}"
            )
        if not 0 < self.low < self.high <= 1:
            raise ConfigError(f"noise needs 0 < low < high <= 1, got low={self.low}, high={self.high}")
        if not 0 <= self.full_share <= 1:
            raise ConfigError(f"full_share must be in [0, 1], got {self.full_share}")
        if self.even and (self.schedule != "loglinear" or self.clip_search or self.clipped):
            raise ConfigError(
                "even noise draws numbers of masks, not times: leave schedule, low, high and clip_search out "
                "(--noise.no-clip-search), or draw times (--noise.no-even)"
            )
        if self.schedule != "loglinear" and (self.clip_search or self.clipped):
            raise ConfigError(
                "clipping compares masked shares with times, which only loglinear makes equal: leave it out "
                "(--noise.no-clip-search)"
            )

    @property
    def clipped(self) -> bool:
        """Whether times are drawn from a part of the whole range."""
        return self.low > FLOOR or self.high < 1.0


class Noise(NamedTuple):
    """masked [B, L]; time and weight [B, G], or [B, J] where only J blocks of each row are learned from.
    Where rows are masked C times, each block has C copies, next to each other: C·L for L, C·G for G."""

    masked: Tensor
    time: Tensor
    weight: Tensor
    blocks: Tensor | None = None
    """[B, J]: which blocks (or copies of blocks) these are, in order; None: all."""

    @classmethod
    def of(cls, masked: Tensor) -> "Noise":
        """Noise of given masks [B, L], every block with weight 1."""
        one = torch.ones(len(masked), 1, device=masked.device)
        return cls(masked, one, one)

    def to(self, device: torch.device) -> "Noise":
        return Noise(*(None if part is None else part.to(device) for part in self))  # type: ignore[arg-type]

    def split_blocks(self, ids: Tensor, block_size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Rows ids [B, L] as blocks: ids and masked [B, G, N], and each block's first position [B, G]."""
        B, L = ids.shape
        copies = self.masked.shape[1] // L
        assert self.masked.shape[1] == copies * L, "masks of whole rows"
        ids, masked = ids.view(B, -1, block_size), self.masked.view(B, -1, block_size)
        block = torch.arange(masked.shape[1], device=ids.device).expand(B, -1)
        if self.blocks is not None:
            block, masked = self.blocks, masked.gather(1, self.blocks[..., None].expand(-1, -1, block_size))
        block = block // copies
        if self.blocks is not None or copies > 1:
            ids = ids.gather(1, block[..., None].expand(-1, -1, block_size))
        return ids, masked, block * block_size


def _stride(strata: int) -> int:
    """A step near the golden section of `strata` and coprime to it: neighbours get far-apart times."""
    stride = max(1, round(strata * (math.sqrt(5) - 1) / 2))
    while math.gcd(stride, strata) != 1:
        stride += 1
    return stride


def sample_time(
    seed: int, step: int, rows: Tensor, batch_rows: int, blocks: int, low: float, high: float
) -> Tensor:
    """Times [B, G], one in each of batch_rows·blocks equal strata of (low, high).

    The strata are dealt out by a golden-section walk, so that every row sees all noise levels (rows then
    have nearly equal numbers of nodes, which keeps packing tight), and shifted as a whole at each step.
    """
    strata = batch_rows * blocks
    block = torch.arange(blocks, device=rows.device)
    stratum = (rows[:, None] * blocks + block) * _stride(strata) % strata
    jitter = counter.uniform(seed, step, counter.TIME, rows[:, None], block).double()
    shift = counter.uniform(seed, step, counter.SHIFT).double().to(rows.device)
    u = ((stratum + jitter) / strata + shift) % 1.0
    return (low + u * (high - low)).float()


def mask_evenly(u: Tensor, lot: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Masks [B, G, N] of m of the n allowed positions of each block, those with the lowest `lot` [B, G, N]; m
    is uniform on 1..n for u [B, G] uniform on [0, 1]. Also the times m / n and the weights n / m."""
    n = allowed.sum(-1)
    m = (1 + (u.double() * n).long()).minimum(n)  # u may be 1; where nothing is allowed, nothing is masked
    rank = lot.masked_fill(~allowed, 2.0).argsort(stable=True, dim=-1).argsort(-1)
    return (rank < m[..., None]) & allowed, (m / n.clamp(min=1)).float(), (n / m.clamp(min=1)).float()


def _mask_at(
    config: NoiseConfig,
    time: Tensor,
    full: Tensor,
    allowed: Tensor,
    most: Tensor,
    lot: Callable[[int], Tensor],
) -> Tensor:
    """Masks [B, G, N] of the allowed positions, each with its block's probability. A block is drawn again
    while the masked share of its `most` maskable positions is outside a clipped interval."""
    probability = SCHEDULES[config.schedule].mask_probability(time)[..., None]
    masked = (lot(0) < probability) & allowed
    for attempt in range(1, _REDRAWS if config.clipped else 1):
        fraction = (masked.sum(-1) / most)[..., None]  # NaN where nothing may be masked: never outside
        outside = fraction > config.high
        if config.low > FLOOR:  # from the floor on, blocks may also stay unmasked
            outside |= fraction < config.low
        outside &= ~full[..., None]
        if not outside.any():
            break
        masked = torch.where(outside, (lot(attempt) < probability) & allowed, masked)
    return masked


def draw_noise(
    config: NoiseConfig,
    *,
    seed: int,
    step: int,
    rows: Tensor,
    batch_rows: int,
    length: int,
    block_size: int,
    maskable: Tensor | None = None,
    most_blocks: int | None = None,
    masks_per_row: int = 1,
) -> Noise:
    """Mask each position independently with its block's probability or, with `config.even`, a uniformly drawn
    number of a block's positions.

    Position 0 of a row is never masked: it has nothing before it. With `maskable` [B, L] all other positions
    stay known, and only blocks that hold maskable ones are learned from, `most_blocks` of each row: it must
    be enough for every row (None: just enough), and rows that need fewer are filled up with blocks that cost
    nothing. With `masks_per_row` every block is masked that many times, each at a time of its own, and the
    weights are divided by that number.
    """
    blocks = length // block_size * masks_per_row
    low, high = (0.0, 1.0) if config.even else (config.low, config.high)
    time = sample_time(seed, step, rows, batch_rows, blocks, low, high)
    full = torch.zeros_like(time, dtype=torch.bool)
    if config.full_share:
        block = torch.arange(blocks, device=rows.device)
        full = counter.uniform(seed, step, counter.FULL, rows[:, None], block) < config.full_share
        time = torch.where(full, 1.0, time)
    if block_size == 1:  # there is one way to mask a single token: at time 1 the loss is the exact likelihood
        time = torch.ones_like(time)
    allowed = _allowed(length, maskable, rows.device).unflatten(1, (-1, block_size))
    allowed = allowed.repeat_interleave(masks_per_row, 1)
    most = torch.full_like(time, block_size) if maskable is None else allowed.sum(-1)  # masked in a block
    position = torch.arange(length * masks_per_row, device=rows.device).view(blocks, block_size)

    def lot(attempt: int) -> Tensor:
        return counter.uniform(seed, step, counter.MASK, attempt, rows[:, None, None], position)

    if config.even:
        masked, time, weight = mask_evenly(time, lot(0), allowed.expand(len(rows), -1, -1))
    else:
        masked = _mask_at(config, time, full, allowed, most, lot)
        weight = SCHEDULES[config.schedule].weight(time)
    # A block of one position is always masked: its loss is the exact likelihood under every schedule.
    weight = torch.ones_like(time) if block_size == 1 else weight
    noise = Noise(masked.flatten(1), time, weight / masks_per_row)
    if maskable is None:
        return noise
    is_open = most > 0
    kept = max(1, int(is_open.sum(1).max())) if most_blocks is None else most_blocks * masks_per_row
    return noise if kept == blocks else _with_open_blocks(noise, is_open, kept)


def _allowed(length: int, maskable: Tensor | None, device: torch.device) -> Tensor:
    """Which positions may be masked, [B, L] or, where that is the same in all rows, [1, L]."""
    allowed = torch.ones(1, length, dtype=torch.bool, device=device)
    allowed[:, 0] = False
    return allowed if maskable is None else allowed & maskable


def _with_open_blocks(noise: Noise, is_open: Tensor, kept: int) -> Noise:
    """The open blocks of each row, filled up with closed ones, which have no masks."""
    chosen = torch.argsort((~is_open).byte(), dim=1, stable=True)[:, :kept].sort(1).values
    return Noise(noise.masked, noise.time.gather(1, chosen), noise.weight.gather(1, chosen), chosen)
