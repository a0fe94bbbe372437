"""Token edges from counts: what is counted, how good the factors are, and what they do for a model."""

import numpy as np
import pytest
import torch
from tests.commands import Cli, refused
from tests.decode.tiny import tiny
from torch.testing import assert_close

from dadlm.errors import ConfigError, DataError
from dadlm.model import Model, ModelConfig, load, save
from dadlm.noise import Noise
from dadlm.objective import losses
from dadlm.tokens import Mixture, Rows, train_bpe
from dadlm.train.edges import (
    choose_scale,
    choose_second_scale,
    count_pairs,
    decompose,
    fit,
    is_fresh,
    pair_nll,
    set_edges,
    set_second,
    start_edges,
    with_edges,
)

V = 12


def chain_text(tokens: int, seed: int = 0) -> np.ndarray:
    """A Markov chain over V tokens in which each is followed by one of three."""
    random = np.random.default_rng(seed)
    ids, turns = [0], random.integers(0, 3, tokens)
    for turn in turns[1:]:
        ids.append((3 * ids[-1] + 1 + 4 * turn) % V)
    return np.array(ids)


def test_pairs_are_counted_within_rows(monkeypatch):
    monkeypatch.setattr("dadlm.train.edges._AT_ONCE", 8)  # several parts, which are added up
    ids = [0, 1, 1, 2, 2, 0, 1, 1, 0, 1, 2, 2, 9, 9, 9, 9]
    pairs = count_pairs(Rows.from_ids(ids, 4), V, tokens=12)  # the last row is not asked for
    found = dict(
        zip(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True), pairs.count.tolist(), strict=True)
    )
    assert found == {(0, 1): 3, (1, 1): 2, (1, 2): 2, (2, 0): 1, (2, 2): 1}
    assert_close(pairs.share[1] / pairs.share[0], torch.tensor(5.5 / 3.5))
    truth = [np.log1p(c / (100 * float(pairs.share[y]))) for (_, y), c in sorted(found.items())]
    assert_close(pairs.log_ratio, torch.tensor(truth).float())


def test_pairs_may_stand_two_places_apart():
    pairs = count_pairs(Rows.from_ids([0, 1, 2, 0, 1, 1, 0, 1], 4), V, tokens=8, apart=2)
    found = zip(pairs.first.tolist(), pairs.second.tolist(), pairs.count.tolist(), strict=True)
    assert list(found) == [(0, 2, 1), (1, 0, 2), (1, 1, 1)]


def test_factors_of_full_rank_are_the_table_and_the_fit_reaches_the_entropy():
    pairs = count_pairs(Rows.from_ids(chain_text(6000), 100), V, 6000)
    left, right = decompose(pairs, V)
    table = torch.zeros(V, V).index_put((pairs.first, pairs.second), pairs.log_ratio)
    assert_close(left @ right.t(), table, atol=1e-3, rtol=1e-3)
    start = pair_nll(pairs, *decompose(pairs, 4))
    fitted = pair_nll(pairs, *fit(pairs, decompose(pairs, 4), steps=300))
    assert fitted < start < pair_nll(pairs, torch.zeros(V, 1), torch.zeros(V, 1))
    assert fitted < np.log(3) + 0.05


def test_every_source_of_a_mixture_is_counted():
    parts = [Rows.from_ids([word, word + 1] * 500, 10) for word in (0, 4)]
    pairs = count_pairs(Mixture(parts, [0.75, 0.25]), V, tokens=1000)
    begun = torch.zeros(V).index_add(0, pairs.first, pairs.count)
    assert 0.6 < float((begun[0] + begun[1]) / begun.sum()) < 0.9 and bool(begun[4])


def test_a_short_text_fits_the_edges_of_a_large_vocabulary(monkeypatch):
    """A step looks at few of many tokens, of which nearly all occur in no pair."""
    monkeypatch.setattr("dadlm.train.edges._AT_ONCE", 2000)
    pairs = count_pairs(Rows.from_ids(chain_text(200), 100), 2000, 200)
    left, right = fit(pairs, decompose(pairs, 4))
    assert pair_nll(pairs, left, right) < pair_nll(pairs, *decompose(pairs, 4)) < np.log(2000)


def edge_gain(model: Model, rows: Rows) -> float:
    """Nats a token of whole masked blocks."""
    ids = torch.stack([rows[i] for i in range(8)])
    masked = torch.ones_like(ids, dtype=torch.bool)
    masked[:, : model.config.block_size] = False
    with torch.no_grad():
        return float(losses(model, ids, Noise.of(masked)).reconstruction.sum() / masked.sum())


@pytest.mark.parametrize("family", ["bd3lm", "dadlm"])
def test_counted_edges_help_a_model_that_has_not_learned_them(family):
    plain = tiny(family, vocab=V + 1)
    rows = Rows.from_ids(chain_text(12_800), 64)
    model = with_edges(plain, 4)
    assert is_fresh(model) and not is_fresh(plain)
    assert_close(torch.tensor(edge_gain(model, rows)), torch.tensor(edge_gain(plain, rows)))
    start_edges(model, rows.cut(0, 150), 10_000)
    assert not is_fresh(model)
    assert edge_gain(model, rows.cut(150, 200)) < edge_gain(plain, rows.cut(150, 200)) - 0.5
    found = choose_scale(model, rows.cut(150, 200), (0.0, 0.5, 1.0))
    assert min(found, key=found.__getitem__) == model.head.edge.scale[1, 0].item() > 0


