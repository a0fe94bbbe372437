"""Perplexity against enumeration: all masks, all orders, all paths and all texts of toy models."""

import json
import math
import sys
from itertools import combinations, permutations, product
from pathlib import Path

import pytest
import torch
from tests.model.tiny import tiny_model
from torch import Tensor
from torch.testing import assert_close

from dadlm.dag.naive import path_distribution
from dadlm.errors import ConfigError
from dadlm.evaluate.intervals import bootstrap
from dadlm.evaluate.masks import KINDS, draw_masks, level, strata, weigh
from dadlm.evaluate.perplexity import perplexity
from dadlm.evaluate.scores import block_of, score_batch, score_rows
from dadlm.evaluate.text import pick
from dadlm.model import Context, Denoised, Model
from dadlm.objective import losses
from dadlm.tokens import Rows, word_level

V, N = 5, 3  # ids 0..3 and the mask


def toy(family: str = "dadlm", **changes) -> Model:
    """Two blocks of three tokens; MDLM: one of four."""
    shape = {"vocab_size": V, "eot_id": 3, "block_size": N, "candidates": 2}
    return tiny_model(family, **({"context": 4 if family == "mdlm" else 2 * N} | shape | changes))


def texts(model: Model, rows: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, model.config.mask_id, (rows, model.config.context), generator=generator)


def rows_from(ids: Tensor) -> Rows:
    return Rows.from_ids(ids.flatten(), ids.shape[1])


def maskable(model: Model, block: int) -> list[int]:
    """Positions of a block that can be masked: all but position 0 of the row."""
    size = block_of(model, model.config.context)
    return [position for position in range(block * size, (block + 1) * size) if position]


@torch.no_grad()
def token_probability(model: Model, ids: Tensor, masked: Tensor) -> Tensor:
    """[B, L]: of each masked token alone, the sum over all paths written out; 1 where nothing is masked."""
    B, L = ids.shape
    if model.config.family == "mdlm":
        logits = model.head.logits(model.read(ids.masked_fill(masked, model.config.mask_id)))
        p = logits.softmax(-1).gather(-1, ids[..., None])[..., 0]
        return torch.where(masked, p, 1.0).double()
    size = model.config.block_size
    blocks, context = ids.view(B, -1, size), Context()
    model.read(ids, context, only_context=True)
    first = torch.arange(0, L, size).expand(B, -1)
    denoised = model.denoise(blocks, masked.view(B, -1, size), first, context)
    emission = model.emission_logp(denoised, blocks).exp().double()  # [B, G, N, K]
    paths, prior = path_distribution(model.transition_logp(denoised).double())  # [P, N], [B, G, P]
    chosen = emission[..., torch.arange(size), paths]  # [B, G, P, N]
    return (prior[..., None] * chosen).sum(-2).view(B, L)


def orders_logp(model: Model, ids: Tensor, block: int) -> Tensor:
    """[B, orders]: log p(block | order) when its tokens are revealed one by one in each possible order."""
    free = maskable(model, block)
    sets = [frozenset(one) for size in range(1, len(free) + 1) for one in combinations(free, size)]
    logp = {}
    for one in sets:
        masked = torch.zeros_like(ids, dtype=torch.bool)
        masked[:, list(one)] = True
        logp[one] = token_probability(model, ids, masked).log()
    by_order = []
    for order in permutations(free):
        left, total = set(order), torch.zeros(len(ids), dtype=torch.float64)
        for position in order:
            total += logp[frozenset(left)][:, position]
            left.remove(position)
        by_order.append(total)
    return torch.stack(by_order, 1)


def expected_bound(model: Model, ids: Tensor, block: int) -> Tensor:
    """[B]: mean of the estimator, over all m and all sets of m positions with their probabilities."""
    size, free, mean = block_of(model, ids.shape[1]), maskable(model, block), 0.0
    for m in range(1, len(free) + 1):
        for chosen in combinations(free, m):
            masked = torch.zeros_like(ids, dtype=torch.bool)
            masked[:, list(chosen)] = True
            with torch.no_grad():
                loss = losses(model, ids, weigh(masked, size)).bound[:, block].double()
            mean = mean + loss / len(free) / math.comb(len(free), m)
    assert isinstance(mean, Tensor)
    return mean


FAMILIES = ("mdlm", "bd3lm", "dadlm")
families = pytest.mark.parametrize("family", FAMILIES)


# What the estimator estimates


