"""The texts in work: prompts, what has been written so far, and who is finished.

B rows still in work, W buffer length, N block size.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from dadlm.decode.block import Block
from dadlm.model import ModelConfig


@dataclass
class Row:
    """One text: its prompt, how far it may grow, and what it took."""

    prompt: list[int]
    new_tokens: int
    seed: int
    tokens: list[int] = field(default_factory=list)
    forward_passes: int = 0
    cache_passes: int = 0

    @property
    def length(self) -> int:
        return len(self.prompt) + self.new_tokens


class Rows:
    """A batch of rows that are decoded side by side, each at its own place in its own text."""

    def __init__(self, rows: list[Row], config: ModelConfig, steps: int | None, device: torch.device) -> None:
        self.config, self.alive = config, list(rows)
        self.block = max(row.length for row in rows) if config.family == "mdlm" else config.block
        width = -(-max(row.length for row in rows) // self.block) * self.block
        self.ids = torch.full((len(rows), width), config.eot_id, device=device)
        for index, row in enumerate(rows):
            self.ids[index, : len(row.prompt)] = torch.tensor(row.prompt, device=device)
        self.known = torch.tensor([len(row.prompt) for row in rows], device=device)
        self.length = torch.tensor([row.length for row in rows], device=device)
        self.first = (
            self.known // self.block * self.block if config.family != "mdlm" else torch.zeros_like(self.known)
        )
        steps_of = [steps or (row.new_tokens if config.family == "mdlm" else self.block) for row in rows]
        self.steps = torch.tensor(steps_of, device=device)
        self.seed = torch.tensor([row.seed for row in rows], device=device)

    def next_block(self) -> Block:
        """The block each row writes next; tokens of the prompt that fall into it are already known."""
        position = self.first[:, None] + torch.arange(self.block, device=self.ids.device)
        inside = torch.ones_like(position, dtype=torch.bool)
        if self.config.family == "mdlm":  # other families write their last block to its end and cut the text
            inside = position < self.length[:, None]
        number = self.first // self.block
        return Block(
            ids=self.ids.gather(1, position),
            masked=(position >= self.known[:, None]) & inside,
            first=self.first,
            number=number,
            step=torch.zeros_like(number),
            steps=self.steps,
            seed=self.seed,
            inside=inside,
        )

    def count_passes(self, block: Block) -> None:
        """A row takes part in a forward pass while it has something to decide."""
        for row, open_ in zip(self.alive, block.masked.any(1).tolist(), strict=True):
            row.forward_passes += open_

    def commit(self, block: Block) -> Tensor:
        """Write the finished block down; returns the indices of the rows that go on."""
        position = self.first[:, None] + torch.arange(self.block, device=self.ids.device)
        self.ids = self.ids.scatter(1, position, block.ids)
        self.first = self.first + self.block
        self.known = torch.maximum(self.known, self.first)
        going_on = [not self._finish(index) for index in range(len(self.alive))]
        return torch.tensor(going_on, device=self.ids.device).nonzero().squeeze(1)

    def _finish(self, index: int) -> bool:
        """Cut the row's tokens at the first end-of-text or the limit; say whether it is finished."""
        row = self.alive[index]
        end = min(int(self.first[index]), row.length)
        row.tokens = self.ids[index, len(row.prompt) : end].tolist()
        if self.config.eot_id in row.tokens:
            row.tokens = row.tokens[: row.tokens.index(self.config.eot_id) + 1]
            return True
        return end == row.length

    def keep(self, rows: Tensor) -> None:
        """Drop the rows that are not listed."""
        self.alive = [self.alive[index] for index in rows.tolist()]
        self.ids, self.known, self.length = self.ids[rows], self.known[rows], self.length[rows]
        self.first, self.seed, self.steps = self.first[rows], self.seed[rows], self.steps[rows]
