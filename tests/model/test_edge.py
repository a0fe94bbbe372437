"""Token edges: scores by the definition, gradients, and what they leave as it was."""

import pytest
import torch
from tests.model.tiny import every_kind_of_mask, gradients, random_ids, random_noise, tiny_config, tiny_model
from torch.testing import assert_close

from dadlm import dag
from dadlm.errors import ConfigError
from dadlm.model import Model
from dadlm.model.checkpoint import load, save
from dadlm.model.edge import left_of
from dadlm.noise import Noise
from dadlm.objective import losses

FORMS = ("bilinear", "mlp", "second")


def shape_of(form: str) -> dict:
    return {"edge": "bilinear", "edge_second_rank": 5} if form == "second" else {"edge": form}


def edge_model(form: str, family: str = "dadlm", **changes) -> Model:
    return tiny_model(family, **(shape_of(form) | {"edge_rank": 8} | changes))


def edge_score(
    model: Model, hidden: torch.Tensor, token: int, is_open: bool, second: int | None
) -> torch.Tensor:
    """What the vocabulary head says at one node, written out."""
    weight = {name.removeprefix("head.edge."): p for name, p in model.named_parameters() if "edge" in name}
    scale = weight["scale"][int(is_open)]
    if model.config.edge == "bilinear":
        inner = weight["left.weight"][token] * scale
        if model.config.edge_second_rank:
            table = weight["second.weight"]
            inner = torch.cat([inner, table[0] * 0 if second is None else table[second]])
        inner = inner * (1 + weight["context"] @ hidden)
        logits = model.head.linear.weight @ hidden + weight["right"] @ inner
    else:
        inner = torch.nn.functional.gelu(weight["inner.weight"] @ hidden + weight["left.weight"][token])
        logits = model.head.linear.weight @ (hidden + weight["outer"] @ (scale * inner))
    return logits[: model.config.mask_id].log_softmax(-1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("family", ["bd3lm", "dadlm"])
def test_emissions_are_the_definition_node_by_node(form, family):
    model = edge_model(form, family)
    ids, masked = random_ids(model.config), every_kind_of_mask(model.config)
    with torch.no_grad():
        scores = model(ids, Noise.of(masked))
        hidden = scores.nodes.groups(scores.nodes.to_slots(scores.hidden))
        N = model.config.block_size
        for row, position in masked.nonzero().tolist():
            block, place = divmod(position, N)
            is_open = place > 0 and bool(masked[row, position - 1])
            two_open = is_open and place > 1 and bool(masked[row, position - 2])
            second = int(ids[row, position - 2]) if two_open else None
            for k in range(hidden.shape[3]):
                state = hidden[row, block, place, k]
                logp = edge_score(model, state, int(ids[row, position - 1]), is_open, second)
                found = scores.emission_logp[row, block, place, k]
                assert_close(found, logp[ids[row, position]], atol=1e-5, rtol=1e-5)


def test_left_neighbours_by_hand():
    ids, masked = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[True, True, False, True]])
    left = left_of(ids, masked, torch.tensor([7]), mask_id=9)
    assert left.token.tolist() == [[7, 1, 2, 3]] and left.is_open.tolist() == [[False, True, True, False]]
    assert left.second is not None and left.second.tolist() == [[9, 9, 1, 9]]
    assert left_of(ids[:, :1], masked[:, :1], torch.tensor([7]), 9).second.tolist() == [[9]]
    first = left_of(ids, masked, torch.tensor([7]), 9, second=False)
    assert first.second is None and torch.equal(first.token, left.token)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("family", ["bd3lm", "dadlm"])
