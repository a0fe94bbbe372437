"""The lossless mode: texts are the target's. Token by token where trees are followed, by distribution where
drafts are drawn (`test_drawn` has more of these); drafts by enumeration."""

import gc
from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
import torch
from tests.decode.test_mode import KINDS, PROMPTS, SETTINGS, ar_of, causal
from tests.decode.tiny import force_eot, prompt_of, silence_eot, tiny

from dadlm import DecodeSettings, Model, dag, generate, stream
from dadlm.decode.draft import Draft, Filter, draft_tree, look_up
from dadlm.decode.lossless import LosslessEngine
from dadlm.decode.pace import ALONE, ONE_PASS, TREES, Pace, Way
from dadlm.decode.predict import predict_blocks
from dadlm.decode.request import Request, Row
from dadlm.errors import ConfigError
from dadlm.model import Context, in_mode

SETTINGS = SETTINGS | {"top-k": {"top_k": 3, "top_p": 1.0}}
WAYS = [(kind, "drawn") for kind in KINDS] + [("edges", way) for way in SETTINGS if way != "drawn"]


@pytest.mark.parametrize(("kind", "settings"), WAYS)
def test_texts_are_those_of_mode_ar(kind: str, settings: str):
    """Trees of any size, and drawn chains where nothing is drawn; side by side and alone."""
    model, how = causal(kind), {"max_new_tokens": 14, "seed": 5, **SETTINGS[settings]}
    truth = generate(model, PROMPTS, mode="ar", **how)
    trees = (1, 5, 16, None) + ((0,) if settings in ("greedy", "cold") else ())
    for tree in trees:
        found = generate(model, PROMPTS, mode="lossless", tree=tree, **how)
        assert found.tokens == truth.tokens
    assert sum(found.cycles) <= sum(map(len, truth.tokens))
    for i, prompt in enumerate(PROMPTS):
        alone = generate(model, [prompt], mode="lossless", tree=6, **how | {"seed": 5 + i})
        assert alone.tokens == [truth.tokens[i]]


@pytest.mark.parametrize("kind", ["bd3lm", "edges"])
def test_another_model_may_draft(kind: str):
    """It reads its own keys and values block by block; prompts end anywhere, and rows end at any time."""
    draft, target = tiny(**KINDS[kind], seed=1), tiny("ar")
    how = {"max_new_tokens": 23, "seed": 5}
    truth = generate(target, PROMPTS, **how)
    for tree in (1, 7):
        found = generate(target, PROMPTS, mode="lossless", draft=draft, tree=tree, **how)
        assert found.tokens == truth.tokens and sum(found.cache_passes) > 0
        assert draft.head.kept is None and draft.head.keepers == 0  # its constants are kept for a text only
        assert (
            generate(target, PROMPTS, mode="lossless", draft=draft, tree=tree, batch_size=2, **how).tokens
            == found.tokens
        )
    assert generate(target, PROMPTS, mode="lossless", tree=3, **how).tokens == truth.tokens  # looked up


def test_rows_come_and_go():
    model = silence_eot(causal("edges"))
    target = in_mode(model, "ar")
    engine = LosslessEngine(target, model, lockstep=False)
    settings = DecodeSettings(mode="lossless", tree=5, max_new_tokens=20)
    rows = [
        Row(target, Request(ids=tuple(prompt_of(n, seed=n)), settings=settings, seed=n)) for n in (3, 17, 9)
    ]
    engine.add(rows[0])
    engine.step()
    engine.add(rows[1])
    engine.step()
    engine.remove(rows[0])
    engine.add(rows[2])
    engine.step()
    engine.add(rows[0])
    while engine.rows:
        engine.step()
    for row, n in zip(rows, (3, 17, 9), strict=True):
        [truth] = generate(model, [prompt_of(n, seed=n)], mode="ar", max_new_tokens=20, seed=n).tokens
        assert row.tokens == truth


