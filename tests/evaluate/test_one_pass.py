"""The likelihood of a block in one pass, and bounds under token edges, by enumeration of all texts."""

import math
from itertools import combinations, permutations, product

import pytest
import torch
from tests.evaluate.test_perplexity import rows_from, texts
from tests.evaluate.test_perplexity import toy as plain_toy
from tests.objective.test_marginals import N, V, enumerated, toy
from torch import Tensor
from torch.testing import assert_close

from dadlm.errors import ConfigError, DataError
from dadlm.evaluate.masks import weigh
from dadlm.evaluate.one_pass import place_nats
from dadlm.evaluate.perplexity import perplexity
from dadlm.model import Model
from dadlm.objective import losses

KINDS = [("bd3lm", "none"), ("dadlm", "none"), ("bd3lm", "mlp"), ("dadlm", "bilinear")]
kinds = pytest.mark.parametrize(("family", "form"), KINDS)


def joint_of(model: Model, before: Tensor) -> Tensor:
    """[V, V, V]: the probability of every text of the second block in one pass, by the training loss."""
    second = torch.tensor(list(product(range(V), repeat=N)))
    ids = torch.cat([before.expand(len(second), -1), second], 1)
    masked = torch.ones_like(ids, dtype=torch.bool)
    masked[:, 0] = False
    with torch.no_grad():
        nll = losses(model, ids, weigh(masked, N), report=False).reconstruction[:, 1]
    return nll.double().neg().exp().view(V, V, V)


@kinds
@torch.no_grad()
def test_each_place_is_what_the_joint_says_after_the_places_before_it(family, form):
    model = toy(family, form)
    ids = texts(model, 4)
    nats = place_nats(model, ids).double()
    assert nats.shape == (4, 2, N) and not nats[:, 0, 0].any()
    for row, (*before, a, b, c) in zip(nats, ids.tolist(), strict=True):
        joint = joint_of(model, torch.tensor(before))
        assert_close(joint.sum(), torch.tensor(1.0).double(), atol=1e-5, rtol=0)
        prefixes = torch.stack([joint[a].sum(), joint[a, b].sum(), joint[a, b, c]]).log()
        truth = -prefixes.diff(prepend=torch.zeros(1).double())
        assert_close(row[1], truth, atol=1e-5, rtol=1e-5)


@kinds
@torch.no_grad()
def test_the_result_is_the_likelihood_of_all_rows(family, form):
    model = toy(family, form)
    ids = texts(model, 7)
    result = perplexity(model, rows_from(ids), passes=1)
    nats = place_nats(model, ids).double()
    nll = float(nats.sum() / (7 * 5))
    assert result["nll"]["mean"] == pytest.approx(nll, abs=1e-6)
    assert result["nll"]["low"] < nll < result["nll"]["high"]
    assert result["perplexity"]["mean"] == pytest.approx(math.exp(nll), rel=1e-6)
    assert result["by_place"] == pytest.approx(nats[:, 1].mean(0).tolist(), abs=1e-6)
    assert (result["is_bound"], result["passes"], result["chains"], result["nll_by_time"]) == (
        False,
        1,
        None,
        None,
    )
    assert "written a whole block in one pass" in result["note"]
    other = perplexity(model, rows_from(ids), passes=1, batch_size=2, seed=5)  # nothing is drawn
    assert other["nll"] == pytest.approx(result["nll"], rel=1e-6)
    single = perplexity(model, rows_from(ids[:, :N]), passes=1)
    assert single["by_place"] is None and single["tokens"] == 14


def test_blocks_of_one_token_have_one_likelihood():
    rows = rows_from(texts(plain_toy("bd3lm"), 5))
    model = plain_toy("bd3lm", block_size=1)
    bound, exact = perplexity(model, rows), perplexity(model, rows, passes=1)
    assert_close(exact["nll"], bound["nll"], atol=1e-6, rtol=0)


def test_ar_is_exact_as_ever_and_has_no_places():
    model = plain_toy("ar")
    rows = rows_from(texts(model, 5))
    result = perplexity(model, rows, passes=1)
    assert result["nll"] == perplexity(model, rows)["nll"] and result["by_place"] is None


def test_bad_requests():
    rows = rows_from(texts(plain_toy("mdlm"), 2))
    with pytest.raises(ConfigError, match="an MDLM has no blocks"):
        perplexity(plain_toy("mdlm"), rows, passes=1)
    model = toy()
    rows = rows_from(texts(model, 2))
    for how, message in (({"passes": 2}, "passes must be 1"), ({"chains": 5}, "multiple of 4")):
        with pytest.raises(ConfigError, match=message):
            perplexity(model, rows, **how)


# The first-hitting bound under token edges


@pytest.mark.parametrize(("family", "form"), KINDS[2:])
@torch.no_grad()
def test_the_mean_of_the_estimator_is_the_mean_over_all_orders(family, form):
    model, free = toy(family, form), range(N, 2 * N)
    ids = texts(model, 4)
    logp, mean = {}, torch.zeros(4, dtype=torch.float64)
    for m in range(1, N + 1):
        for chosen in combinations(free, m):
            masked = torch.zeros_like(ids, dtype=torch.bool)
            masked[:, list(chosen)] = True
            p = enumerated(model, ids, masked).gather(2, ids[:, N:, None]).squeeze(2)
            logp |= {(chosen, place): p[:, place - N].log() for place in chosen}
            bound = losses(model, ids, weigh(masked, N), chains=0).bound[:, 1].double()
            mean += bound / N / math.comb(N, m)
    orders = torch.stack(
        [sum(logp[tuple(sorted(order[i:])), order[i]] for i in range(N)) for order in permutations(free)]
    )
    assert_close(mean, -orders.mean(0), atol=1e-5, rtol=1e-5)
    exact = math.log(len(orders)) - orders.logsumexp(0)
    assert (mean > exact - 1e-6).all()


def test_chains_loosen_the_bound_and_say_by_how_much(monkeypatch, tmp_path):
    model = toy()
    rows = rows_from(texts(model, 60))
    exact = perplexity(model, rows)
    assert (exact["chains"], exact["by_chains"]) == (0, None) and "summed out exactly" in exact["note"]
    monkeypatch.setattr("dadlm.objective.marginals._DEARER", 0)
    drawn = perplexity(model, rows, chains=8, draws=2, out=tmp_path)
    assert drawn["chains"] == 8 and "by 8 sampled chains" in drawn["note"]
    slack = drawn["by_chains"]
    assert list(slack) == ["2", "4", "8"] and slack["2"] > slack["4"] > slack["8"]
    assert slack["8"] == pytest.approx(drawn["nll"]["mean"], abs=1e-9)
    batched = perplexity(model, rows, chains=8, draws=2, batch_size=7)
    assert batched["by_chains"] == pytest.approx(slack, abs=1e-5)
    with pytest.raises(DataError, match="different: chains"):  # another number of chains is another subject
        perplexity(model, rows, chains=16, draws=2, out=tmp_path)