def test_the_joint_of_a_block_is_a_distribution(form, family):
    """Over all tokens of a masked block, and of a run beside an anchor, the path sums add up to one."""
    model = edge_model(form, family, vocab_size=5, eot_id=3, block_size=3, context=9)
    tokens = torch.cartesian_prod(*[torch.arange(4)] * 3)
    before = torch.tensor([1, 2, 0]).expand(len(tokens), 3)
    for open_ in ((True, True, True), (False, True, True), (True, False, True)):
        masked = torch.tensor([False] * 3 + list(open_)).expand(len(tokens), -1)
        anchored = torch.where(torch.tensor(open_), tokens, 2)
        rows = torch.cat([before, anchored], 1).unique(dim=0)
        with torch.no_grad():
            scores = model(rows, Noise.of(masked[: len(rows)]))
        transition = scores.transition_logp
        if transition is None:
            logp = scores.emission_logp.sum((-1, -2))[:, 1]
        else:
            logp = dag.forward_logp(scores.emission_logp, transition)[:, 1]
        assert_close(logp.exp().sum(), torch.tensor(1.0), atol=1e-5, rtol=0.0)


@pytest.mark.parametrize("form", FORMS)
def test_gradients_are_right_in_double_precision(form):
    model = edge_model(form, width=8, heads=2, layers=1, candidates=2).double()
    ids, noise = random_ids(model.config, 2), random_noise(model, 2)
    names = [name for name, _ in model.named_parameters() if "edge" in name]
    own = dict(model.named_parameters())

    def loss(*values: torch.Tensor) -> torch.Tensor:
        state = {**own, **dict(zip(names, values, strict=True))}
        scores = torch.func.functional_call(model, state, (ids, noise))
        return dag.forward_logp(scores.emission_logp, scores.transition_logp).sum()

    inputs = [own[name].detach().clone().requires_grad_() for name in names]
    assert torch.autograd.gradcheck(loss, inputs, fast_mode=True)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("family", ["bd3lm", "dadlm"])
def test_fresh_edges_change_nothing_and_learn_from_the_first_step(form, family):
    plain = tiny_model(family)
    model = Model(tiny_config(family, **shape_of(form))).eval()
    own = model.state_dict()
    model.load_state_dict({**own, **plain.state_dict()})
    ids, noise = random_ids(model.config), random_noise(model)
    one, other = losses(model, ids, noise), losses(plain, ids, noise)
    assert_close(one.train, other.train, atol=1e-5, rtol=1e-5)
    learned = {name for name, grad in gradients(model, one.train.mean()).items() if grad.abs().max() > 0}
    assert ("head.edge.outer" if form == "mlp" else "head.edge.right") in learned


@pytest.mark.parametrize("form", FORMS)
def test_the_vocabulary_head_in_pieces_is_the_same(form, monkeypatch):
    model, whole = edge_model(form), None
    ids, noise = random_ids(model.config), random_noise(model)
    for chunk in (1 << 28, 100):
        monkeypatch.setattr("dadlm.model.emission._CHUNK", chunk)
        found = gradients(model, losses(model, ids, noise).train.mean())
        whole = whole or found
        for name, grad in found.items():
            assert_close(grad, whole[name], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("bits", [32, 8])
def test_a_folder_keeps_edges(tmp_path, bits):
    model = edge_model("second", edge_rank=16) if bits == 32 else tiny_model("bd3lm", **shape_of("second"))
    save(model, tmp_path / "m", bits=bits)
    again = load(tmp_path / "m")
    assert again.config == model.config
    ids, noise = random_ids(model.config), random_noise(model)
    near = {"atol": 1e-6 if bits == 32 else 0.1, "rtol": 1e-6 if bits == 32 else 0.05}
    assert_close(losses(again, ids, noise).train, losses(model, ids, noise).train, **near)


@pytest.mark.parametrize("family", ["ar", "mdlm"])
def test_families_without_blocks_refuse_edges(family):
    with pytest.raises(ConfigError, match="edge bilinear: token edges join the tokens of a block"):
        tiny_config(family, edge="bilinear")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edge": "bigram"}, "unknown edge 'bigram'; choose one of none, bilinear, mlp"),
        ({"edge_rank": 0}, "edge_rank must be at least 1"),
        ({"edge_rank": 10**9}, "edge_rank must be at most 8192"),
        ({"edge": "bilinear", "edge_second_rank": -1}, "edge_second_rank must be at least 0"),
        ({"edge_second_rank": 4}, "only bilinear edges look two places to the left, and edge is none"),
        ({"edge": "mlp", "edge_second_rank": 4}, "only bilinear edges look two places to the left"),
    ],
)
def test_wrong_edges_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        tiny_config(**changes)
