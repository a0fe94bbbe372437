"""Decoding with token edges: the law of one pass by enumeration, for every way to choose tokens."""

import itertools

import pytest
import torch
from tests.decode.test_distribution import agree
from tests.decode.tiny import prompt_of, tiny
from torch.testing import assert_close

from dadlm import DecodeSettings, Model, dag, generate, stream
from dadlm.decode import fill_gaps
from dadlm.decode.predict import Choice, Prediction, predict
from dadlm.decode.sample import entropy_of
from dadlm.decode.samplers import Block
from dadlm.decode.search import _highest, search
from dadlm.model import Context
from dadlm.model.edge import Left, on_the_way
from dadlm.noise import Noise

SAMPLES = 8_000


def edge_model(
    family: str = "dadlm", form: str = "bilinear", *, N: int = 3, vocab: int = 5, **shape
) -> Model:
    edges = {"edge": "bilinear", "edge_second_rank": 3} if form == "second" else {"edge": form}
    shape = {"candidates": 2, "context": 8 * N, "edge_rank": 4} | edges | shape
    model = tiny(family, block=N, vocab=vocab, seed=1, **shape)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "edge" in name:
                parameter.mul_(4.0)  # of as much weight as the rest
    return model


Law = dict[tuple[int, ...], float]


def joint(model: Model, prompt: list[int], known: dict[int, int] | None = None) -> Law:
    """The exact probability of every text of the block after a prompt of whole blocks, beside anchors."""
    N, V, known = model.config.block_size, model.config.mask_id, known or {}
    places = [[known[i]] if i in known else range(V) for i in range(N)]
    texts = torch.tensor(list(itertools.product(*places)))
    rows = torch.cat([torch.tensor(prompt).expand(len(texts), -1), texts], 1)
    masked = torch.zeros_like(rows, dtype=torch.bool)
    masked[:, len(prompt) :] = torch.tensor([i not in known for i in range(N)])
    with torch.no_grad():
        scores = model(rows, Noise.of(masked))
    if scores.transition_logp is None:
        logp = scores.emission_logp.sum((-1, -2))[:, -1]
    else:
        logp = dag.forward_logp(scores.emission_logp, scores.transition_logp)[:, -1]
    return dict(zip(map(tuple, texts.tolist()), logp.exp().tolist(), strict=True))


def without_end(law: Law, eot: int) -> Law:
    cut: Law = {}
    for text, p in law.items():
        text = text[: text.index(eot) + 1] if eot in text else text
        cut[text] = cut.get(text, 0.0) + p
    return cut


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("nucleus", ["standard", "position"])
@pytest.mark.parametrize("form", ["bilinear", "mlp", "second"])
@pytest.mark.parametrize("family", ["bd3lm", "dadlm"])
def test_one_pass_draws_from_the_exact_joint(family, form, nucleus, graphs, request):
    """top_p just below one keeps everything and takes the way of the nucleus."""
    if graphs:
        request.getfixturevalue("as_on_cuda")
    model, prompt = edge_model(family, form), prompt_of(6, vocab=5)
    top_p = 1.0 if nucleus == "standard" else 1 - 1e-9
    settings = DecodeSettings(max_new_tokens=3, sampler="random", steps=1, top_p=top_p, nucleus=nucleus)
    out = generate(model, [prompt] * SAMPLES, seed=0, batch_size=2000, settings=settings)
    law = without_end(joint(model, prompt), model.config.eot_id)
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-5)
    assert agree(law, out.tokens) > 1e-3


@pytest.mark.parametrize("form", ["bilinear", "second"])
def test_a_pass_beside_an_anchor_draws_from_the_exact_joint(form):
    model, prompt = edge_model(form=form), prompt_of(7, vocab=5)  # the first position of the block is known
    settings = DecodeSettings(max_new_tokens=2, sampler="random", steps=1, top_p=1.0)
    out = generate(model, [prompt] * SAMPLES, seed=0, batch_size=2000, settings=settings)
    law = {text[1:]: p for text, p in joint(model, prompt[:6], {0: prompt[6]}).items()}
    assert agree(without_end(law, model.config.eot_id), out.tokens) > 1e-3


def test_the_order_of_first_hitting_draws_and_forgets():
    """The first token that is kept has the marginal of its place, whatever stood to its left in that pass."""
    model, prompt = edge_model(), prompt_of(6, vocab=5)
    law, seen = joint(model, prompt), {}
    for seed in range(600):
        event = next(iter(stream(model, prompt, max_new_tokens=3, top_p=1.0, seed=seed)))
        place = event.fixed.index(True)
        seen.setdefault(place, []).append(event.ids[place])
    for place, tokens in seen.items():
        found = torch.bincount(torch.tensor(tokens), minlength=4) / len(tokens)
        truth = torch.tensor([sum(p for t, p in law.items() if t[place] == x) for x in range(4)])
        assert_close(found, truth, atol=4 * float((0.25 / len(tokens)) ** 0.5), rtol=0.0)


