"""Samplers that look at whole runs, position by position against slow twins: the entropy sampler, and the
confidence sampler with token edges.

B rows, N block size.
"""

import pytest
import torch
from tests.decode.test_chain import edge_model
from tests.decode.tiny import prompt_of, silence_eot, tiny
from torch import Tensor

from dadlm import DecodeSettings, Model, generate, stream
from dadlm.decode.batched_settings import BatchedSettings
from dadlm.decode.infill import short_gaps
from dadlm.decode.samplers import Proposal
from dadlm.decode.samplers.base import beginnings, heads
from dadlm.decode.samplers.confidence import confident
from dadlm.decode.samplers.entropy import within_bound


def random_case(seed: int, chained: bool, padded: bool, B: int = 60, N: int = 9):
    """Blocks with gaps that are infilled in some rows; few different values, so that there are ties, and of a
    kind whose sums are not rounded."""
    generator = torch.Generator().manual_seed(seed)
    masked = torch.rand(B, N, generator=generator) < torch.rand(B, 1, generator=generator)
    masked[0], masked[1] = True, False
    longest = torch.randint(0, 3, (B, 1), generator=generator)
    infilled = short_gaps(masked, torch.ones_like(masked), longest, 0.0)
    value = torch.randint(0, 13, (B, N), generator=generator) / 8
    ending = (torch.rand(B, N, generator=generator) < 0.4) if padded else None
    return masked, infilled, Proposal(value / 2, ending, value, chained)


def first_of(masked: list[bool], score: list[float], ending: list[bool], chained: bool) -> int | None:
    """The position that is kept in any case: the best, of those beside known ones if tokens are chained, and
    an end only if there is nothing else."""
    may = [i for i, m in enumerate(masked) if m and not (chained and i and masked[i - 1])]
    if texts := [i for i in may if not ending[i]]:
        return max(texts, key=lambda i: (score[i], -i))
    return may[0] if may else None


def slow_entropy(masked, infilled, entropy, ending, bound: float, chained: bool) -> list[bool]:
    """One position after another, as the rule is said."""
    kept = {i for i, inside in enumerate(infilled) if inside}
    first = first_of(masked, [-h for h in entropy], ending, chained)

    def cost(which: set[int]) -> float:
        spent = [entropy[i] for i in which]
        return sum(spent) - (0 if chained else max(spent))

    def openness(i: int) -> float:
        start = i
        while chained and start and masked[start - 1]:
            start -= 1
        return sum(entropy[start : i + 1])

    left = sorted(
        (i for i in range(len(masked)) if masked[i] and i not in kept), key=lambda i: (openness(i), i)
    )
    left.sort(key=lambda i: i != first)
    for i in left:
        if kept and cost(kept | {i}) > bound:
            break
        kept.add(i)
    return [i in kept for i in range(len(masked))]


def slow_confidence(masked, infilled, confidence, ending, threshold: float) -> list[bool]:
    """From left to right: a token is kept beside one that is known or was kept."""
    first, kept = first_of(masked, confidence, ending, chained=True), []
    for i in range(len(masked)):
        sure = infilled[i] or confidence[i] >= threshold or i == first
        kept.append(masked[i] and sure and (i == 0 or not masked[i - 1] or kept[-1]))
    return kept


def rows_of(masked: Tensor, infilled: Tensor, proposal: Proposal, value: Tensor):
    ending = torch.zeros_like(masked) if proposal.ending is None else proposal.ending
    return zip(*(x.tolist() for x in (masked, infilled, value, ending)), strict=True)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize("bound", [0.0, 0.5, 1.0, 3.0, torch.inf])
def test_the_entropy_sampler_keeps_what_its_rule_says(bound: float, chained: bool, padded: bool):
    masked, infilled, proposal = random_case(int(10 * min(bound, 9)), chained, padded)
    kept = within_bound(masked, infilled, proposal, bound)
    for row, case in zip(kept.tolist(), rows_of(masked, infilled, proposal, proposal.entropy), strict=True):
        assert row == slow_entropy(*case, bound, chained)
    assert kept.any(1).equal(masked.any(1)) and not (kept & ~masked).any()
    if chained:
        assert beginnings(masked, kept).equal(kept)
    if bound == torch.inf:
        assert kept.equal(masked)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("threshold", [0.0, 0.25, 0.5, 1.0])
