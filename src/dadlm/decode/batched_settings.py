"""`DecodeSettings` of several rows as tensors: one denoising step, and on CUDA one captured graph, serves all
of them.

B rows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import torch
from torch import Tensor

from dadlm.decode.samplers import SAMPLERS
from dadlm.decode.settings import DecodeSettings
from dadlm.decode.shortlist import IN_ONE_LAUNCH
from dadlm.model import ModelConfig


@dataclass(frozen=True)
class BatchedSettings:
    """A row each, all [B], in the form that a step wants: it then launches nothing to convert them."""

    sampler: Tensor
    """Index in `SAMPLERS`."""
    best: Tensor
    """The best path is taken instead of a drawn one: that of the block, or (`lookahead`) node after node."""
    lookahead: Tensor
    padded: Tensor
    standard: Tensor
    """int32: whether the nucleus keeps the token that crosses top_p."""
    position: Tensor
    """Tokens are drawn from the nucleus of their position."""
    longest_gap: Tensor
    """Infilling's k; 0: none."""
    known_ratio: Tensor
    """Infilling's r."""
    threshold: Tensor
    transition_weight: Tensor
    bound: Tensor
    cold: Tensor
    """Temperature 0."""
    temperature: Tensor
    """fp32, above 0."""
    inverse_temperature: Tensor
    """fp32, rounded once."""
    top_p: Tensor
    """fp64; infinite where nothing is cut off."""
    top_k: Tensor
    """0: all tokens."""
    shortlist: Tensor
    """0: the whole vocabulary."""

    @classmethod
    def of(cls, settings: Sequence[DecodeSettings], device: torch.device | str = "cpu") -> "BatchedSettings":
        columns = list(zip(*map(_numbers, settings), strict=True))
        numbers = torch.tensor(columns, dtype=torch.float64).to(device)  # one copy for all
        dtypes = {bool: torch.bool, int: torch.int64, float: torch.float32}
        own = {"standard": torch.int32, "transition_weight": torch.float64, "top_p": torch.float64}
        return cls(
            *(
                x.to(own.get(field.name, dtypes[type(column[0])]))
                for field, x, column in zip(fields(cls), numbers, columns, strict=True)
            )
        )

    def __getitem__(self, rows: slice | Tensor) -> "BatchedSettings":
        return BatchedSettings(*(getattr(self, field.name)[rows] for field in fields(self)))


def _numbers(settings: DecodeSettings) -> tuple[bool | int | float, ...]:
    longest, ratio = settings.infill or (0, 0.0)
    return (
        list(SAMPLERS).index(settings.sampler),
        settings.path != "sample",
        settings.path == "lookahead",
        settings.padded,
        settings.nucleus != "bd3lm",
        settings.of_position,
        min(longest, 2**31),  # no gap is longer
        float(ratio),
        float(settings.threshold),
        float(settings.transition_weight),
        float(settings.bound),
        settings.temperature == 0,
        max(float(settings.temperature), 1e-30),
        1.0 / max(float(settings.temperature), 1e-30),
        float(settings.top_p) if settings.top_p < 1 else math.inf,
        min(settings.top_k or 0, 2**31),  # no vocabulary is larger
        settings.shortlist or 0,
    )


@dataclass(frozen=True)
class Features:
    """What a step must be able to do: known before it, so that no row pays for what none asks for."""

    samplers: tuple[str, ...]
    most_steps: int
    """Of the random sampler, or somewhat more."""
    drawn: bool
    """Some row draws from the nucleus of the candidate on its path."""
    vocabulary: bool
    """Some of these from the whole vocabulary."""
    shortlist: int
    """The longest shortlist that some of these draw from, or somewhat more; 0: none."""
    position: bool
    """Some row draws from the nucleus of positions, for which all candidates go through the head."""
    viterbi: bool
    """Some row takes the best path of its block, for which all nodes go through the head."""
    lookahead: bool
    """Some row takes the best node after each node."""
    infill: bool
    cold: bool
    """Some row has temperature 0."""
    top_k: int
    """The largest that some row asks for; 0: none does."""
    padded: bool
    gaps: bool
    """Some row has gaps to fill instead of a prompt to complete."""

    @classmethod
    def of(
        cls, settings: Sequence[DecodeSettings], config: ModelConfig, steps: int, gaps: bool
    ) -> "Features":
        """`steps`: the most that the random sampler takes for a block of these rows."""
        position = [config.nodes_per_mask > 1 and one.of_position for one in settings]
        drawn = [one for one, p in zip(settings, position, strict=True) if one.path == "sample" and not p]
        names = {one.sampler for one in settings}
        longest = max((one.shortlist or 0 for one in drawn), default=0)
        in_one_launch = longest <= IN_ONE_LAUNCH < _rounded(longest)  # and is to stay so
        return cls(
            samplers=tuple(name for name in SAMPLERS if name in names),
            most_steps=_rounded(steps) if any("steps" in SAMPLERS[name].options for name in names) else 0,
            drawn=bool(drawn),
            vocabulary=any(one.shortlist is None for one in drawn),
            shortlist=IN_ONE_LAUNCH if in_one_launch else _rounded(longest),
            position=any(position),
            viterbi=any(one.path == "viterbi" for one in settings),
            lookahead=any(one.path == "lookahead" for one in settings),
            infill=any(one.infill is not None for one in settings),
            cold=any(one.temperature == 0 for one in settings),
            top_k=max((min(one.top_k or 0, config.mask_id) for one in settings), default=0),
            padded=any(one.padded for one in settings),
            gaps=gaps,
        )

    @cached_property
    def of_pass(self) -> "Features":
        """What a pass depends on: the steps count only when a block begins."""
        return replace(self, most_steps=0)

    @property
    def best(self) -> bool:
        """Some row takes a best path."""
        return self.viterbi or self.lookahead

    @property
    def sees_tokens(self) -> bool:
        """Some sampler decides by the tokens what is kept."""
        return any(SAMPLERS[name].sees_tokens for name in self.samplers)

    @property
    def entropy(self) -> bool:
        """Some sampler decides by entropies."""
        return any(SAMPLERS[name].sees_entropy for name in self.samplers)

    @property
    def counted(self) -> bool:
        """All rows have one sampler, which can tell before the first step what each step keeps."""
        return len(self.samplers) == 1 and not self.sees_tokens and not self.infill

    def most_kept(self, positions: int) -> int:
        """The most positions of a block of so many that a step keeps."""
        return positions if self.infill else max(SAMPLERS[name].most(positions) for name in self.samplers)


def _rounded(number: int) -> int:
    """One of few numbers: each has its own captured graphs."""
    return 1 << (number - 1).bit_length() if number > 0 else 0