def test_a_text_ends_with_its_end_of_text():
    [found] = generate(force_eot(causal("bd3lm")), [prompt_of(5)], mode="lossless", tree=8).tokens
    assert len(found) == 1


def test_drafts_of_a_model_that_is_sure_are_accepted_whole():
    """A language of one word: N - 1 drafted tokens and one more in every cycle."""
    model = causal("bd3lm")
    bias = torch.zeros(model.config.vocab_size)
    bias[7] = 1e4
    model.head.linear.bias = torch.nn.Parameter(bias)
    for tree, drawn in ((0, False), (3, False), (5, True)):
        found = generate(model, [prompt_of(5)], mode="lossless", tree=tree, drawn=drawn, max_new_tokens=20)
        assert found.tokens == [[7] * 20] and found.cycles == [5] and found.forward_passes == [10]
        assert found.tokens_per_cycle == [4.0]


# --- by enumeration


def ahead_of(model: Model, prompt: list[int], length: int, temperature: float = 1.0) -> Filter:
    """What the model says after a prompt whose last token begins the block."""
    context, ids = Context(), torch.tensor([prompt])
    model.read(ids, context)
    N, first = model.config.block_size, torch.tensor([[len(prompt) - 1]])
    block = torch.zeros(1, N, dtype=torch.int64)
    block[0, 0] = prompt[-1]
    masked = torch.arange(N)[None] > 0
    prediction = predict_blocks(model, block, masked, first, context)
    return Filter(model, prediction, masked, length, torch.tensor([temperature]))


def joint_of(model: Model, prompt: list[int], tokens: tuple[int, ...]) -> float:
    """log-probability of the block's tokens, summed over all paths."""
    context, ids = Context(), torch.tensor([prompt])
    model.read(ids, context)
    block, masked = torch.tensor([[[prompt[-1], *tokens]]]), torch.ones(1, 1, len(tokens) + 1).bool()
    masked[..., 0] = False
    denoised = model.denoise(block, masked, torch.tensor([[len(prompt) - 1]]), context)
    return float(dag.forward_logp(model.emission_logp(denoised, block), model.transition_logp(denoised)))


small = {"vocab": 6, "block": 4, "candidates": 3, "context": 16}


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["bd3lm", "dadlm", "edges", "second"])
def test_a_filter_gives_the_joint_of_the_graph(kind: str):
    model = causal(kind, **small)
    prompt = [1, 3, 0]
    ahead = ahead_of(model, prompt, 3)
    for tokens in product(range(5), repeat=3):
        reached, total = ahead.start[:, None], 0.0
        second, last = torch.tensor([prompt[-2:]]).split(1, dim=1)
        for depth, token in enumerate(tokens):
            logp, joint = ahead(depth, reached, last, second)
            total += float(logp[0, 0, token])
            reached, second, last = joint[..., token].log_softmax(-1), last, torch.tensor([[token]])
        assert total == pytest.approx(joint_of(model, prompt, tokens), abs=1e-5)


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["bd3lm", "dadlm", "edges", "second"])
def test_a_tree_has_the_likeliest_beginnings(kind: str):
    model, prompt = causal(kind, **small), [1, 3, 0]
    whole = {tokens: joint_of(model, prompt, tokens) for tokens in product(range(5), repeat=3)}
    share = Counter[tuple[int, ...]]()
    for tokens, logp in whole.items():
        for n in (1, 2, 3):
            share[tokens[:n]] += torch.tensor(logp).exp().item()
    for nodes in (1, 4, 12, 40):
        tree = draft_tree(ahead_of(model, prompt, 3), torch.tensor([0]), nodes, torch.tensor([9]))
        found = set()
        for node in range(1, tree.tokens.shape[1]):
            words, at = [], node
            while at:
                assert int(tree.parent[0, at]) < at
                words.append(int(tree.tokens[0, at]))
                at = int(tree.parent[0, at])
            assert len(words) == int(tree.depth[0, node]) and bool(tree.exists[0, node])
            found.add(tuple(reversed(words)))
        assert found == {words for words, _ in share.most_common(nodes)}
    short = draft_tree(ahead_of(model, prompt, 3), torch.tensor([0]), 40, torch.tensor([1]))
    assert int(short.depth.max()) == 1


