"""Continuations under token edges: every token through its marginal, by enumeration of all texts."""

import itertools
import math

import pytest
import torch
from tests.objective.test_marginals import N, enumerated, rows_of, toy

from dadlm.interop.likelihood import score_continuation


@pytest.mark.parametrize("family", ["bd3lm", "dadlm"])
def test_a_draw_is_one_order_of_true_marginals(family):
    model = toy(family)
    ids = rows_of(model, 1)
    orders = []
    for order in itertools.permutations(range(N)):
        value = 0.0
        for done, place in enumerate(order):
            masked = torch.zeros(1, 2 * N, dtype=torch.bool)
            masked[0, [N + i for i in order[done:]]] = True
            value += math.log(enumerated(model, ids, masked)[0, place, ids[0, N + place]])
        orders.append(value)
    context, continuation = ids[0, :N].tolist(), ids[0, N:].tolist()
    found = {score_continuation(model, context, continuation, seed=seed).logp for seed in range(40)}
    assert all(min(abs(one - value) for one in orders) < 1e-4 for value in found)
    assert len({round(value, 4) for value in found}) == len({round(value, 4) for value in orders})


def test_many_chains_come_near_the_exact_score(monkeypatch):
    model = toy()
    context, continuation = rows_of(model, 1).view(2, N).tolist()
    exact = score_continuation(model, context, continuation, draws=4)
    monkeypatch.setattr("dadlm.objective.marginals._DEARER", 0)
    monkeypatch.setattr("dadlm.interop.likelihood._CHAINS", 4096)
    sampled = score_continuation(model, context, continuation, draws=4)
    assert sampled.logp == pytest.approx(exact.logp, abs=0.1) and sampled.logp != exact.logp
    assert sampled.greedy == exact.greedy