def prediction_of(model: Model, prompt: list[int], ids: list[int], masked: list[bool]):
    """What the model says of one block after a prompt of whole blocks."""
    text, context = torch.tensor([prompt + ids]), Context()
    model.read(torch.tensor([prompt]), context)
    number, flag = torch.tensor([0]), torch.tensor([masked])
    block = Block(
        ids=torch.tensor([ids]), masked=flag, first=torch.tensor([len(prompt)]), number=number, step=number,
        plan=torch.zeros_like(flag, dtype=torch.int64), seed=number, in_window=flag | True, wanted=flag,
        ends=flag,
    )  # fmt: skip
    return predict(model, block, text, context)


@pytest.mark.parametrize("masked", [[True] * 3, [False, True, True], [True, False, True]])
@pytest.mark.parametrize(("form", "beam"), [("bilinear", 2 * 5), ("second", (2 * 5) ** 3)])
@torch.no_grad()
def test_viterbi_over_nodes_and_tokens_is_the_best_of_all(form, beam, masked):
    model, prompt = edge_model(form=form, vocab=6), prompt_of(6, vocab=6)
    anchor = 2
    prediction = prediction_of(model, prompt, [anchor] * 3, masked)
    found = search(model, prediction, torch.tensor([[anchor] * 3]), torch.tensor([masked]), beam=beam)
    texts = torch.tensor(list(itertools.product(*[range(5) if m else [anchor] for m in masked])))
    rows = torch.cat([torch.tensor(prompt).expand(len(texts), -1), texts], 1)
    noise = Noise.of(torch.tensor([False] * 6 + masked).expand(len(texts), -1))
    scores = model(rows, noise)
    path, logp = dag.best_path(scores.emission_logp[:, -1], scores.transition_logp[:, -1])
    best = int(logp.argmax())
    assert found.tokens[0].tolist() == texts[best].tolist()
    assert found.path[0].tolist() == path[best].tolist()
    emission = scores.emission_logp[best, -1].gather(1, path[best][:, None]).squeeze(1)
    assert_close(found.probability[0], emission.exp() * torch.tensor(masked), atol=1e-5, rtol=1e-5)


def slow_search(model: Model, prediction: Prediction, ids, masked, beam: int) -> Choice:
    """`search` with the whole head for every state of the beam, and a sort of all."""
    B, N, K, _ = prediction.hidden.shape
    V, row = model.config.mask_id, torch.arange(B)[:, None]
    node, token = torch.zeros_like(prediction.before)[:, None], prediction.before[:, None]
    score, found, second = torch.zeros(B, 1), [], torch.full_like(token, V)
    for i in range(N):
        M, known = node.shape[1], ~masked[:, i, None, None, None]
        link = prediction.transition_logp[:, i].gather(1, node[..., None].expand(B, M, K))
        is_open = masked[:, i - 1, None, None] if i else known[..., 0] & False
        left = Left(*(x[..., None].expand(B, M, K) for x in (token, is_open[..., 0].expand(B, M), second)))
        hidden = prediction.hidden[:, i, None].expand(B, M, K, -1)
        logp = model.head.token_logits(hidden, torch.arange(K).expand(B, M, K), left).log_softmax(-1)
        anchor = torch.full((B, V), -torch.inf).scatter(1, ids[:, i, None], 0.0)
        logp = torch.where(known, anchor[:, None, None], logp)
        every = (score[..., None] + link)[..., None] + logp
        best, source = every.max(1)
        if model.config.edge_second_rank:  # after a known token all ways to a node go on as one
            merged = torch.full_like(every, -torch.inf)
            merged[:, 0] = best
            every = torch.where(known, merged, every)
            sources = torch.arange(M)[:, None, None].expand_as(every)
            source, best = torch.where(known, source[:, None], sources), every
        order = best.flatten(1).sort(dim=1, descending=True, stable=True)
        score, state = order.values[:, :beam], order.indices[:, :beam]
        source = source.flatten(1).gather(1, state)
        both_open = is_open[..., 0] & masked[:, i, None]
        second = torch.where(both_open, token.gather(1, source), V)
        node, token = state // V % K, state % V
        chosen = logp[row, source, node]
        found.append((source, node, token, chosen.gather(2, token[..., None])[..., 0], entropy_of(chosen)))
    state, steps = torch.zeros_like(prediction.before)[:, None], []
    for source, *step in reversed(found):
        steps.append([x.gather(1, state).squeeze(1) for x in step])
        state = source.gather(1, state)
    path, tokens, logp, entropy = (torch.stack(x, 1) for x in zip(*steps[::-1], strict=True))
    return Choice(path, tokens, logp.exp() * masked, entropy * masked)


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("beam", [1, 8])
@pytest.mark.parametrize("form", ["bilinear", "mlp", "second"])
@pytest.mark.parametrize("family", ["bd3lm", "dadlm"])
@torch.no_grad()
def test_a_search_adds_the_edges_to_what_the_head_says_of_each_node_once(
    family, form, beam, kept, monkeypatch
):
    """Same paths and tokens as with the whole head for every state; the head runs for nodes alone."""
    model = edge_model(family, form, N=6, vocab=90)
    B, N, K = 5, 6, model.config.nodes_per_mask
    hidden = 2 * torch.randn(B, N, K, model.config.width)
    links = torch.randn(B, N, K, K).log_softmax(-1)
    prediction = Prediction(hidden, torch.ones(B, N, K) > 0, links, torch.arange(B))
    ids, masked = torch.randint(89, (B, N)), torch.rand(B, N) < 0.6
    masked[:, 2] = False  # known in all rows
    slow = slow_search(model, prediction, ids, masked, beam)
    if kept:
        model.keep_constants()
    rows, token_logits = [], model.head.token_logits
    monkeypatch.setattr(
        model.head,
        "token_logits",
        lambda h, *more: (rows.append(h[..., 0].numel()), token_logits(h, *more))[1],
    )
    fast = search(model, prediction, ids, masked, beam)
    assert sum(rows) == B * N * K + B * N  # every node once, then those on the path
    for name in ("path", "tokens"):
        assert torch.equal(getattr(fast, name), getattr(slow, name))
    for name in ("probability", "entropy"):
        assert_close(getattr(fast, name), getattr(slow, name), atol=1e-4, rtol=1e-4)


