"""A small language whose true distribution is known: a Markov chain over phrases.

Each phrase is one block long. One of K others follows it, with equal probability, and these differ at *every*
position: a model that draws the words independently is right only once in K^(N-1) times. In a second language
all phrases share the word at one place: there, a chain of neighbouring words forgets which phrase it is in.

N words per phrase, K successors.
"""

import math
import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dadlm.tokens import Tokenizer, word_level

WORDS = (
    ("quiet", "bright", "old", "small", "green", "clever", "gentle", "wild"),
    ("foxes", "rivers", "sailors", "clocks", "poets", "owls", "gardens", "bakers"),
    ("carry", "follow", "forget", "repair", "welcome", "borrow", "paint", "count"),
    ("lanterns", "stories", "mountains", "letters", "apples", "shadows", "bridges", "songs"),
)
PHRASES, SUCCESSORS = 16, 4
SHARED = 2
"""The position of the shared word, in the language that has one."""
LENGTH = len(WORDS)
BLOCKS = 8
"""Phrases in a training text."""


@dataclass(frozen=True)
class Language:
    """phrases [P, N] as word ids and successors [P, K] as phrase numbers."""

    tokenizer: Tokenizer
    phrases: Tensor
    successors: Tensor
    shares_word: bool = False
    """Whether all phrases have one word in common."""

    @property
    def total_correlation(self) -> float:
        """C = (n - 1)·log K with n positions that differ: no factorised predictor of a whole block can get
        below it (paper, Eq. 3)."""
        return (LENGTH - self.shares_word - 1) * math.log(SUCCESSORS)

    def rows(self, count: int, blocks: int, seed: int) -> Tensor:
        """Sequences [count, blocks·N] drawn from the chain."""
        return self.phrases[self.walks(count, blocks, seed)].flatten(1)

    def validation(self, seed: int) -> Tensor:
        """The texts [256, BLOCKS·N] that a tour of this seed validates on."""
        return self.rows(256, BLOCKS, seed + 2)

    def walks(self, count: int, blocks: int, seed: int) -> Tensor:
        """Phrase numbers [count, blocks] drawn from the chain, started uniformly."""
        generator = torch.Generator().manual_seed(seed)
        walk = [torch.randint(PHRASES, (count,), generator=generator)]
        for _ in range(blocks - 1):
            turn = torch.randint(SUCCESSORS, (count,), generator=generator)
            walk.append(self.successors[walk[-1], turn])
        return torch.stack(walk, 1)

    def valid(self, before: Tensor, block: Tensor) -> Tensor:
        """Whether blocks [count, N] are successors of the phrases numbered before [count]."""
        choices = self.phrases[self.successors[before]]  # [count, K, N]
        return (choices == block[:, None]).all(-1).any(-1)


def make_language(seed: int = 0, shares_word: bool = False) -> Language:
    """Deal words out to phrases, and give each phrase K successors that share no word, or just one."""
    chance = random.Random(seed)
    while True:
        # A word for each phrase at every position, every word equally often.
        columns = [[phrase % len(words) for phrase in range(PHRASES)] for words in WORDS]
        for column in columns:
            chance.shuffle(column)
        differing = [column for place, column in enumerate(columns) if not (shares_word and place == SHARED)]
        successors = [_apart(list(zip(*differing, strict=True)), chance) for _ in range(PHRASES)]
        if shares_word:
            columns[SHARED] = [0] * PHRASES
        phrases = list(zip(*columns, strict=True))
        if len(set(phrases)) == PHRASES and all(successors) and _connected(successors):
            break
    offset = [sum(len(words) for words in WORDS[:column]) for column in range(LENGTH)]
    ids = torch.tensor(phrases) + torch.tensor(offset)
    tokenizer = word_level([word for words in WORDS for word in words])
    return Language(tokenizer, ids, torch.tensor(successors), shares_word)


def _connected(successors: list[Any]) -> bool:
    """Whether every phrase can be reached from every other."""
    reached = [{start} for start in range(PHRASES)]
    for _ in range(PHRASES):
        reached = [set().union(seen, *(successors[phrase] for phrase in seen)) for seen in reached]
    return all(len(seen) == PHRASES for seen in reached)


def _apart(phrases: list[tuple[int, ...]], chance: random.Random) -> list[int] | None:
    """K phrases that differ pairwise at every position, or None if this shuffle has none."""
    chosen: list[int] = []
    for phrase in chance.sample(range(PHRASES), PHRASES):
        if all(a != b for other in chosen for a, b in zip(phrases[phrase], phrases[other], strict=True)):
            chosen.append(phrase)
            if len(chosen) == SUCCESSORS:
                return chosen
    return None
