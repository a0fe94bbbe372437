"""top_k: the k likeliest tokens by definition, for every family, and for each row its own."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.decode.naive import standard_nucleus
from tests.decode.tiny import FAMILIES, many, prompt_of, silence_eot, tiny

from dadlm import DecodeSettings, generate
from dadlm.decode.engine import Engine
from dadlm.decode.request import Request
from dadlm.decode.sample import in_nucleus, in_top_k

ROWS = [prompt_of(6, seed) for seed in range(3)]
EDGES = [("bd3lm", {"edge": "bilinear"}), ("dadlm", {"edge": "mlp"})]
MODELS = [*((family, {}) for family in FAMILIES), *EDGES]


def likeliest(p: list[float], k: int) -> list[int]:
    return sorted(range(len(p)), key=lambda i: (-p[i], i))[: k or len(p)]


@many
@given(st.lists(st.integers(1, 5), min_size=1, max_size=9), st.lists(st.integers(0, 12), min_size=1))
def test_the_k_likeliest_and_ties_go_to_the_lowest_id(parts: list[int], ks: list[int]):
    logits = torch.tensor([parts] * len(ks), dtype=torch.float32)
    inside = in_top_k(logits, torch.tensor(ks), max(ks) or 1)
    assert [set(row.nonzero().flatten().tolist()) for row in inside] == [set(likeliest(parts, k)) for k in ks]


def test_the_nucleus_is_that_of_the_k_likeliest():
    p = [0.125, 0.25, 0.0625, 0.25, 0.1875, 0.125]
    for k in range(9):
        best = likeliest(p, k)
        share = [p[i] / sum(p[j] for j in best) if i in best else 0.0 for i in range(len(p))]
        inside = in_nucleus(torch.tensor([p]), torch.tensor([0.7], dtype=torch.float64), torch.tensor([k]))
        assert set(inside[0].nonzero().flatten().tolist()) == standard_nucleus(share, 0.7), k


@pytest.mark.parametrize(("family", "shape"), MODELS)
def test_one_token_is_the_most_probable_one(family: str, shape: dict):
    model = tiny(family, **shape)
    options = {"max_new_tokens": 12, "seed": 3}
    cold = generate(model, ROWS, temperature=0.0, **options).tokens
    assert generate(model, ROWS, top_k=1, top_p=1.0, **options).tokens == cold
    assert generate(model, ROWS, top_k=28, **options).tokens != cold
    assert generate(model, ROWS, top_k=29, **options).tokens == generate(model, ROWS, **options).tokens


def test_one_token_of_a_shortlist_and_of_a_position():
    edges, options = tiny("bd3lm", edge="bilinear"), {"max_new_tokens": 12, "seed": 3, "shortlist": 9}
    cold = generate(edges, ROWS, temperature=0.0, **options).tokens
    assert generate(edges, ROWS, top_k=1, **options).tokens == cold
    how = {"sampler": "random", "steps": 1, "nucleus": "position", "max_new_tokens": 8, "top_p": 1.0}
    for model in (tiny("dadlm"), tiny("dadlm", edge="bilinear")):  # the likeliest, whichever path is drawn
        texts = [generate(model, ROWS[0][:4], top_k=1, seed=seed, **how).tokens for seed in range(4)]
        assert all(text == texts[0] for text in texts)
        assert generate(model, ROWS[0][:4], seed=0, **how).tokens != texts[0]


@pytest.mark.parametrize(("family", "shape"), MODELS)
def test_rows_of_one_batch_each_have_their_own(family: str, shape: dict, as_on_cuda: None):
    model = silence_eot(tiny(family, **shape))
    plain = DecodeSettings(max_new_tokens=9)
    ways = [plain, replace(plain, top_k=1), replace(plain, top_k=3, top_p=0.5), replace(plain, top_k=1000)]
    if family == "dadlm":
        ways.append(replace(plain, top_k=2, nucleus="position"))
    engine = Engine(model, lockstep=False)
    rows = [engine.add(Request(ids=tuple(ROWS[0]), settings=way, seed=5)) for way in ways]
    while engine.rows:
        engine.step()
    alone = [generate(model, ROWS[0], seed=5, settings=way).tokens[0] for way in ways]
    assert [row.tokens for row in rows] == alone
    assert alone[0] == alone[3] != alone[1]
