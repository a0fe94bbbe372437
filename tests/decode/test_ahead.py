"""Drafts of the lossless mode that are made in the verifying pass: the same blocks as in passes of their own,
the graph's exact conditional given the token that was not known yet, and texts of the target."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from tests.decode.test_lossless import small
from tests.decode.test_mode import KINDS, PROMPTS, causal
from tests.decode.tiny import prompt_of, silence_eot, tiny

from dadlm import DecodeSettings, dag, generate
from dadlm.decode.draft import Draft, Filter
from dadlm.decode.drafter import Drafter
from dadlm.decode.lossless import LosslessEngine
from dadlm.decode.predict import predict_blocks, prediction_of
from dadlm.decode.request import Request, Row
from dadlm.errors import ConfigError
from dadlm.model import Context, Model, in_mode
from dadlm.model.ahead import block_after, read_ahead
from dadlm.nodes import Nodes
from dadlm.nodes.moves import TILE

GATED = {"family": "dadlm", "architecture": "llama", "kv_heads": 1, "lora": 2, "lora_gated": True}


def model_of(kind: str, **changes) -> Model:
    return tiny(**GATED, causal_context=True, **changes) if kind == "adapters" else causal(kind, **changes)


every_kind = pytest.mark.parametrize("kind", [*KINDS, "adapters"])


@torch.inference_mode()
@every_kind
def test_blocks_and_tree_are_those_of_passes_of_their_own(kind: str):
    """Every node as `read_tree` has it, and the block behind it as `denoise` has it after the path alone."""
    model, prompt, words = model_of(kind), prompt_of(9), [4, 8, 8, 15, 16, 23]
    parent, depth = [0, 0, 1, 1, 3, 0], [0, 1, 2, 2, 3, 1]
    tree = Draft(*(torch.tensor([x]) for x in (words, parent, depth)), torch.ones(1, 6).bool())
    context = Context()
    model.read(torch.tensor([prompt]), context)
    place = {"position": 9 + tree.depth, "visible": torch.full((1, 6), 9), "sees": tree.sees()}
    truth, kept = model.backbone.read_tree(tree.tokens, context, **place)
    hidden, keys, blocks = read_ahead(model, tree.tokens, context, **place)
    close = {"rtol": 1e-4, "atol": 5e-5}
    torch.testing.assert_close(hidden, truth, **close)
    torch.testing.assert_close(keys, kept, **close)
    masked = torch.ones(1, model.config.block_size, dtype=torch.bool)
    for node in range(6):
        path = [node]
        while path[0]:
            path.insert(0, parent[path[0]])
        text, alone = torch.tensor([prompt + [words[at] for at in path]]), Context()
        model.read(text, alone)
        first = torch.tensor([[text.shape[1]]])
        expected = predict_blocks(model, masked.long(), masked, first, alone)
        found = prediction_of(model, block_after(model, blocks, torch.tensor([node])))
        torch.testing.assert_close(found.hidden, expected.hidden, **close)
        torch.testing.assert_close(found.transition_logp.exp(), expected.transition_logp.exp(), **close)
        assert found.before is None or found.before.equal(expected.before)  # type: ignore[arg-type]


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["bd3lm", "dadlm", "edges", "second"])
def test_a_filter_takes_in_the_first_token(kind: str):
    """Given each first token, the others have the probabilities that the block's joint gives them."""
    model, prompt = causal(kind, **small), [1, 3]
    context = Context()
    model.read(torch.tensor([prompt]), context)
    masked = torch.ones(1, 4, dtype=torch.bool)
    prediction = predict_blocks(model, masked.long(), masked, torch.tensor([[2]]), context)
    whole = Filter(model, prediction, masked, 4, torch.ones(1))
    block = torch.tensor(list(product(range(5), repeat=4)))
    denoised = model.denoise(
        block[:, None],
        masked.expand(len(block), 1, 4),
        torch.full((len(block), 1), 2),
        _repeated(context, len(block)),
    )
    emission = model.emission_logp(denoised, block[:, None])
    joint = dag.forward_logp(emission, model.transition_logp(denoised))[:, 0].view(5, 5, 5, 5)
    for first in range(5):
        ahead = whole.after(torch.tensor([[3]]), torch.tensor([[first]]))
        expected = (joint[first] - joint[first].logsumexp((0, 1, 2))).flatten()
        found = []
        for tokens in product(range(5), repeat=3):
            reached, total = ahead.start[:, None], 0.0
            second, last = torch.tensor([[3]]), torch.tensor([[first]])
            for depth, token in enumerate(tokens):
                logp, both = ahead(depth, reached, last, second)
                total += float(logp[0, 0, token])
                reached, second, last = both[..., token].log_softmax(-1), last, torch.tensor([[token]])
            found.append(total)
        torch.testing.assert_close(torch.tensor(found), expected, rtol=1e-4, atol=1e-5)


def _repeated(context: Context, rows: int) -> Context:
    many = Context()
    for layer in range(2):
        k, v = context[layer]
        many.store(layer, k.expand(rows, -1, -1, -1), v.expand(rows, -1, -1, -1), torch.zeros(0))
    if context._ids is not None:
        many.remember(context._ids.expand(rows, -1), torch.zeros(0))
    return many


WAYS = [
    {},
    {"temperature": 0.0},
    {"path": "viterbi"},
    {"temperature": 0.7, "top_p": 0.6},
    {"top_k": 3, "top_p": 1.0},
]


