"""The law of a generated block: exact by enumeration of paths, tokens and remaskings, against frequencies.

N block size, K candidates.
"""

import itertools
from collections import Counter

import pytest
import torch
from tests.decode.naive import Law, Naive, emission, paths
from tests.decode.tiny import prompt_of, tiny

from dadlm import DecodeSettings, Model, generate, stream

SAMPLES = 8_000


def model_of(N: int, family: str = "dadlm") -> Model:
    """Four tokens (end-of-text one of them) and the mask; K = 2, and the candidates differ much."""
    shape = {"layers": 1, "candidate_offset": 1.0, "seed": 1}
    return tiny(family, block=N, candidates=2, vocab=5, context=8 * N, **shape)


def law_of(
    model: Model, prompt: list[int], settings: DecodeSettings, steps: int
) -> dict[tuple[int, ...], float]:
    """Of the tokens up to the end of the block in which the prompt ends, cut at end-of-text."""
    N, eot = model.config.block_size, model.config.eot_id
    first = len(prompt) // N * N
    known = prompt[first:]
    whole = Law(Naive(model), prompt[:first], settings, steps).of(known + [None] * (N - len(known)))
    law: dict[tuple[int, ...], float] = Counter()
    for ids, p in whole.items():
        new = ids[len(known) :]
        law[new[: new.index(eot) + 1] if eot in new else new] += p
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-5)
    return law


def agree(law: dict[tuple[int, ...], float], drawn: list[list[int]]) -> float:
    """p-value of a chi-square test; cells that expect fewer than five are taken together."""
    counts = Counter(map(tuple, drawn))
    assert set(counts) <= {text for text, p in law.items() if p > 0}, "a text of probability zero"
    large = [text for text, p in law.items() if p * len(drawn) >= 5]
    seen = [counts[text] for text in large] + [len(drawn) - sum(counts[text] for text in large)]
    expected = [law[text] * len(drawn) for text in large]
    expected.append(len(drawn) - sum(expected))
    if expected[-1] < 1e-6 * len(drawn):  # nothing but rounding is left over
        assert seen.pop() == 0
        expected.pop()
    seen_, expected_ = torch.tensor(seen).double(), torch.tensor(expected).double()
    chi_square = ((seen_ - expected_) ** 2 / expected_).sum()
    freedom = torch.tensor(len(seen) - 1.0).double()
    assert freedom > 3
    return float(torch.special.gammaincc(freedom / 2, chi_square / 2))


CASES = {
    "one step": (3, 0, {"sampler": "random", "steps": 1, "top_p": 1.0}),
    "one step beside an anchor": (3, 1, {"sampler": "random", "steps": 1, "top_p": 1.0}),
    "one step, tempered nucleus": (
        3,
        0,
        {"sampler": "random", "steps": 1, "top_p": 0.8, "temperature": 1.5},
    ),
    "two steps": (3, 0, {"sampler": "random", "steps": 2, "top_p": 1.0}),
    "two steps, nucleus of the position": (
        3,
        0,
        {"sampler": "random", "steps": 2, "top_p": 0.8, "temperature": 1.5, "nucleus": "position"},
    ),
    "three steps, infilling": (3, 0, {"sampler": "random", "steps": 3, "top_p": 1.0, "infill": (2, 0.3)}),
    "first-hitting": (2, 0, {"top_p": 1.0}),
    "first-hitting, infilling": (3, 0, {"top_p": 1.0, "infill": (1, 0.0)}),
}


@pytest.mark.parametrize(("N", "extra", "options"), CASES.values(), ids=CASES)
def test_frequencies_are_those_of_the_exact_law(N: int, extra: int, options: dict):
    model, prompt = model_of(N), prompt_of(N + extra, 1, vocab=5)
    law = law_of(model, prompt, DecodeSettings(**options), options.get("steps", N))
    out = generate(
        model, [prompt] * SAMPLES, seed=10**6, batch_size=3000, max_new_tokens=N - extra, **options
    )
    assert agree(law, out.tokens) > 0.001


def test_the_test_can_tell_one_step_from_two():
    """Its power: the law of another number of steps is refused."""
    model, prompt = model_of(3), prompt_of(3, 1, vocab=5)
    law = law_of(model, prompt, DecodeSettings(top_p=1.0), 2)
    out = generate(
        model,
        [prompt] * SAMPLES,
        seed=5,
        batch_size=3000,
        max_new_tokens=3,
        sampler="random",
        steps=1,
        top_p=1.0,
    )
    assert agree(law, out.tokens) < 1e-6


def test_the_nucleus_of_the_position_is_another_law():
    model, prompt = model_of(3), prompt_of(3, 1, vocab=5)
    how = {"sampler": "random", "steps": 1, "top_p": 0.8, "temperature": 1.5}
    law = law_of(model, prompt, DecodeSettings(**how, nucleus="position"), 1)
    texts = generate(model, [prompt] * SAMPLES, seed=5, batch_size=3000, max_new_tokens=3, **how).tokens
    assert any(tuple(text) not in law for text in texts)


def test_tokens_of_one_step_are_joined_by_the_path():
    """DA-DLM's point: the law is not the product of its marginals, and BD3LM's is."""
    for family, joined in (("dadlm", True), ("bd3lm", False)):
        model = model_of(2, family)
        naive, settings = Naive(model), DecodeSettings(sampler="random", steps=1, top_p=1.0)
        whole = Law(naive, prompt_of(2, 1, vocab=5), settings, 1).of([None, None])
        left, right = Counter(), Counter()
        for (a, b), p in whole.items():
            left[a] += p
            right[b] += p
        gap = max(abs(whole[a, b] - left[a] * right[b]) for a, b in itertools.product(left, right))
        assert (gap > 0.1) if joined else (gap < 1e-6)


@pytest.mark.parametrize("extra", [0, 1, 2])
def test_viterbi_is_the_most_probable_path_with_its_tokens(extra: int):
    """Against enumeration of every path and every choice of tokens on it."""
    settings = DecodeSettings(top_p=1.0)
    for seed in range(12):
        model = tiny("dadlm", block=3, candidates=3, vocab=7, context=12, layers=1, seed=seed)
        prompt = prompt_of(3 + extra, seed, vocab=7)
        ids = [*prompt[3:], None, None, None][:3]
        graph = Naive(model).graph(prompt[:3], ids)
        best, texts = 0.0, None
        for path, p in paths(graph):
            nodes = [
                [(id_, 1.0)] if id_ is not None else list(enumerate(emission(graph.logits[i][k], settings)))
                for i, (k, id_) in enumerate(zip(path, ids, strict=True))
            ]
            for tokens in itertools.product(*nodes):
                joint = p
                for _, q in tokens:
                    joint *= q
                if joint > best:
                    best, texts = joint, [t for t, _ in tokens]
        how = {"path": "viterbi", "sampler": "random", "steps": 1, "seed": 0, "max_new_tokens": 3 - extra}
        (event,) = stream(model, prompt, **how)
        assert event.ids == texts
