"""Shortlists of models with token edges: exact where they hold everything, and what they are otherwise."""

import copy

import pytest
import torch
from tests.decode.test_chain import edge_model, joint, without_end
from tests.decode.test_distribution import agree
from tests.decode.tiny import prompt_of, tiny
from torch.testing import assert_close

from dadlm import ConfigError, DecodeSettings, generate
from dadlm.decode import batched_settings, shortlist
from dadlm.decode.batched_settings import Features
from dadlm.decode.shortlist import Shortlist, Vocabulary
from dadlm.model import successors
from dadlm.model.edge import Left, Mlp
from dadlm.model.successors import keep_successors

FORMS = ("bilinear", "mlp", "second")


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("family", ["bd3lm", "dadlm"])
@pytest.mark.parametrize("options", [{"sampler": "random", "steps": 2}, {"temperature": 0.0}, {"top_p": 1.0}])
def test_all_tokens_on_the_list_are_the_vocabulary(family, form, fixed, options, request):
    if fixed:
        request.getfixturevalue("as_on_cuda")
    model = edge_model(family, form, N=4)
    prompts, how = (
        [prompt_of(n, vocab=5) for n in (4, 6, 9, 11)],
        {"max_new_tokens": 10, "seed": 3, **options},
    )
    assert generate(model, prompts, shortlist=4, **how).tokens == generate(model, prompts, **how).tokens


@pytest.mark.parametrize("fixed", [False, True])
def test_columns_of_an_mlp_are_made_once_for_all_passes(fixed, request, monkeypatch):
    """They are a product over the whole vocabulary; a later call sees what has become of the weights."""
    if fixed:
        request.getfixturevalue("as_on_cuda")
    model, made = edge_model("bd3lm", "mlp", N=4), []
    columns = Mlp.columns
    monkeypatch.setattr(Mlp, "columns", lambda self, weight: made.append(weight) or columns(self, weight))
    prompts, how = [prompt_of(4, vocab=5)] * 8, {"max_new_tokens": 12, "seed": 3}
    before = generate(model, prompts, **how)
    assert max(before.forward_passes) > 4 and len(made) == 1
    with torch.no_grad():
        model.head.edge.outer.mul_(-3.0)
    after = generate(model, prompts, **how).tokens
    assert after == generate(copy.deepcopy(model), prompts, **how).tokens != before.tokens


@torch.no_grad()
def listed(model, M: int, n: int = 6):
    """A list of n places, what it says of them with some left tokens, and what the head says."""
    head, generator = model.head, torch.Generator().manual_seed(0)
    hidden = 3 * torch.randn(n, 1, model.config.width, generator=generator)
    node = torch.randint(model.config.nodes_per_mask, (n, 1), generator=generator)
    token, second = torch.randint(model.config.mask_id, (2, n), generator=generator)
    second[::4] = model.config.mask_id
    left = Left(token, torch.arange(n) % 2 == 0, second)
    at, size = torch.arange(n), torch.full((n,), M)
    found = Shortlist.of(head, hidden, node, size, M, at)
    scores, tokens = found.score(head, hidden[:, 0], node[:, 0], left, at)
    full = head.token_logits(hidden[:, 0], node[:, 0], left)
    return scores, tokens, full, head.token_logits(hidden[:, 0], node[:, 0]), left.token


@torch.no_grad()
@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("family", ["bd3lm", "dadlm"])
def test_the_whole_vocabulary_is_scored_as_by_the_head(family, form, at_once, monkeypatch):
    """Logits without edges are made at once, but for passes whose logits would take too much memory."""
    monkeypatch.setattr(shortlist, "MOST_LOGITS", 3 * 30 if at_once else 3 * 30 - 1)
    model = edge_model(family, form, vocab=31)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(4, 1, model.config.width, generator=generator)
    node, at = (
        torch.randint(model.config.nodes_per_mask, (4, 1), generator=generator),
        torch.tensor([0, 1, 3]),
    )
    found = Vocabulary.of(model.head, hidden, node, at)
    assert (found.logits is not None) == at_once
    left = Left(torch.tensor([3, 0, 29]), torch.tensor([True, False, True]), torch.tensor([5, 30, 2]))
    rows = model.head, hidden[at, 0], node[at, 0], left
    scores, tokens = found.score(*rows, found.place[at, 0])
    assert tokens is None
    assert_close(scores, model.head.token_logits(*rows[1:]))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("family", ["bd3lm", "dadlm"])
