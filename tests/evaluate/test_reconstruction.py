"""Scores row by row: the same for every batch size, reproducible, and fit for pairs."""

import pytest
import torch
from tests.model.tiny import random_ids, tiny_model
from torch import Tensor
from torch.testing import assert_close

from dadlm.evaluate import Interval, RowScores, bootstrap, score_rows
from dadlm.noise import Noise, NoiseConfig, draw_noise
from dadlm.objective import losses
from dadlm.objective.ar import token_nll
from dadlm.tokens import Rows

FAMILIES = ("ar", "mdlm", "bd3lm", "dadlm")
FIELDS = ("reconstruction", "bound", "time", "fraction", "block_loss")
families = pytest.mark.parametrize("family", FAMILIES)


def text(rows: int = 7, seed: int = 1, context: int = 16) -> Rows:
    ids = torch.randint(0, 29, (rows * context,), generator=torch.Generator().manual_seed(seed))
    return Rows.from_ids(ids, context)


def fields(scores: RowScores) -> dict[str, Tensor]:
    return {name: getattr(scores, name) for name in FIELDS}


@families
def test_batch_size_changes_nothing(family):
    model, rows = tiny_model(family), text()
    truth = fields(score_rows(model, rows, batch_size=1))
    for batch_size in (2, 3, 7, 16):
        for name, value in fields(score_rows(model, rows, batch_size=batch_size)).items():
            assert_close(value, truth[name], atol=1e-5, rtol=1e-5)
    assert torch.equal(truth["time"], score_rows(model, rows).time)
    assert torch.equal(truth["fraction"], score_rows(model, rows).fraction)


@families
def test_a_seed_gives_the_same_scores_and_another_seed_others(family):
    model, rows = tiny_model(family), text()
    first, again, other = (score_rows(model, rows, seed=seed) for seed in (3, 3, 4))
    for name, value in fields(first).items():
        assert torch.equal(value, fields(again)[name])
    assert torch.equal(first.reconstruction, other.reconstruction) == (family == "ar")


@families
def test_scores_are_nats_per_predicted_token(family):
    """Position 0 is not predicted and not counted."""
    model, rows = tiny_model(family), text()
    scores = score_rows(model, rows, seed=3)
    ids = rows.batch(range(7))
    if family == "ar":
        total = token_nll(model, ids).sum(1)
    else:
        block = model.config.block
        how = {"seed": 3, "step": 0, "batch_rows": 7, "length": 16, "block_size": block}
        noise = draw_noise(NoiseConfig(), rows=torch.arange(7), **how)
        loss = losses(model, ids, noise).reconstruction
        total = loss.sum(1)
        assert_close(scores.time, noise.time.flatten())
        assert_close(scores.fraction, noise.masked.view(-1, block).float().mean(-1))
        assert_close(scores.block_loss, loss.flatten() / block)
    assert scores.reconstruction.dtype == torch.float64
    assert_close(scores.reconstruction, total.detach().double() / 15, atol=1e-6, rtol=1e-5)


def test_times_are_stratified_over_all_rows_whatever_the_batch():
    scores = score_rows(tiny_model("bd3lm"), text(), batch_size=2)
    u = ((scores.time.double() - 1e-3) / 0.999).sort().values
    assert len(u) == 28
    assert torch.cat([u, u[:1] + 1]).diff().max() < 2 / 28


def test_models_with_the_same_block_size_are_scored_under_the_same_masks():
    rows = text()
    plain, ours = score_rows(tiny_model("bd3lm"), rows), score_rows(tiny_model("dadlm"), rows)
    assert torch.equal(plain.time, ours.time) and torch.equal(plain.fraction, ours.fraction)


@families
def test_the_paired_difference_of_a_model_with_itself_is_exactly_zero(family):
    model, rows = tiny_model(family), text()
    one, two = score_rows(model, rows), score_rows(model, rows)
    assert bootstrap(one.reconstruction - two.reconstruction) == Interval(0.0, 0.0, 0.0)


def test_gap_is_what_the_graph_adds():
    rows = text()
    for family in FAMILIES[:3]:
        assert score_rows(tiny_model(family), rows).gap == 0.0
    model = tiny_model()
    assert model.graph is not None
    assert abs(score_rows(model, rows).gap) > 1e-4
    with torch.no_grad():
        model.graph.candidate[:] = 0.0
    assert abs(score_rows(model, rows).gap) < 1e-6


def test_count_takes_the_first_rows_and_no_more_than_there_are():
    model, rows = tiny_model("ar"), text()
    whole = score_rows(model, rows)
    assert_close(score_rows(model, rows, count=3).reconstruction, whole.reconstruction[:3])
    assert len(score_rows(model, rows, count=100).reconstruction) == 7


def test_a_training_model_is_scored_without_dropout_and_goes_on_training():
    model = tiny_model("bd3lm", dropout=0.5).train()
    first, again = score_rows(model, text()), score_rows(model, text())
    assert torch.equal(first.reconstruction, again.reconstruction)
    assert model.training
    assert not score_rows(model.eval(), text()).reconstruction.requires_grad and not model.training


def test_blocks_of_one_token_are_scored_exactly():
    """At block size 1, t = 1 and the weight is 1: the exact NLL, which no seed can change."""
    model, rows = tiny_model("bd3lm", block_size=1), text()
    one, two = (score_rows(model, rows, seed=seed) for seed in (0, 1))
    assert_close(one.reconstruction, two.reconstruction)


def test_mean_over_seeds_is_the_integral_over_times():
    """Monte Carlo against all masks S of a short row: Σ_S E_t[t^(|S|-1) (1-t)^(n-|S|)] · nll(S)."""
    model = tiny_model("bd3lm", context=4, block_size=4)
    ids = random_ids(model.config, 1)
    t = 1e-3 + 0.999 * (torch.arange(200_000).double() + 0.5) / 200_000
    truth, one = 0.0, torch.ones(1, 1)
    for code in range(1, 8):
        masked = torch.tensor([[False, bool(code & 1), bool(code & 2), bool(code & 4)]])
        nll = losses(model, ids, Noise(masked, one, one)).reconstruction.sum().item()
        n = int(masked.sum())
        truth += nll * float((t ** (n - 1) * (1 - t) ** (3 - n)).mean())
    rows = Rows.from_ids(ids.repeat(3000, 1).flatten(), 4)
    values = score_rows(model, rows, batch_size=3000).reconstruction * 3
    assert_close(float(values.mean()), truth, atol=4 * float(values.std()) / 3000**0.5, rtol=0)
    assert float(values.std()) / 3000**0.5 < 0.1 * truth