@pytest.mark.parametrize(
    ("kind", "how"), [(kind, {}) for kind in (*KINDS, "adapters")] + [("edges", how) for how in WAYS[1:]]
)
def test_texts_are_those_of_mode_ar(kind: str, how: dict):
    """Trees of any size, side by side and alone, prompts of any length, to the end of the context."""
    model, how = model_of(kind), {"seed": 5, **how}
    prompts = [*PROMPTS, prompt_of(62), prompt_of(63)]
    truth = generate(model, prompts, mode="ar", **how)
    how |= {"mode": "lossless", "one_pass": True}
    for tree in (1, 6) + ((0,) if how.get("temperature") == 0 or "path" in how else ()):
        found = generate(model, prompts, tree=tree, **how)
        assert found.tokens == truth.tokens
        assert generate(model, prompts, tree=tree, batch_size=3, **how) == found  # passes and cycles too
    alone = generate(model, [prompts[3]], tree=6, **how | {"seed": 8})
    assert alone.tokens == [truth.tokens[3]]


@pytest.mark.parametrize("kind", ["bd3lm", "late, gated", "second", "adapters"])
@pytest.mark.parametrize("draft", [{"tree": 0}, {"tree": 7}, {"tree": 7, "drawn": True}])
def test_cycles_are_those_of_drafts_in_passes_of_their_own(
    monkeypatch: pytest.MonkeyPatch, kind: str, draft: dict
):
    """The slow twin makes the same blocks again, in a pass before each verifying one."""
    model = silence_eot(model_of(kind))
    how = {"mode": "lossless", "one_pass": True, "seed": 3, "max_new_tokens": 21, **draft}
    prompts = [prompt_of(n, seed=n) for n in (2, 7, 12)]
    found = generate(model, prompts, **how)
    proposed = Drafter.propose

    def forgetful(self: Drafter, *rest):
        self.ahead.clear()
        return proposed(self, *rest)

    monkeypatch.setattr(Drafter, "propose", forgetful)
    twin = generate(model, prompts, **how)
    assert found.tokens == twin.tokens and found.cycles == twin.cycles
    assert max(found.cycles) < 21  # some drafts were accepted
    # The first draft has no pass before it; the last cycle may have no room for a draft.
    assert found.forward_passes == [cycles + 1 for cycles in found.cycles]
    for cycles, passes in zip(twin.cycles, twin.forward_passes, strict=True):
        assert 2 * cycles - 1 <= passes <= 2 * cycles


@pytest.mark.parametrize("kind", ["bd3lm", "second", "adapters"])
def test_padded_nodes_change_nothing(monkeypatch: pytest.MonkeyPatch, kind: str):
    """With one candidate several blocks fill whole tiles on CUDA."""
    model = tiny(**GATED | {"family": "bd3lm"}, causal_context=True) if kind == "adapters" else causal(kind)
    how = {"mode": "lossless", "one_pass": True, "seed": 1, "tree": 6, "drawn": True}
    truth = generate(model, PROMPTS, **how)

    def padded(masked, first, start):
        B, G, N = masked.shape
        count = G * (int(start) + N)
        if G == 1:
            return Nodes(masked, first, 1, start, None, None)
        slot = torch.arange(count).expand(B, -1)
        return Nodes(masked, first, 1, start, slot, F.pad(slot, (0, -count % TILE), value=-1))

    monkeypatch.setattr("dadlm.nodes.layout._one_node_each", padded)
    assert generate(model, PROMPTS, **how) == truth


def test_drafts_of_a_model_that_is_sure_take_one_pass():
    model = causal("bd3lm")
    bias = torch.zeros(model.config.vocab_size)
    bias[7] = 1e4
    model.head.linear.bias = torch.nn.Parameter(bias)
    for how in ({"tree": 0}, {"tree": 3}, {"tree": 5, "drawn": True}):
        found = generate(model, [prompt_of(5)], mode="lossless", one_pass=True, max_new_tokens=20, **how)
        assert found.tokens == [[7] * 20] and found.cycles == [5] and found.forward_passes == [6]


@pytest.mark.parametrize("drawn", [False, True])
def test_rows_come_and_go(drawn: bool):
    """A row that leaves and comes back has the text that it has alone, drawn tokens included."""
    model = silence_eot(causal("edges"))
    target, how = in_mode(model, "ar"), {"tree": 5, "drawn": drawn, "one_pass": True, "max_new_tokens": 20}
    engine = LosslessEngine(target, model, lockstep=False)
    settings = DecodeSettings(mode="lossless", **how)
    rows = [Row(target, Request(ids=tuple(prompt_of(n)), settings=settings, seed=n)) for n in (3, 17, 9)]
    for row in rows:
        engine.add(row)
        engine.step()
    engine.remove(rows[0])
    engine.step()
    engine.add(rows[0])
    while engine.rows:
        engine.step()
    for row, n in zip(rows, (3, 17, 9), strict=True):
        [alone] = generate(model, [prompt_of(n)], mode="lossless", seed=n, **how).tokens
        assert row.tokens == alone


def test_refusals():
    how = {"mode": "lossless", "tree": 4, "one_pass": True}
    with pytest.raises(ConfigError, match="one_pass needs a model that drafts for itself"):
        generate(tiny("ar"), [[1]], draft=tiny("bd3lm"), **how)
    with pytest.raises(ConfigError, match="one_pass needs a model that drafts for itself"):
        generate(tiny("ar"), [[1]], draft="lookup", **how)
    with pytest.raises(ConfigError, match="one_pass belongs to mode lossless"):
        DecodeSettings(one_pass=True)
    with pytest.raises(ConfigError, match="one_pass describes the tree"):
        DecodeSettings(mode="lossless", one_pass=True)
    with pytest.raises(ConfigError, match="one_pass must be"):
        DecodeSettings(mode="lossless", tree=4, one_pass=1)  # type: ignore[arg-type]
