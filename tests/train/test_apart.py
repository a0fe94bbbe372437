"""Where candidates begin: statistics by autograd, directions that were planted, and once in a run only."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.model.tiny import tiny_model
from tests.train.runs import CONTEXT, WORDS, config, tokenizer, with_model
from torch import Tensor

from dadlm.model import Context, load
from dadlm.model.checkpoint import weights
from dadlm.noise import NoiseConfig, draw_noise
from dadlm.objective import losses
from dadlm.objective.factorised import cut
from dadlm.tokens import Rows, training_rows
from dadlm.train import Trainer, apart
from dadlm.train.start import fresh_model, model_from

KEPT = (math.e**3 - 1) / (math.e**3 + 2)  # track bias 3, three candidates


def test_statistics_are_those_of_the_gradients_of_the_log_likelihood() -> None:
    """Position by position: an error is the gradient by the hidden state, F its mean over predictions."""
    model = tiny_model("dadlm", candidate_offset=1.0)
    assert model.head.offset is not None
    model.head.offset.data.zero_()
    L, count, seed = model.config.context, 6, 3
    rows = Rows.from_ids(torch.randint(0, 28, (9 * L,), generator=torch.Generator().manual_seed(0)), L)
    with torch.no_grad():
        together, alone = apart._errors(model, rows, count, seed)
    ids = rows.batch(training_rows(rows, 0, count, seed))
    noise = draw_noise(
        NoiseConfig(), seed=seed, step=0, rows=torch.arange(count), batch_rows=count, length=L, block_size=4
    )
    context = Context()
    model.read(ids, context, only_context=True)
    blocks, masked, first = cut(ids, noise.masked, 4)
    denoised = model.denoise(blocks, masked, first, context)
    hidden = denoised.nodes.groups(denoised.nodes.to_slots(denoised.hidden))[:, :, :, 0].detach()

    def errors(h: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients [V, D] of the log-probability of every token, and the probabilities."""
        logp = lambda x: model.head.token_logits(x).log_softmax(-1)  # noqa: E731
        return torch.autograd.functional.jacobian(logp, h).double(), logp(h).exp().detach().double()

    C, F = (torch.zeros(2 * [model.config.width], dtype=torch.float64) for _ in range(2))
    for b, g in torch.cartesian_prod(torch.arange(count), torch.arange(L // 4)).tolist():
        weight, run = float(noise.weight[b, g]), []
        for i in range(4):
            if not masked[b, g, i]:
                run = []  # an anchor ends all tracks
                continue
            gradients, p = errors(hidden[b, g, i])
            F += weight * torch.einsum("v,vd,ve->de", p, gradients, gradients)
            error = gradients[blocks[b, g, i]]
            for distance, other in enumerate(reversed(run), 1):
                pair = torch.outer(other, error)
                C += weight * KEPT**distance * (pair + pair.T) / 2
            run.append(error)
    torch.testing.assert_close(together, C / (count * L), atol=1e-5, rtol=1e-3)
    torch.testing.assert_close(alone, F / (count * L), atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("candidates", [2, 4, 5])
def test_directions_are_pairs_along_planted_directions_of_equal_cost(candidates: int) -> None:
    generator = torch.Generator().manual_seed(0)
    planted = torch.linalg.qr(torch.randn(8, 8, generator=generator, dtype=torch.float64))[0]
    together = planted @ torch.diag(torch.tensor([-9.0, -1, 0, 0.1, 0.2, 0.3, 1, 2]).double()) @ planted.T
    alone = 0.3 * torch.eye(8, dtype=torch.float64)
    offsets = apart._directions(together, alone, candidates)
    for pair in range(candidates // 2):
        a, b = offsets[2 * pair], offsets[2 * pair + 1]
        torch.testing.assert_close(a, -b)
        assert float(a @ alone @ a) == pytest.approx(1.0)
        along = float((a @ planted[:, 7 - pair]).abs() / a.norm())
        assert along == pytest.approx(1.0), "largest first; what neighbours do oppositely is of no use"
    assert candidates % 2 == 0 or not offsets[-1].any()


def test_a_model_that_is_certain_of_everything_gives_numbers() -> None:
    nothing = torch.zeros(6, 6, dtype=torch.float64)
    assert torch.isfinite(apart._directions(nothing, nothing, 4)).all()


def topics(count: int, seed: int) -> Rows:
    """Blocks of 4 words, all of them from one half of the words or from the other."""
    generator = torch.Generator().manual_seed(seed)
    half = torch.randint(2, (count * CONTEXT // 4, 1), generator=generator)
    words = torch.randint(len(WORDS) // 2, (len(half), 4), generator=generator)
    return Rows.from_ids((words + half * (len(WORDS) // 2)).flatten(), CONTEXT)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """BD3LM after some steps on blocks about one topic each."""
    out = tmp_path_factory.mktemp("topics") / "bd3lm"
    run = config("bd3lm", out, steps=150, batch_size=32, valid_every=150)
    Trainer(run, fresh_model(run.model, tokenizer(), 0), topics(200, 1), topics(32, 2), quiet=True).run()
    return out


def test_before_any_training_the_graph_gains(base: Path, tmp_path: Path) -> None:
    run = with_model(config("dadlm", tmp_path), candidates=4, candidate_offset=1.0, track_bias=3.0)
    rows, ids = topics(200, 1), topics(64, 5).batch(torch.arange(64))
    noise = draw_noise(
        NoiseConfig(), seed=1, step=0, rows=torch.arange(64), batch_rows=64, length=CONTEXT, block_size=4
    )
    found = {}
    for kind in ("none", "random", "fitted"):
        model = model_from(base, run.model, 0)
        assert model.head.offset is not None
        if kind == "none":
            model.head.offset.data.zero_()
        elif kind == "fitted":
            apart.set_apart(model, rows, count=32, seed=0)
        with torch.no_grad():
            one = losses(model.eval(), ids, noise)
        found[kind] = [float(x.mean()) for x in (one.reconstruction, one.bound - one.reconstruction)]
    assert found["fitted"][1] > 0.05 and abs(found["none"][1]) < 0.02, found
    assert found["fitted"][0] < min(found["none"][0], found["random"][0]), found


def test_only_when_the_graph_begins(base: Path, tmp_path: Path) -> None:
    run = config("dadlm", tmp_path / "first", steps=2, apart_rows=32)
    run = with_model(run, candidates=4, candidate_offset=1.0)
    run = replace(run, init_from=str(base))
    rows = topics(200, 1)

    def offset(run) -> Tensor:
        model = model_from(run.init_from, run.model, 0)
        Trainer(run, model, rows, topics(32, 2), quiet=True)
        return weights(model)["head.offset"]

    asked = offset(run)
    assert torch.allclose(asked[0], -asked[1]) and asked.any()
    random = offset(replace(run, train=replace(run.train, apart_rows=0)))
    assert not torch.allclose(random[0], -random[1])
    model = model_from(base, run.model, 0)
    Trainer(run, model, rows, topics(32, 2), quiet=True).run()
    learned = weights(load(tmp_path / "first" / "last"))["head.offset"]
    later = replace(run, init_from=str(tmp_path / "first" / "last"), out=str(tmp_path / "second"))
    assert torch.equal(offset(later), learned), "a DA-DLM keeps what it has learned"