@pytest.mark.parametrize("at_once", [1 << 26, 40])
def test_trees_keep_to_the_room_of_their_rows(monkeypatch: pytest.MonkeyPatch, at_once: int):
    """Small vocabularies, large trees, rows at the end of the context beside others; in pieces too."""
    monkeypatch.setattr("dadlm.decode.draft.AT_ONCE", at_once)
    drafted, seen = draft_tree, []

    def checked(ahead, last, nodes, room):
        tree = drafted(ahead, last, nodes, room)
        depth, parent = tree.depth, tree.depth.gather(1, tree.parent)
        real = tree.exists & (torch.arange(depth.shape[1]) > 0)
        assert bool((depth <= room[:, None])[real].all()) and bool((depth == parent + 1)[real].all())
        seen.append(int(real.sum()))
        return tree

    monkeypatch.setattr("dadlm.decode.drafter.draft_tree", checked)
    for vocab, context in ((6, 63), (12, 64)):
        target = silence_eot(tiny("ar", vocab=vocab, context=context))
        draft = tiny("dadlm", vocab=vocab, block=8, context=64, seed=1)
        prompts = [prompt_of(n, vocab=vocab) for n in (context - 1, context - 2, context - 9, 30, 1)]
        truth = generate(target, prompts, mode="ar", seed=2, top_p=1.0)
        for nodes in (4, 100):
            how = {"tree": nodes, "seed": 2, "top_p": 1.0, "draft": draft}
            assert generate(target, prompts, mode="lossless", **how).tokens == truth.tokens
    assert max(seen) > 200


def test_what_was_verified_is_not_lost_when_another_tree_fails(monkeypatch: pytest.MonkeyPatch):
    """Rows with different trees have cycles of their own in a step; a step is all of them or none."""
    model = silence_eot(causal("edges"))
    target, fails = in_mode(model, "ar"), iter([True])
    engine = LosslessEngine(target, model, lockstep=False)
    rows = [
        Row(target, Request(ids=(1, 2), settings=DecodeSettings(mode="lossless", tree=tree), seed=1))
        for tree in (4, 5)
    ]
    for row in rows:
        engine.add(row)
    drafted = draft_tree

    def sometimes(ahead, last, nodes, room):
        if nodes == 5 and next(fails, False):
            raise RuntimeError("no memory")
        return drafted(ahead, last, nodes, room)

    monkeypatch.setattr("dadlm.decode.drafter.draft_tree", sometimes)
    with pytest.raises(RuntimeError, match="no memory"):
        engine.step()
    assert [row.first for row in rows] == [2, 2]
    new = {row: list[int]() for row in rows}
    while engine.rows:
        for one in engine.step().committed:
            new[one.row] += [one.row.ids[p] for p in one.positions]
    [truth] = generate(model, [[1, 2]], mode="ar", seed=1).tokens
    assert all(tokens == truth for tokens in new.values())


def test_a_draft_model_that_is_gone_is_not_asked():
    target, draft = tiny("ar"), tiny("bd3lm")
    how = {"mode": "lossless", "tree": 3, "max_new_tokens": 6, "seed": 1}
    truth = generate(target, [[1, 2]], draft=draft, **how)
    del draft
    gc.collect()
    assert generate(target, [[1, 2]], **how).tokens == truth.tokens