def test_the_confidence_sampler_keeps_beginnings_of_runs(threshold: float, padded: bool):
    masked, infilled, proposal = random_case(int(10 * threshold), True, padded)
    kept = confident(masked, infilled, proposal, threshold)
    for row, case in zip(
        kept.tolist(), rows_of(masked, infilled, proposal, proposal.confidence), strict=True
    ):
        assert row == slow_confidence(*case, threshold)
    assert kept.any(1).equal(masked.any(1)) and beginnings(masked, kept).equal(kept)
    assert not (infilled & ~kept).any()


def test_each_row_has_its_own_bound():
    masked, infilled, proposal = random_case(3, chained=True, padded=False)
    bounds = torch.arange(len(masked))[:, None] / 8
    together = within_bound(masked, infilled, proposal, bounds)
    for i in range(len(masked)):
        one = Proposal(proposal.confidence[i : i + 1], None, proposal.entropy[i : i + 1], True)
        alone = within_bound(masked[i : i + 1], infilled[i : i + 1], one, float(bounds[i]))
        assert alone[0].equal(together[i])
    settings = [DecodeSettings(sampler="entropy", bound=bound) for bound in (0, 0.25, 3)]
    assert BatchedSettings.of(settings).bound.tolist() == [0.0, 0.25, 3.0]


def test_a_bound_of_zero_keeps_one_and_what_is_certain():
    masked, none = torch.ones(1, 4, dtype=torch.bool), torch.zeros(1, 4, dtype=torch.bool)
    entropy = torch.tensor([[0.5, 0.0, 0.25, 0.0]])
    for chained, expected in ((False, [0, 1, 1, 1]), (True, [1, 0, 0, 0])):
        kept = within_bound(masked, none, Proposal(entropy, None, entropy, chained), 0.0)
        assert kept.long().tolist() == [expected]
    certain = torch.tensor([[0.0, 0.0, 0.25, 0.0]])
    kept = within_bound(masked, none, Proposal(certain, None, certain, True), 0.0)
    assert kept.long().tolist() == [[1, 1, 0, 0]]


MODELS = {
    **{family: lambda family=family: tiny(family) for family in ("ar", "mdlm", "bd3lm", "dadlm")},
    **{
        f"{family}, edges": lambda family=family: edge_model(family, N=4, vocab=30)
        for family in ("bd3lm", "dadlm")
    },
}


@pytest.mark.parametrize("path", ["sample", "viterbi", "lookahead"])
@pytest.mark.parametrize("name", MODELS)
def test_the_bound_goes_from_a_token_a_pass_to_a_block_a_pass(name: str, path: str):
    model: Model = silence_eot(MODELS[name]())
    how = {"max_new_tokens": 8, "seed": 0, "sampler": "entropy", "path": path}
    blocks = 8 if name == "ar" else 1 if name == "mdlm" else 8 // model.config.block_size
    passes = [
        generate(model, prompt_of(8), bound=bound, **how).forward_passes[0] for bound in (0.0, 5.0, 1e6)
    ]
    assert passes[0] == 8 and passes[2] == blocks
    assert passes[0] >= passes[1] >= passes[2]


@pytest.mark.parametrize(
    "options", [{"sampler": "entropy", "bound": 6.0}, {"sampler": "confidence", "threshold": 0.1}], ids=str
)
@pytest.mark.parametrize("padded", [False, True])
def test_no_token_outlives_the_neighbour_it_was_drawn_beside(options: dict, padded: bool):
    model, several = edge_model(N=8, vocab=30), 0
    for seed in range(6):
        for event in stream(model, prompt_of(8), max_new_tokens=16, seed=seed, padded=padded, **options):
            known = [a or f for a, f in zip(event.anchor, event.fixed, strict=True)]
            several += sum(event.fixed) > 1
            for i, fixed in enumerate(event.fixed):
                assert not fixed or i == 0 or known[i - 1]
    assert several


def test_heads_are_beside_known_tokens():
    masked = torch.tensor([[1, 1, 0, 1, 0, 0, 1, 1]]).bool()
    assert heads(masked).long().tolist() == [[1, 0, 0, 1, 0, 0, 1, 0]]
