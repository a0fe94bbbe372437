"""Pairs as rows of tokens: the document is known, the summary is to be learned; and which rows a step takes.

A row is the document, end-of-text, the summary, end-of-text. What follows in the same block is end-of-text
too, and learned: decoding opens whole blocks, and a model that never learned what follows the end would guess
there, pass after pass. What comes after that block is padding: neither learned nor seen.

Rows of like length share a bucket, of one shape each. Which rows a step takes follows from (seed, step).

B rows of a batch, L their length, N block size.
"""

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from dadlm.counter import permute
from dadlm.evaluate.documents import Documents
from dadlm.evaluate.summarisation import prompt_of
from dadlm.model import Model, ModelConfig

_BUCKETS = 4  # each shape is compiled anew on a GPU; four waste about an eighth of the context


@dataclass(frozen=True)
class PairRow:
    """One pair: its ids, and where the part to be learned begins; it reaches to the end."""

    ids: list[int]
    start: int


@dataclass(frozen=True)
class PairBatch:
    """Rows of one bucket."""

    ids: Tensor
    """[B, L]."""
    loss_mask: Tensor
    """[B, L]: the positions of the summaries."""
    most_blocks: int
    """Blocks with such positions, in the row of the bucket that has most of them."""


@dataclass(frozen=True)
class Encoded:
    """All pairs as rows, and how many texts were cut."""

    rows: list[PairRow]
    cut_documents: int
    cut_summaries: int


def encode_pairs(model: Model, pairs: Documents, document_tokens: int, summary_tokens: int) -> Encoded:
    def encode(pair: tuple[str, str]) -> tuple[PairRow, bool, bool]:
        prompt, cut = prompt_of(model, pair[0], document_tokens)
        assert model.tokenizer is not None, "prompt_of would have said so"
        ids = model.tokenizer.encode(pair[1])
        return row_of(model.config, prompt, ids, summary_tokens), cut, len(ids) > summary_tokens

    with ThreadPoolExecutor() as pool:  # the tokenizer does its work outside of Python's lock
        found = list(pool.map(encode, pairs.pairs))
    rows, cut_documents, cut_summaries = zip(*found, strict=True)
    return Encoded(list(rows), sum(cut_documents), sum(cut_summaries))


def row_of(config: ModelConfig, prompt: list[int], summary: list[int], summary_tokens: int) -> PairRow:
    """Prompt, summary and end-of-text, up to the end of what decoding opens."""
    end = len(prompt) + summary_tokens  # MDLM opens all positions that a summary may have
    if config.family != "mdlm":
        end = min(end, len(prompt) + len(summary) + 1)
        end = -(-end // config.block) * config.block
    ids = [*prompt, *summary, *[config.eot_id] * (end - len(prompt))]
    return PairRow(ids[:end], len(prompt))


class PairRows:
    """Rows in buckets. One with fewer rows than a batch joins its longer neighbour."""

    def __init__(self, rows: Sequence[PairRow], config: ModelConfig, batch_size: int) -> None:
        self.rows, self.config, self.batch_size = rows, config, batch_size
        self._buckets = _buckets(rows, config, batch_size)
        self._turns = [max(1, round(len(bucket.ids) / batch_size)) for bucket in self._buckets]
        self._last: tuple[tuple[int, int], PairBatch] | None = None

    def batch(self, step: int, seed: int) -> PairBatch:
        """The rows of a training step. In an epoch the buckets take turns in random order, each as often as
        it has batches; over the epochs a bucket goes through its own rows without a gap."""
        if self._last is None or self._last[0] != (step, seed):  # a step's parts ask one after the other
            self._last = (step, seed), self._find(step, seed)
        return self._last[1]

    def _find(self, step: int, seed: int) -> PairBatch:
        epoch, place = divmod(step, sum(self._turns))
        turn = int(permute(torch.tensor([place]), sum(self._turns), seed, epoch))
        index = 0
        while turn >= self._turns[index]:
            turn, index = turn - self._turns[index], index + 1
        bucket, first = self._buckets[index], (epoch * self._turns[index] + turn) * self.batch_size
        places, size = first + torch.arange(self.batch_size), len(bucket.ids)
        return bucket.batch(permute(places % size, size, seed, places // size).tolist())

    def in_order(self) -> Iterator[PairBatch]:
        """Every row once."""
        for bucket in self._buckets:
            for first in range(0, len(bucket.ids), self.batch_size):
                yield bucket.batch(range(first, min(first + self.batch_size, len(bucket.ids))))

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for row in self.rows:
            digest.update(str((row.start, row.ids)).encode())
        return digest.hexdigest()


class _Bucket:
    """Rows of like length, padded to one."""

    def __init__(self, rows: Sequence[PairRow], length: int, config: ModelConfig) -> None:
        self.length, self.eot_id, N = length, config.eot_id, config.block
        # Not lists, which torch would read number by number at every step.
        self.ids = [torch.tensor(row.ids, dtype=torch.int32) for row in rows]
        self.starts = [row.start for row in rows]
        self.most_blocks = max(-(-len(row.ids) // N) - row.start // N for row in rows)

    def batch(self, places: Sequence[int]) -> PairBatch:
        ids = torch.full((len(places), self.length), self.eot_id)
        loss_mask = torch.zeros_like(ids, dtype=torch.bool)
        for row, place in enumerate(places):
            own = self.ids[place]
            ids[row, : len(own)] = own
            loss_mask[row, self.starts[place] : len(own)] = True
        return PairBatch(ids, loss_mask, self.most_blocks)


def _buckets(rows: Sequence[PairRow], config: ModelConfig, batch_size: int) -> list[_Bucket]:
    """Rows by length, padded to quarters of the context, in whole blocks."""
    block = 1 if config.family == "mdlm" else config.block
    limits = [-(-config.context * part // (_BUCKETS * block)) * block for part in range(1, _BUCKETS + 1)]
    found: list[tuple[list[PairRow], int]] = []
    waiting: list[PairRow] = []
    for low, limit in zip([0, *limits], limits, strict=False):
        waiting += [row for row in rows if low < len(row.ids) <= limit]
        if len(waiting) >= batch_size:
            found.append((waiting, limit))
            waiting = []
    if waiting:
        longest = max(len(row.ids) for row in waiting)
        shorter = found.pop()[0] if found else []
        found.append((shorter + waiting, next(limit for limit in limits if limit >= longest)))
    return [_Bucket(some, limit, config) for some, limit in found]
