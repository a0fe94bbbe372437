"""The texts in work: prompts, what has been written so far, and who is finished.

All state is on the device and changed in place, so that the acts on it can be captured (`engine`).

B rows in work, W buffer length, N block size.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from dadlm.decode import remask
from dadlm.decode.block import Block
from dadlm.decode.settings import DecodeSettings
from dadlm.model import ModelConfig


@dataclass
class Row:
    """One text: its prompt, how far it may grow, and what it took."""

    prompt: list[int]
    new_tokens: int
    seed: int
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """(first, length) of positions of the prompt to fill; empty: the prompt is completed."""
    tokens: list[int] = field(default_factory=list)
    forward_passes: int = 0
    cache_passes: int = 0

    @property
    def length(self) -> int:
        return len(self.prompt) + (0 if self.gaps else self.new_tokens)

    def is_open(self, width: int) -> list[bool]:
        """[W]: positions to decide. Behind the text all is open: what is written there is cut off again."""
        open_ = [False] * len(self.prompt) + [True] * (width - len(self.prompt))
        for first, length in self.gaps:
            open_[first : first + length] = [True] * length
        return open_

    @property
    def first_open(self) -> int:
        return self.gaps[0][0] if self.gaps else len(self.prompt)

    @property
    def end(self) -> int:
        """Behind the last position to decide."""
        return sum(self.gaps[-1]) if self.gaps else self.length


class Rows:
    """A batch of rows that are decoded side by side, each at its own place in its own text.

    Either all of them are completed, or all have gaps, which end-of-text does not end.
    """

    def __init__(
        self, rows: list[Row], config: ModelConfig, settings: DecodeSettings, device: torch.device
    ) -> None:
        self.config, self.texts = config, list(rows)
        self.is_window = config.family == "mdlm"
        self.block = max(row.length for row in rows) if self.is_window else config.block
        width = -(-max(row.length for row in rows) // self.block) * self.block
        ids = torch.full((len(rows), width), config.eot_id)
        for index, row in enumerate(rows):
            ids[index, : len(row.prompt)] = torch.tensor(row.prompt)
        self.ids, self.has_gaps = ids.to(device), bool(rows[0].gaps)
        self.open = torch.tensor([row.is_open(width) for row in rows], device=device)
        self.prompt = torch.tensor([len(row.prompt) for row in rows], device=device)
        self.length = torch.tensor([row.length for row in rows], device=device)
        self.end = torch.tensor([row.end for row in rows], device=device)
        self.seed = torch.tensor([row.seed for row in rows], device=device)
        first = torch.tensor([row.first_open for row in rows], device=device)
        self.first = torch.zeros_like(first) if self.is_window else first // self.block * self.block
        self.finished = torch.zeros_like(self.prompt, dtype=torch.bool)
        self.forward_passes, self.cache_passes = torch.zeros_like(self.prompt), torch.zeros_like(self.prompt)
        self.steps: Tensor | None = None
        if settings.sampler == "random":
            steps = [settings.steps or (row.new_tokens if self.is_window else self.block) for row in rows]
            self.steps, self.longest = torch.tensor(steps, device=device), max(steps)

    @property
    def most_blocks(self) -> int:
        """How many blocks the longest text may take."""
        return max(
            (-(-row.end // self.block) - row.first_open // self.block for row in self.texts), default=0
        )

    def next_block(self) -> Block:
        """The block each row writes next; tokens of the prompt that fall into it are already known."""
        position = self._positions()
        inside = torch.ones_like(position, dtype=torch.bool)
        if self.is_window:  # other families write their last block to its end and cut the text
            inside = position < self.length[:, None]
        number = self.first // self.block
        reveal = torch.zeros_like(position)
        if self.steps is not None:
            reveal = remask.reveal_steps(self.seed, number, self.steps, self.block, self.longest)
        masked = self.open.gather(1, position) & inside & ~self.finished[:, None]
        return Block(
            ids=self.ids.gather(1, position),
            masked=masked,
            first=self.first.clone(),
            number=number,
            step=torch.zeros_like(number),
            reveal=reveal,
            seed=self.seed,
            inside=inside,
            ends=torch.zeros_like(masked) if self.has_gaps else masked.clone(),
        )

    def commit(self, block: Block) -> None:
        """Write the finished block down and see which rows end with it; finished rows stay where they are."""
        position = self._positions()
        self.ids.scatter_(
            1, position, torch.where(self.finished[:, None], self.ids.gather(1, position), block.ids)
        )
        if not self.has_gaps:
            written = (position >= self.prompt[:, None]) & (position < self.length[:, None])
            self.finished |= ((block.ids == self.config.eot_id) & written).any(1)
        self.finished |= self.first + self.block >= self.end
        self.first.copy_(torch.where(self.finished, self.first, self.first + self.block))

    def keep(self, going_on: list[int]) -> None:
        """Take the texts of all rows down, then drop the rows that are not listed."""
        ids, prompt, length = self.ids.tolist(), self.prompt.tolist(), self.length.tolist()
        passes = zip(self.forward_passes.tolist(), self.cache_passes.tolist(), strict=True)
        for index, (row, (row.forward_passes, row.cache_passes)) in enumerate(
            zip(self.texts, passes, strict=True)
        ):
            row.tokens = ids[index][0 if row.gaps else prompt[index] : length[index]]
            if not row.gaps and self.config.eot_id in row.tokens:
                row.tokens = row.tokens[: row.tokens.index(self.config.eot_id) + 1]
        self.texts = [self.texts[index] for index in going_on]
        rows = torch.tensor(going_on, dtype=torch.int64, device=self.ids.device)
        for name in (
            "ids",
            "open",
            "prompt",
            "length",
            "end",
            "seed",
            "first",
            "finished",
            "forward_passes",
            "cache_passes",
        ):
            setattr(self, name, getattr(self, name)[rows])
        if self.steps is not None:
            self.steps = self.steps[rows]

    def _positions(self) -> Tensor:
        return self.first[:, None] + torch.arange(self.block, device=self.ids.device)
