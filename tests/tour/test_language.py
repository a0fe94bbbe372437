"""The language is what the tour says it is: successors that share no word, and a bound that is exact."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from dadlm.tour.language import LENGTH, PHRASES, SHARED, SUCCESSORS, WORDS, Language, make_language

SEEDS = range(5)


def truth(language: Language, before: int) -> dict[tuple[int, ...], float]:
    """The distribution of the block after a phrase."""
    return {
        tuple(language.phrases[after].tolist()): 1 / SUCCESSORS
        for after in language.successors[before].tolist()
    }


def marginals(distribution: dict[tuple[int, ...], float]) -> Tensor:
    """[N, V]: the best a factorised predictor can say of each position."""
    table = torch.zeros(LENGTH, sum(map(len, WORDS)), dtype=torch.float64)
    for block, p in distribution.items():
        for position, word in enumerate(block):
            table[position, word] += p
    return table


def divergence(distribution: dict[tuple[int, ...], float], predicted: Tensor) -> float:
    """KL(distribution ‖ product of the predictions for each position), by enumeration."""
    total = 0.0
    for block, p in distribution.items():
        q = math.prod(float(predicted[position, word]) for position, word in enumerate(block))
        total += p * math.log(p / q)
    return total


@pytest.mark.parametrize("seed", SEEDS)
def test_every_phrase_has_successors_that_share_no_word(seed: int) -> None:
    language = make_language(seed)
    assert language.phrases.shape == (PHRASES, LENGTH) and language.successors.shape == (PHRASES, SUCCESSORS)
    assert len({tuple(phrase) for phrase in language.phrases.tolist()}) == PHRASES
    for successors in language.successors.tolist():
        assert len(set(successors)) == SUCCESSORS
        for one, other in itertools.combinations(successors, 2):
            assert (language.phrases[one] != language.phrases[other]).all()
    for position, words in enumerate(WORDS):  # each has its own words, each of them equally often
        column = [language.tokenizer.token_text(word) for word in language.phrases[:, position].tolist()]
        assert sorted(column) == sorted(list(words) * (PHRASES // len(words)))
    for start in range(PHRASES):  # every phrase can be reached from every other
        reached, new = {start}, [start]
        while new:
            found = set(language.successors[new.pop()].tolist()) - reached
            reached |= found
            new += found
        assert len(reached) == PHRASES, f"from phrase {start}: {sorted(set(range(PHRASES)) - reached)} never"


@pytest.mark.parametrize("seed", SEEDS)
def test_phrases_of_the_second_language_share_one_word(seed: int) -> None:
    language = make_language(seed, shares_word=True)
    assert len(language.phrases[:, SHARED].unique()) == 1
    for before, successors in enumerate(language.successors.tolist()):
        for one, other in itertools.combinations(successors, 2):
            assert (language.phrases[one] != language.phrases[other]).sum() == LENGTH - 1
        law = truth(language, before)
        assert divergence(law, marginals(law)) == pytest.approx(language.total_correlation)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_factorised_predictor_gets_below_the_bound(seed: int) -> None:
    language = make_language(seed)
    bound = (LENGTH - 1) * math.log(SUCCESSORS)
    assert language.total_correlation == pytest.approx(bound, abs=1e-12)
    generator = torch.Generator().manual_seed(seed)
    for before in range(PHRASES):
        distribution = truth(language, before)
        best = marginals(distribution)
        assert divergence(distribution, best) == pytest.approx(bound, abs=1e-9)
        noise = torch.rand(best.shape, generator=generator, dtype=torch.float64)
        other = 0.9 * best + 0.1 * noise / noise.sum(-1, keepdim=True)
        assert divergence(distribution, other) > bound + 1e-3


def test_walks_follow_the_chain_with_equal_probability() -> None:
    language = make_language(3)
    walks = language.walks(4000, 6, seed=1)
    assert walks.shape == (4000, 6)
    starts = torch.bincount(walks[:, 0], minlength=PHRASES) / 4000
    assert (starts - 1 / PHRASES).abs().max() < 0.02  # five standard deviations
    pairs = torch.stack([walks[:, :-1].flatten(), walks[:, 1:].flatten()], 1)
    turns = language.successors[pairs[:, 0]] == pairs[:, 1:]
    assert (turns.sum(1) == 1).all()
    assert (turns.float().mean(0) - 1 / SUCCESSORS).abs().max() < 0.016  # 20,000 pairs
    assert torch.equal(language.rows(7, 6, seed=1), language.phrases[language.walks(7, 6, 1)].flatten(1))
    assert not torch.equal(language.walks(50, 6, 1), language.walks(50, 6, 2))


def test_validity_is_membership_by_enumeration() -> None:
    language = make_language(0)
    offsets = [sum(map(len, WORDS[:column])) for column in range(LENGTH)]
    columns = [range(start, start + len(words)) for start, words in zip(offsets, WORDS, strict=True)]
    blocks = torch.tensor(list(itertools.product(*columns)))
    assert len(blocks) == 8**4
    for before in range(PHRASES):
        valid = language.valid(torch.full((len(blocks),), before), blocks)
        assert {tuple(block) for block in blocks[valid].tolist()} == set(truth(language, before))
    nothing = torch.full((1, LENGTH), -1)
    assert not language.valid(torch.tensor([0]), nothing).any()


def test_the_seed_decides_the_language() -> None:
    one, same, other = make_language(1), make_language(1), make_language(2)
    assert torch.equal(one.phrases, same.phrases) and torch.equal(one.successors, same.successors)
    assert not torch.equal(one.phrases, other.phrases)
    assert one.tokenizer == other.tokenizer
    phrase = one.tokenizer.decode(one.phrases[0].tolist())
    assert one.tokenizer.encode(phrase) == one.phrases[0].tolist()