@torch.inference_mode()
def test_a_tree_is_read_as_its_paths():
    """Hidden states, keys and values of every node are those of reading its path alone."""
    model = tiny("ar")
    prompt, words = prompt_of(9), [4, 8, 8, 15, 16, 23]
    parent = [0, 0, 1, 1, 3, 0]
    depth = [0, 1, 2, 2, 3, 1]
    tree = Draft(*(torch.tensor([x]) for x in (words, parent, depth)), torch.ones(1, 6).bool())
    context = Context()
    model.read(torch.tensor([prompt]), context)
    hidden, kept = model.backbone.read_tree(
        tree.tokens, context, position=9 + tree.depth, visible=torch.full((1, 6), 9), sees=tree.sees()
    )
    for node in range(6):
        path = [node]
        while path[0]:
            path.insert(0, parent[path[0]])
        alone = Context()
        truth = model.read(torch.tensor([prompt + [words[at] for at in path]]), alone)
        torch.testing.assert_close(hidden[0, node], truth[0, -1], rtol=1e-4, atol=1e-5)
        for layer, both in enumerate(kept):
            for mine, theirs in zip(both, alone[layer], strict=True):
                torch.testing.assert_close(mine[0, node], theirs[0, -1], rtol=1e-4, atol=1e-5)


# --- by counting


@pytest.mark.parametrize("settings", [{"top_p": 1.0}, {"top_p": 0.7, "temperature": 1.3}])
@pytest.mark.parametrize(
    "draft",
    [
        *({"tree": 0}, {"tree": 3}, *({"tree": n, "drawn": True} for n in (1, 3, 9))),
        *({"tree": 0, "one_pass": True}, {"tree": 3, "drawn": True, "one_pass": True}),
    ],
)
def test_texts_of_the_engine_have_the_distribution_of_mode_ar(settings: dict, draft: dict):
    """Three tokens after a prompt, 6,000 seeds, against the product of the target's conditionals."""
    model, prompt, texts = silence_eot(causal("edges", **small)), [1, 3], 6000
    how = {"max_new_tokens": 3, "mode": "lossless", "batch_size": texts, **draft, **settings}
    made = generate(model, [prompt] * texts, seed=0, **how)
    seen = Counter(map(tuple, made.tokens))
    target, expected = ar_of(model), {}
    target.head.linear.bias = model.head.linear.bias
    with torch.inference_mode():
        for words in product(range(4), repeat=3):
            hidden = target.read(torch.tensor([prompt + list(words)]))[0, 1:4]
            logits = target.head.token_logits(hidden) / settings.get("temperature", 1.0)
            chance = logits.softmax(-1)
            order = chance.sort(descending=True)
            cut = order.values.cumsum(-1) - order.values >= settings["top_p"]
            chance = chance.masked_fill(torch.zeros_like(cut).scatter(1, order.indices, cut), 0.0)
            chance = chance / chance.sum(-1, keepdim=True)
            expected[words] = texts * float(chance.gather(1, torch.tensor(words)[:, None]).prod())
    assert sum(expected.values()) == pytest.approx(texts, rel=1e-3)
    large = {words for words, count in expected.items() if count >= 5}
    assert all(expected[words] > 0 for words in seen)
    chi2 = sum((seen[words] - expected[words]) ** 2 / expected[words] for words in large)
    assert chi2 < len(large) + 4.5 * (2 * len(large)) ** 0.5


# --- the rest


def test_looking_up():
    assert look_up([1, 2, 3, 9, 1, 2, 3], 2) == [9, 1]
    assert look_up([5, 3, 7, 5, 3, 8, 5, 3], 3) == [8, 5, 3]  # the last occurrence
    assert look_up([1, 2, 3], 4) == [] == look_up([1], 4)
    assert look_up([4, 7, 7, 7], 3) == [7, 7, 7]  # it goes round
    assert look_up([1, 2, 1, 2], 5) == [1, 2, 1, 2, 1]


def run_pace(
    cost: dict[Way, float], gain: dict[Way, float], cycles: int, rows: int = 1
) -> tuple[float, float, Pace]:
    pace, seconds, tokens = Pace(one_pass=any(way.one_pass for way in cost)), 0.0, 0.0
    before = ALONE
    for _ in range(cycles):
        way = pace.way(rows)
        cold = way.one_pass and not before.one_pass  # its draft took a pass of its own
        took, before = cost[way] * (2 if cold else 1), way
        pace.record(rows, way, took, int(gain[way] * 100), cold)
        seconds, tokens = seconds + took, tokens + gain[way]
    return seconds, tokens, pace