def test_edges_of_second_order_are_added_to_those_that_are_there():
    """A text in which every token depends on the one two places before it alone."""
    ids = np.stack([chain_text(12_800, seed) for seed in (0, 1)], 1).reshape(-1)
    rows = Rows.from_ids(ids, 64)
    first = with_edges(tiny("bd3lm", vocab=V + 1), 4)
    start_edges(first, rows.cut(0, 300), 20_000)
    model = with_edges(first, 4, 6)
    assert edge_gain(model, rows) == pytest.approx(edge_gain(first, rows), abs=1e-6)
    pairs = count_pairs(rows.cut(0, 300), V, 20_000, apart=2)
    factors = fit(pairs, decompose(pairs, 6))
    found = choose_second_scale(model, rows.cut(300, 400), (0.0, 0.5, 1.0), factors)
    assert min(found, key=found.__getitem__) == 1.0
    assert edge_gain(model, rows.cut(300, 400)) < edge_gain(first, rows.cut(300, 400)) - 0.5
    both = with_edges(tiny("bd3lm", vocab=V + 1), 4, 6)
    start_edges(both, rows.cut(0, 300), 20_000)
    set_second(model, *factors)
    assert edge_gain(both, rows) == pytest.approx(edge_gain(model, rows), abs=1e-4)


def test_a_token_after_a_known_one_is_scored_as_before():
    """The backbone has seen that neighbour."""
    plain, rows = tiny("bd3lm", vocab=V + 1), Rows.from_ids(chain_text(640), 64)
    model = with_edges(plain, 4)
    set_edges(model, torch.randn(V, 4), torch.randn(V, 4))
    ids, masked = rows[0][None], torch.zeros(1, 64, dtype=torch.bool)
    masked[:, 5::2] = True
    one, other = (losses(m, ids, Noise.of(masked)).train for m in (model, plain))
    assert_close(one, other)
    masked[:, 6::2] = True
    assert not torch.allclose(*(losses(m, ids, Noise.of(masked)).train for m in (model, plain)))


def test_what_cannot_be_counted_is_refused():
    rows = Rows.from_ids(chain_text(640), 64)
    with pytest.raises(ConfigError, match="at least 2 tokens to count, got 0"):
        count_pairs(rows, V, 0)
    with pytest.raises(DataError, match="holds id 9, but the model knows 5 tokens"):
        count_pairs(rows, 5, 640)
    with pytest.raises(ConfigError, match="rank of the edges is 13, but there are only 12 tokens"):
        decompose(count_pairs(rows, V, 640), 13)


# The command


@pytest.fixture
def folder(tmp_path):
    text = " ".join(["the cat sat on the mat and the dog ran to the cat"] * 400)
    (tmp_path / "text.txt").write_text(text)
    tokenizer = train_bpe([text], 270, show_progress=False)
    shape = {"layers": 1, "width": 32, "heads": 2, "context": 64, "block_size": 4}
    vocabulary = {"vocab_size": tokenizer.vocab_size + 1, "eot_id": tokenizer.eot_id}
    save(Model(ModelConfig(family="bd3lm", **shape, **vocabulary), tokenizer), tmp_path / "plain")
    return tmp_path


def test_the_command_saves_a_model_with_edges(folder, cli: Cli):
    words = ["edges", "count", folder / "text.txt", "--rank", 8, "--steps", 30, "--cache", folder / "cache"]
    said = cli(*words, "--model", folder / "plain", "--out", folder / "more", "--json").json
    for found in said["orders"].values():
        assert found["fitted"] < found["decomposed"] < found["unigram"]
    model = load(folder / "more")
    ranks = model.config.edge, model.config.edge_rank, model.config.edge_second_rank
    assert ranks == ("bilinear", 8, 128)
    assert said["orders"]["first"]["scale"] == pytest.approx(model.head.edge.scale[1, 0].item())
    again = cli(*words, "--model", folder / "more", "--out", folder / "third")
    refused(again, "has edges of second order already: name a model without them")


def test_the_command_adds_edges_of_second_order(folder, cli: Cli):
    words = ["edges", "count", folder / "text.txt", "--steps", 30, "--cache", folder / "cache"]
    first = [*words, "--rank", 8, "--second-rank", 0]
    told = cli(*first, "--model", folder / "plain", "--out", folder / "first", "--bits", 8).out
    assert f"model in {folder / 'first'}" in told and "different pairs in" in told
    assert "first order, rank 8" in told and "second order" not in told
    more = ["--model", folder / "first", "--second-rank", 4, "--out", folder / "both", "--json"]
    said = cli(*words, *more).json
    assert set(said["orders"]) == {"second"}
    model, before = load(folder / "both"), load(folder / "first")
    assert (model.config.edge_rank, model.config.edge_second_rank) == (8, 4)
    assert torch.equal(model.head.edge.left.weight, before.head.edge.left.weight)
    again = cli(*first, "--model", folder / "first", "--out", folder / "third")
    refused(again, "has edges already: name a model without them, or a second_rank to add")


def test_the_command_replaces_nothing(folder, cli: Cli):
    words = ["edges", "count", folder / "text.txt", "--rank", 8, "--steps", 30, "--cache", folder / "cache"]
    (folder / "more").mkdir()
    twice = cli(*words, "--model", folder / "plain", "--out", folder / "more")
    refused(twice, "more exists: choose another --out")


def test_the_command_refuses_a_family_without_blocks(folder, cli: Cli):
    said = cli("edges", "count", folder / "text.txt", "--model", "ar", "--out", folder / "more")
    refused(said, "ar has no blocks of tokens to join: name a bd3lm or dadlm model")
