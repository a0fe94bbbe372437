"""What a sampler is: it decides which of a step's predictions are kept; the others are masked again.

Every decision is a function of (row seed, block, step, position), so a row does not depend on the rows beside
it, and no method waits for the device: a whole step can be captured as a CUDA graph.

B rows, N block size.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from dadlm import counter
from dadlm.model import kernels

if TYPE_CHECKING:
    from dadlm.decode.batched_settings import BatchedSettings


@dataclass(frozen=True)
class Block:
    """The block that each row is working on."""

    ids: Tensor
    """[B, N]: tokens; meaningless where masked."""
    masked: Tensor
    """[B, N]: still to be decided."""
    first: Tensor
    """[B]: sequence position of the block's first token."""
    number: Tensor
    """[B]: index of the block in its row."""
    step: Tensor
    """[B]: next denoising step."""
    plan: Tensor
    """[B, N]: what the row's sampler drew when the block began (`Sampler.begin`)."""
    seed: Tensor
    """[B]: the row's seed."""
    in_window: Tensor
    """[B, N]: part of the block; False in the padding of a shorter MDLM window."""
    wanted: Tensor
    """[B, N]: part of the text; False behind its end in the last block."""
    ends: Tensor
    """[B, N]: where end-of-text ends the text: what is masked at first, but nowhere in a text with gaps."""

    def uniform(self, purpose: int) -> Tensor:
        """[B, N]: this step's random numbers for a purpose."""
        return block_uniform(*self.counters, self.ids.shape[1], purpose)

    @property
    def counters(self) -> tuple[Tensor, Tensor, Tensor]:
        """[B] each: what this step's random numbers are for, but for position and purpose."""
        return self.seed, self.number, self.step


@dataclass(frozen=True)
class Proposal:
    """What a step would write, for samplers that look at the tokens."""

    confidence: Tensor
    """[B, N]: untempered probability of each token, mixed with the transitions of its path."""
    ending: Tensor | None
    """[B, N]: tokens that are the padding of a text's end (`settings.padded`); None: not told apart."""
    entropy: Tensor
    """[B, N]: of the distribution that each token belongs to, in nats."""
    chained: bool
    """Token edges: each token was drawn given the one to its left, so of every run of masked positions a
    beginning has to be kept, or none."""


class Sampler(ABC):
    """One way to choose what a step keeps. Subclasses are listed in `dadlm.decode.samplers`."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """One line of help."""
    options: ClassVar[tuple[str, ...]] = ()
    """Fields of `DecodeSettings` that only this sampler reads."""
    sees_tokens: ClassVar[bool] = False
    """Whether the choice depends on the tokens: then all masked positions are drawn, not only the kept
    ones."""
    sees_entropy: ClassVar[bool] = False
    """Whether it depends on the entropies of their distributions."""

    @abstractmethod
    def keep(
        self, block: Block, infilled: Tensor, settings: "BatchedSettings", proposal: Proposal | None
    ) -> tuple[Tensor, Tensor]:
        """What is decided in this step [B, N], `infilled` included, and the step number it happens at [B]."""

    def most(self, positions: int) -> int:
        """The most positions of a block of so many that a step keeps, infilled ones not counted."""
        return positions

    def begin(
        self, seed: Tensor, number: Tensor, steps: Tensor, positions: int, most_steps: int
    ) -> Tensor | None:
        """`Block.plan` [B, N] of blocks that begin; `most_steps` is the largest of `steps` [B]. None: nothing
        is drawn, and what stands there has no meaning."""
        del seed, number, steps, positions, most_steps
        return None

    def kept_per_pass(self, block: Block) -> list[int] | None:
        """How many tokens each pass of these blocks keeps, all rows together; None: known only afterwards."""
        del block
        return None


def block_uniform(seed: Tensor, block: Tensor, step: Tensor, positions: int, purpose: int) -> Tensor:
    """[B, N]: random numbers of the positions of a block, at counters [B]."""
    if kernels.takes(seed):
        from dadlm.decode.kernels.counters import uniform

        return uniform(seed, block, step, positions, purpose)
    position = torch.arange(positions, device=seed.device)
    return counter.uniform(seed[:, None], block[:, None], step[:, None], position, purpose)


def highest(x: Tensor) -> Tensor:
    """One-hot of the largest entry of each row; ties go to the lowest index."""
    return torch.arange(x.shape[1], device=x.device) == x.argmax(1, keepdim=True)


def surest(candidates: Tensor, score: Tensor, ending: Tensor | None = None) -> Tensor:
    """One-hot of the candidate [B, N] with the highest score in each row that has one.

    Where texts are padded, `ending` [B, N] are end-of-texts: the last positions of a block are surest to be
    padding, which is nobody's text. So the surest is one of the others; if there is none, the first end.
    """
    best = highest(score.masked_fill(~candidates, -torch.inf)) & candidates
    if ending is None:
        return best
    others = candidates & ~ending
    first = candidates & (candidates.cumsum(1) == 1)
    return torch.where(others.any(1, keepdim=True), surest(others, score), first)


def heads(masked: Tensor) -> Tensor:
    """[B, N]: the first positions of runs of masked ones, whose left neighbours are known."""
    return masked & ~F.pad(masked[:, :-1], (1, 0))


def beginnings(masked: Tensor, sure: Tensor) -> Tensor:
    """[B, N]: of every run of masked positions, those before the first that is not sure."""
    place = torch.arange(masked.shape[1], device=masked.device)

    def last(which: Tensor, none: int) -> Tensor:
        return torch.where(which, place, none).cummax(1).values

    return masked & (last(masked & ~sure, -2) < last(~masked, -1))