def test_a_list_is_the_likeliest_and_the_successors_each_once(family, form, monkeypatch):
    monkeypatch.setattr(successors, "SUCCESSORS", 7)
    model = edge_model(family, form, vocab=30)
    table = keep_successors(model).table
    scores, tokens, full, base, before = listed(model, M=5)
    for row in range(len(scores)):
        counted = tokens[row][scores[row] > -torch.inf].tolist()
        assert len(set(counted)) == len(counted)
        assert set(counted) == {*base[row].topk(5).indices.tolist(), *table[before[row]].tolist()}
        there = scores[row] > -torch.inf
        assert_close(scores[row][there], full[row][tokens[row][there]], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("form", FORMS)
@torch.no_grad()
def test_successors_are_those_of_a_masked_block_with_nothing_before_it(form, monkeypatch):
    monkeypatch.setattr(successors, "SUCCESSORS", 9)
    model = edge_model("bd3lm", form, vocab=30)
    found, N, V = keep_successors(model), model.config.block_size, model.config.mask_id
    ids = torch.zeros(1, 1, N, dtype=torch.int64)
    hidden = model.denoise(ids, ids == 0, ids[..., 0], None).hidden[0, -1].expand(V, -1)
    logits = model.head.token_logits(hidden, 0, Left(torch.arange(V), torch.ones(V, dtype=torch.bool)))
    assert torch.equal(found.table.long(), logits.topk(9).indices)


def test_successors_are_found_anew_when_weights_change():
    model = edge_model("bd3lm", N=4, vocab=30)
    first = keep_successors(model)
    assert keep_successors(model).table is first.table
    address, before = first.table.data_ptr(), first.table.clone()
    with torch.no_grad():
        model.head.edge.left.weight.data.mul_(-1.0)  # what counts versions of tensors does not see this
    again = keep_successors(model)
    assert again.table.data_ptr() == address
    assert not torch.equal(again.table, before)


def test_a_short_list_draws_from_the_law_of_its_candidates(monkeypatch):
    """One token of a block of one: the conditional, normalised over the list."""
    monkeypatch.setattr(successors, "SUCCESSORS", 9)
    model, prompt = edge_model("bd3lm", N=2, vocab=40), prompt_of(7, vocab=40)
    settings = DecodeSettings(max_new_tokens=1, top_p=1.0, shortlist=9)
    out = generate(model, [prompt] * 6000, seed=0, batch_size=2000, settings=settings)
    law = joint(model, prompt[:6], {0: prompt[6]})
    kept = {tokens[0] for tokens in out.tokens}
    assert len(kept) <= 18
    cut = {text[1:]: p for text, p in law.items() if text[1] in kept}
    total = sum(cut.values())
    law = without_end({text: p / total for text, p in cut.items()}, model.config.eot_id)
    assert agree(law, out.tokens) > 1e-3


@pytest.mark.parametrize("fixed", [False, True])
def test_rows_of_any_list_are_decoded_side_by_side(fixed, monkeypatch, request):
    monkeypatch.setattr(successors, "SUCCESSORS", 3)
    model, prompt = edge_model(N=4, vocab=30), prompt_of(6)
    from dadlm.decode.engine import Engine
    from dadlm.decode.request import Request

    ways = [
        {"shortlist": 2},
        {},
        {"shortlist": 9},
        {"path": "viterbi"},
        {"shortlist": 5, "nucleus": "position"},
    ]
    settings = [DecodeSettings(max_new_tokens=9, sampler="random", steps=2, **way) for way in ways]
    alone = [generate(model, prompt, seed=7, settings=one).tokens[0] for one in settings]
    if fixed:
        request.getfixturevalue("as_on_cuda")
    engine = Engine(model, lockstep=False)
    rows = [engine.add(Request(ids=tuple(prompt), settings=one, seed=7)) for one in settings]
    while engine.rows:
        engine.step()
    assert [row.ids[6 : 6 + len(own)] for row, own in zip(rows, alone, strict=True)] == alone


def test_few_lengths_of_lists_have_graphs_of_their_own(monkeypatch):
    """And the texts are those of lists exactly as long as asked for."""
    model = edge_model(N=4, vocab=30)

    def length(*asked: int | None) -> int:
        settings = [DecodeSettings(shortlist=one) for one in asked]
        return Features.of(settings, model.config, 4, False).shortlist

    assert [length(one) for one in (1, 5, 8, 9, 700, 1024, 1025)] == [1, 8, 8, 16, 1024, 1024, 2048]
    assert [length(one) for one in (2049, 3072, 3073)] == [3072, 3072, 4096]  # 3,072 go in one launch
    assert (length(None), length(None, 3, 9)) == (0, 16)

    monkeypatch.setattr(successors, "SUCCESSORS", 3)
    how = {"max_new_tokens": 12, "seed": 2, "sampler": "random", "steps": 2}
    prompts = [prompt_of(n) for n in (4, 6, 9)]
    rounded = [generate(model, prompts, shortlist=M, **how).tokens for M in (3, 5, 9, 17)]
    monkeypatch.setattr(batched_settings, "_rounded", lambda number: number)
    assert [generate(model, prompts, shortlist=M, **how).tokens for M in (3, 5, 9, 17)] == rounded


def test_the_first_list_leaves_captured_graphs_alone(as_on_cuda):
    """And a table at another place does not: graphs have seen the old one."""
    model, prompt = edge_model(N=4, vocab=30), prompt_of(6)
    generate(model, prompt, max_new_tokens=6)
    [engine] = model.engines
    graphs, memory = dict(engine.graphs.callables), engine.slots.memory
    assert graphs
    generate(model, prompt, max_new_tokens=6, shortlist=4)
    generate(model, prompt, max_new_tokens=6)
    assert engine.slots.memory is memory
    assert all(engine.graphs.callables[key] is graph for key, graph in graphs.items())
    model.head.successors = None
    generate(model, [prompt] * 2, max_new_tokens=6, shortlist=4)
    assert not {*graphs.values()} & {*engine.graphs.callables.values()}


@pytest.mark.parametrize(
    ("model", "shortlist", "message"),
    [
        (edge_model(vocab=30), 0, "shortlist must be a whole number of at least 1, got 0"),
        (edge_model(vocab=30), 2.5, "shortlist must be a whole number"),
        (edge_model(vocab=30), 30, "shortlist is 30, but this model has 29 tokens to draw from"),
        (tiny("dadlm"), 5, "this model has no token edges"),
    ],
)
def test_wrong_lists_are_refused(model, shortlist, message):
    with pytest.raises(ConfigError, match=message):
        generate(model, prompt_of(5), shortlist=shortlist)
