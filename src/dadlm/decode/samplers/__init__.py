"""The samplers, by name: which predictions a denoising step keeps."""

from dataclasses import dataclass
from typing import Literal

SamplerName = Literal["first-hitting", "random", "confidence"]


@dataclass(frozen=True)
class Sampler:
    name: SamplerName
    summary: str
    """One line of help."""
    options: tuple[str, ...] = ()
    """Fields of `DecodeSettings` that only this sampler uses."""


SAMPLERS: dict[str, Sampler] = {
    sampler.name: sampler
    for sampler in (
        Sampler("first-hitting", "keep one prediction, at random"),
        Sampler("random", "keep a random share of the predictions", ("steps",)),
        Sampler(
            "confidence", "keep all predictions that are sure enough", ("threshold", "transition_weight")
        ),
    )
}