@pytest.mark.parametrize("ways", [TREES, TREES + ONE_PASS])
def test_drafts_are_left_out_where_they_do_not_pay(ways: tuple[Way, ...]):
    cost = {ALONE: 1.0} | {way: 3.0 + (way.nodes or 0) / 8 for way in ways}
    seconds, tokens, pace = run_pace(cost, {way: 1.0 if way == ALONE else 2.0 for way in cost}, 3000)
    assert pace.best(1) == ALONE and tokens / seconds > 0.95


def test_the_fastest_size_is_found():
    cost = dict(zip((ALONE, *TREES), (1.0, 1.5, 1.6, 1.7, 2.6, 5.0), strict=True))
    gain = dict(zip((ALONE, *TREES), (1.0, 2.0, 2.3, 3.0, 3.2, 3.3), strict=True))
    seconds, tokens, pace = run_pace(cost, gain, 3000)
    assert pace.best(1) == Way(16) and tokens / seconds > 1.6
    cost |= dict(zip(ONE_PASS, (1.1, 1.15, 1.3), strict=True))
    seconds, tokens, pace = run_pace(cost, gain | dict(zip(ONE_PASS, (1.9, 2.2, 2.3), strict=True)), 3000)
    assert pace.best(1) == Way(8, one_pass=True) and tokens / seconds > 1.75
    _, _, pace = run_pace(cost, gain | dict.fromkeys(ONE_PASS, 9.0), 300, rows=8)
    assert pace.best(8) == Way(16)  # for several rows the others are not tried


def test_refusals():
    target = tiny("ar")
    with pytest.raises(ConfigError, match="causal-context"):
        generate(tiny("bd3lm"), ["x"], mode="lossless")
    with pytest.raises(ConfigError, match="another tokenizer"):
        generate(target, [[1]], mode="lossless", draft=tiny("bd3lm", vocab=20))
    with pytest.raises(ConfigError, match="cannot draft"):
        generate(target, [[1]], mode="lossless", draft=tiny("mdlm"))
    with pytest.raises(ConfigError, match="mode ar writes the same text"):
        stream(target, [1], mode="lossless")
    with pytest.raises(ConfigError, match="needs its cache"):
        generate(target, [[1]], mode="lossless", cache=False)
    with pytest.raises(ConfigError, match="draft belongs to mode lossless"):
        generate(target, [[1]], draft=tiny("bd3lm"))
    with pytest.raises(ConfigError, match="tree belongs to mode lossless"):
        DecodeSettings(tree=4)
    with pytest.raises(ConfigError, match="drawn belongs to mode lossless"):
        DecodeSettings(drawn=True)
    with pytest.raises(ConfigError, match="give its size"):
        DecodeSettings(mode="lossless", drawn=True)
    with pytest.raises(ConfigError, match="drawn must be"):
        DecodeSettings(mode="lossless", tree=4, drawn=1)  # type: ignore[arg-type]
    for tree in (-1, 129, 1.5, True):
        with pytest.raises(ConfigError, match="tree must be"):
            DecodeSettings(mode="lossless", tree=tree)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="steps"):
        generate(target, [[1]], mode="lossless", sampler="random", steps=2)
    assert replace(DecodeSettings(mode="lossless"), tree=3).tree == 3


def test_a_draft_model_reads_texts_longer_than_its_own_context() -> None:
    target, draft = tiny("ar", context=2048), tiny("bd3lm", context=32)
    prompt = [prompt_of(9, 1) * 130]
    out = generate(target, prompt, max_new_tokens=8, seed=0, mode="lossless", draft=draft, tree=4)
    assert out.tokens == generate(target, prompt, max_new_tokens=8, seed=0).tokens
    with pytest.raises(ConfigError, match="longer context"):
        generate(tiny("ar", context=5_000), prompt, mode="lossless", draft=draft)