def test_the_highest_are_how_a_stable_sort_begins():
    values = torch.randint(4, (50, 40)).float()
    values[values == 0] = -torch.inf
    for count in (1, 7, 25, 40, 60):
        order = values.sort(dim=1, descending=True, stable=True)
        highest, index = _highest(values, count)
        assert torch.equal(highest, order.values[:, :count]) and torch.equal(index, order.indices[:, :count])


def test_gaps_may_hold_the_mask_and_a_search_goes_by_parts_of_the_batch(monkeypatch):
    model = edge_model(N=4, vocab=30)
    text = [*prompt_of(6), 29, 29, 29, *prompt_of(3)]  # 29 is the mask
    best = fill_gaps(model, text, [(6, 3)], seed=0, path="viterbi")
    assert (
        best.tokens
        == fill_gaps(model, [*text[:6], 0, 0, 0, *text[9:]], [(6, 3)], seed=0, path="viterbi").tokens
    )
    how = {"max_new_tokens": 8, "seed": 3, "path": "viterbi", "sampler": "confidence"}
    whole = generate(model, [prompt_of(n) for n in (4, 6, 9)], **how)
    monkeypatch.setattr("dadlm.decode.search._AT_ONCE", 1)
    assert generate(model, [prompt_of(n) for n in (4, 6, 9)], **how).tokens == whole.tokens


def test_a_position_is_drawn_on_the_way_to_a_wanted_one_of_its_run():
    masked = torch.tensor([[1, 1, 1, 0, 1, 1]]).bool()
    for wanted, needed in (
        ([0, 0, 1, 0, 0, 0], [1, 1, 1, 0, 0, 0]),
        ([1, 0, 0, 0, 1, 0], [1, 0, 0, 0, 1, 0]),
        ([0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 1, 1]),
        ([0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]),
    ):
        assert on_the_way(masked, torch.tensor([wanted]).bool()).tolist() == [[bool(x) for x in needed]]


@pytest.mark.parametrize(
    "options",
    [
        {"sampler": "first-hitting"},
        {"sampler": "random", "steps": 2, "infill": (2, 0.3)},
        {"sampler": "confidence", "threshold": 0.4},
        {"sampler": "confidence", "threshold": 0.4, "path": "viterbi"},
        {"sampler": "entropy", "bound": 4.0, "infill": (1, 0.2)},
        {"sampler": "entropy", "bound": 4.0, "path": "viterbi"},
        {"sampler": "entropy", "bound": 4.0, "nucleus": "position"},
        {"sampler": "random", "steps": 2, "path": "lookahead"},
        {"sampler": "random", "steps": 2, "nucleus": "position"},
        {"temperature": 0.0},
    ],
)
@pytest.mark.parametrize("form", ["bilinear", "second"])
@pytest.mark.parametrize("family", ["bd3lm", "dadlm"])
def test_texts_do_not_depend_on_the_batch_the_cache_or_fixed_shapes(family, form, options, request):
    model = edge_model(family, form, N=4, vocab=30)
    prompts, how = [prompt_of(n) for n in (4, 6, 9, 11)], {"max_new_tokens": 10, "seed": 3, **options}
    together = generate(model, prompts, **how)
    for i, prompt in enumerate(prompts):
        alone = generate(model, prompt, **{**how, "seed": 3 + i})
        assert alone.tokens[0] == together.tokens[i]
    assert generate(model, prompts, cache=False, **how).tokens == together.tokens
    request.getfixturevalue("as_on_cuda")
    model.engines.clear()
    assert generate(model, prompts, **how).tokens == together.tokens