@families
def test_the_mean_of_the_estimator_is_the_mean_over_all_orders(family):
    model = toy(family)
    ids = texts(model, 5)
    for block in range(len(ids[0]) // block_of(model, len(ids[0]))):
        logp = orders_logp(model, ids, block)
        expected = expected_bound(model, ids, block)
        assert_close(expected, -logp.mean(1), atol=1e-5, rtol=1e-5)
        exact = math.log(logp.shape[1]) - logp.logsumexp(1)  # of the sampler, which draws an order
        assert (expected > exact - 1e-6).all()
        assert (expected - exact).max() > 1e-4  # random conditionals contradict each other


def parted() -> Model:
    """A DA-DLM whose candidates differ so much that the graph adds a lot."""
    model = toy(candidate_offset=1.0)
    assert model.graph is not None and model.head.offset is not None
    with torch.no_grad():
        model.head.offset *= 8
        model.graph.candidate *= 8
    return model


def test_each_token_counts_through_its_own_marginal():
    """First-hitting keeps one token of a path: the joint likelihood of all of them is no bound of it."""
    model = parted()
    ids = texts(model, 5)
    masked = torch.zeros_like(ids, dtype=torch.bool)
    masked[:, N:] = True
    loss = losses(model, ids, weigh(masked, N))
    alone = -token_probability(model, ids, masked)[:, N:].log().sum(1)
    assert_close(loss.bound[:, 1].double(), alone, atol=1e-5, rtol=1e-5)
    assert (loss.reconstruction[:, 1].double() - alone).abs().max() > 0.1


def test_the_result_is_the_bound_of_the_masks_drawn():
    model = parted()
    ids = texts(model, 6)
    masked = draw_masks(3, torch.arange(6), 6, 2 * N, N)
    nll = -token_probability(model, ids, masked).log().view(6, 2, N).sum(-1)
    drawn = masked.view(6, 2, N).sum(-1)
    expected = (nll * torch.tensor([2, 3]) / drawn).sum() / (6 * 5)
    assert_close(perplexity(model, rows_from(ids), seed=3)["nll"]["mean"], float(expected), atol=1e-5, rtol=0)
    joint = losses(model, ids, weigh(masked, N)).reconstruction.sum() / (6 * 5)
    assert abs(float(joint - expected)) > 1e-3


def consistent(seed: int = 3) -> tuple[Model, Tensor]:
    """A BD3LM whose conditionals all come from one joint distribution [V-1, V-1, V-1] of a block's tokens."""
    joint = torch.rand(V - 1, V - 1, V - 1, generator=torch.Generator().manual_seed(seed)).double() ** 4
    joint /= joint.sum()
    model, every = toy("bd3lm"), torch.tensor(list(product(range(V - 1), repeat=N)))

    def emission_logp(denoised: Denoised, target: Tensor) -> Tensor:
        masked = denoised.nodes.masked[..., None, :]
        known = ((every == target[..., None, :]) | masked).all(-1)  # [B, G, texts]: which agree with anchors
        hit = known[..., None] & (every == target[..., None, :])
        p = joint.flatten()
        logp = ((p[:, None] * hit).sum(-2) / (p * known).sum(-1, keepdim=True)).log()
        return (logp * masked[..., 0, :])[..., None].float()

    model.emission_logp = emission_logp  # type: ignore[method-assign]
    return model, joint


def test_with_consistent_conditionals_the_bound_is_exact():
    model, joint = consistent()
    ids = texts(model, 6)
    first = joint[ids[:, 0], ids[:, 1], ids[:, 2]] / joint[ids[:, 0]].sum((1, 2))  # position 0 is given
    second = joint[ids[:, 3], ids[:, 4], ids[:, 5]]
    for block, p in enumerate((first, second)):
        assert_close(expected_bound(model, ids, block), -p.log(), atol=1e-5, rtol=1e-5)
    draws = 100
    result = perplexity(model, rows_from(ids), draws=draws)
    values = [perplexity(model, rows_from(ids), seed=seed)["nll"]["mean"] for seed in range(12)]
    truth = float(-(first * second).log().mean() / 5)
    error = float(torch.tensor(values).std()) / draws**0.5
    assert 0.002 < error < 0.05 * truth  # a single draw does not tell the truth
    assert_close(result["nll"]["mean"], truth, atol=4 * error, rtol=0)


# The masks


def test_every_number_of_masks_is_as_likely_and_so_is_every_set():
    """Over seeds, for one row: block 0 has 3 maskable positions, block 1 has 4."""
    seeds, counts = 1500, [{}, {}]
    for seed in range(seeds):
        masked = draw_masks(seed, torch.tensor([5]), 7, 8, 4)[0].view(2, 4)
        for block in range(2):
            chosen = tuple(masked[block].nonzero().flatten().tolist())
            counts[block][chosen] = counts[block].get(chosen, 0) + 1
    assert all(0 not in chosen for chosen in counts[0])
    for n, seen, limit in ((3, counts[0], 22.5), (4, counts[1], 36.1)):  # 99.9% of χ² with 6 and 14 degrees
        assert len(seen) == 2**n - 1
        deviation = 0.0
        for chosen, count in seen.items():
            expected = seeds / n / math.comb(n, len(chosen))
            deviation += (count - expected) ** 2 / expected
        assert deviation < limit


def test_numbers_of_masks_are_spread_evenly_over_all_blocks():
    masked = draw_masks(0, torch.arange(100), 100, 16, 4).view(100, 4, 4)
    counts = masked[:, 1:].sum(-1).flatten().bincount(minlength=5)
    assert counts[0] == 0 and (counts[1:] - 75).abs().max() <= 6  # independent draws: ± 15
    drawn = draw_masks(0, torch.arange(400), 400, 4, 4).sum(-1).bincount(minlength=5)
    assert drawn[0] == drawn[4] == 0 and (drawn[1:4] - 400 / 3).abs().max() <= 2


# Both forms


@families
def test_both_forms_agree_with_the_truth_and_the_even_one_varies_less(family):
    model = toy(family) if family != "dadlm" else parted()
    ids = texts(model, 150)
    blocks = ids.shape[1] // block_of(model, ids.shape[1])
    truth = sum(expected_bound(model, ids, block) for block in range(blocks)) / (ids.shape[1] - 1)
    result = perplexity(model, rows_from(ids), seed=2)
    assert result["forms_agree"]
    widths = []
    for form in ("nll", "nll_by_time"):
        low, high = result[form]["low"], result[form]["high"]
        assert low < float(truth.mean()) < high
        widths.append(high - low)
    assert widths[0] < 0.6 * widths[1]


@families
def test_the_time_form_is_the_bound_of_validation(family):
    model = toy(family)
    rows = rows_from(texts(model, 6))
    bound = float(score_rows(model, rows, seed=5, batch_size=4).bound.mean())
    assert_close(perplexity(model, rows, seed=5)["nll_by_time"]["mean"], bound, atol=1e-6, rtol=0)


def test_forms_that_differ_do_not_agree(monkeypatch: pytest.MonkeyPatch):
    model = toy()
    rows = rows_from(texts(model, 60))
    assert perplexity(model, rows)["forms_agree"] is True
    assert perplexity(model, rows, count=5)["forms_agree"] is None  # too few to tell
    module = sys.modules["dadlm.evaluate.perplexity"]  # its function has the same name
    monkeypatch.setattr(module, "score_batch", lambda *how, **more: (None, score_batch(*how, **more)[1] * 2))
    assert perplexity(model, rows)["forms_agree"] is False


# How sure it is


@pytest.mark.parametrize(("block", "blocks"), [(4, 8), (64, 1)])
def test_the_interval_is_as_wide_as_the_mean_varies_over_seeds(block, blocks):
    """A block's loss depends on its masks, but every number of masks comes equally often."""
    R, means, widths, naive = 300, [], [], []
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        m = draw_masks(seed, torch.arange(R), R, block * blocks, block).view(R, blocks, block).sum(-1)
        loss = 4 * m / block + 0.2 * torch.randn(R, blocks, generator=generator)
        stratum = strata(m, block, R)
        nats, number = torch.zeros(2, R, KINDS, dtype=torch.float64)
        nats.scatter_add_(1, stratum, loss.double())
        number.scatter_add_(1, stratum, torch.ones(R, blocks).double())
        rows, even = nats.sum(1), level(nats, number)
        assert_close(even.mean(), loss.double().sum(1).mean(), atol=1e-6, rtol=0)
        means.append(float(rows.mean()))
        for values, kept in ((even, widths), (rows, naive)):
            interval = bootstrap(values, draws=100)
            kept.append((interval.high - interval.low) / 3.92)
    spread, widths, naive = float(torch.tensor(means).std()), sum(widths) / 100, sum(naive) / 100
    assert 0.75 * spread < widths < 1.3 * spread
    assert naive > 1.6 * spread


def test_whole_documents_are_drawn():
    model = toy("ar")
    ids = texts(model, 24) % 3  # no end of text
    ids[3::4, -1] = model.config.eot_id  # but after every fourth row
    result = perplexity(model, rows_from(ids))
    rows = score_rows(model, rows_from(ids)).bound
    expected = bootstrap(rows, torch.arange(24) // 4)
    assert result["groups"] == 6
    for side in ("mean", "low", "high"):
        assert_close(result["nll"][side], getattr(expected, side), atol=1e-6, rtol=0)


def test_blocks_are_of_a_kind_when_they_have_as_many_masks():
    m = torch.tensor([[1, 1, 4], [3, 4, 2]])
    assert strata(m, 4, 100).tolist() == [[1, 18, 21], [3, 21, 19]]
    long = strata(torch.arange(1, 100)[:, None], 100, 1000)[:, 0]  # a row of 100 tokens: 99 can be masked
    assert long.tolist() == sorted(long.tolist()) and long.unique().tolist() == list(range(1, 17))
    few = strata(torch.arange(1, 100)[:, None], 100, 20)[:, 0]  # kinds of about ten blocks each
    assert few.unique().tolist() == [1, 2]
    assert strata(torch.tensor([[0, 1]]), 1, 50).tolist() == [[0, 18]]  # blocks of one token


# Exact families


@torch.no_grad()
def test_ar_is_the_exact_likelihood_without_position_0():
    model = toy("ar")
    ids = texts(model, 4)
    total = 0.0
    for position in range(1, ids.shape[1]):  # prefix by prefix
        p = model.head.logits(model.read(ids[:, :position])[:, -1]).softmax(-1)
        total -= float(p.gather(1, ids[:, position, None]).log().sum())
    result = perplexity(model, rows_from(ids))
    assert_close(result["nll"]["mean"], total / (4 * 5), atol=1e-6, rtol=0)
    assert_close(result["perplexity"]["mean"], math.exp(total / (4 * 5)), atol=1e-5, rtol=0)
    assert (result["is_bound"], result["nll_by_time"], result["forms_agree"]) == (False, None, None)
    assert result["tokens"] == 20


def test_blocks_of_one_token_have_one_order():
    model = toy("bd3lm", block_size=1)
    rows = rows_from(texts(model, 5))
    one, two = (perplexity(model, rows, seed=seed) for seed in (0, 1))
    assert not one["is_bound"]
    for other in (one["nll_by_time"], two["nll"], two["nll_by_time"]):
        assert_close(one["nll"]["mean"], other["mean"], atol=1e-6, rtol=0)


# The result


@pytest.mark.parametrize("family", ["ar", *FAMILIES])
def test_batch_size_and_a_stop_change_nothing(family, tmp_path: Path):
    model = toy(family)
    rows, data = rows_from(texts(model, 7)), {"source": "made up"}
    whole = perplexity(model, rows, draws=2, out=tmp_path / "whole", data=data)
    assert json.loads((tmp_path / "whole" / "perplexity.json").read_text(encoding="utf-8")) == whole
    assert whole["data"]["source"] == "made up"
    for batch_size in (1, 3):
        other = perplexity(model, rows, draws=2, batch_size=batch_size, data=data)
        for name in ("nll", "perplexity", *(() if family == "ar" else ("nll_by_time",))):
            assert_close(other[name], whole[name], atol=1e-6, rtol=1e-6)
    lines = (tmp_path / "whole" / "perplexity.pieces.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "perplexity.pieces.jsonl").write_bytes(b"".join([*lines[:4], lines[4][:9]]))
    again = perplexity(model, rows, draws=2, out=tmp_path / "cut", data=data)
    assert_close(again["nll"], whole["nll"], atol=1e-6, rtol=1e-6)
    assert again.keys() == whole.keys() and again["note"] == whole["note"]


def test_bad_requests():
    model = toy()
    rows = rows_from(texts(model, 2))
    for name in ("draws", "count", "batch_size"):
        with pytest.raises(ConfigError, match=name):
            perplexity(model, rows, **{name: 0})
    with pytest.raises(ConfigError, match="2 to 6"):
        perplexity(model, Rows.from_ids(torch.zeros(12), 12))


@pytest.mark.parametrize("family", ["ar", *FAMILIES])
def test_bits_per_byte_are_of_the_text_that_was_scored(family):
    """Short words first, long ones after: the average of the whole text would be of no use for a part."""
    model = toy(family, vocab_size=4, eot_id=2)
    model.tokenizer = word_level(["a", "longer"])
    length = model.config.context
    rows = Rows.from_ids([0] * length * 20 + [1] * length * 20, length)
    for count, seed in ((None, 0), (3, 1), (3, 2)):
        result = perplexity(model, rows, count=count, seed=seed)
        index = pick(rows, count, seed)
        size = sum((length - 1) * len(" a" if row < 20 else " longer") for row in index)
        bits = result["nll"]["mean"] * (length - 1) * len(index) / math.log(2)
        assert_close(result["bits_per_byte"]["mean"], bits / size)


@pytest.mark.parametrize("family", ["ar", *FAMILIES])
def test_a_part_is_drawn_from_all_rows_and_masked_like_a_text_of_its_own(family):
    model = toy(family)
    ids = texts(model, 30)
    part = perplexity(model, rows_from(ids), count=8, seed=4)
    alone = perplexity(model, rows_from(ids[pick(rows_from(ids), 8, 4)]), seed=4)
    assert part["nll"]["mean"] == alone["nll"]["mean"]
    assert part["data"]["fingerprint"] == alone["data"]["fingerprint"]
    assert (part["count"], part["data"]["rows"]) == (8, 30)
