"""Muon beside torch's own, through a stop, a spoilt step and a hand-over."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from tests.train.runs import assert_same_bits, config, shape, state_tensors, tokenizer, train, trainer

from dadlm.errors import ConfigError
from dadlm.train import TrainConfig
from dadlm.train.muon import Muon, orthogonal
from dadlm.train.state import start_optimizer
from dadlm.train.trainer import fresh_model


@pytest.mark.parametrize("size", [(48, 12), (12, 48)])
def test_singular_values_come_near_one_and_singular_vectors_stay(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, *size)
    made = orthogonal(x)
    left, _, right = torch.linalg.svd(x, full_matrices=False)
    values = torch.linalg.svdvals(made)
    assert float(values.min()) > 0.6 and float(values.max()) < 1.3
    inner = left.mT @ made @ right.mT
    torch.testing.assert_close(inner, torch.diag_embed(inner.diagonal(dim1=1, dim2=2)), atol=1e-4, rtol=0)


def test_steps_are_those_of_torchs_muon() -> None:
    """Its iteration is in bfloat16 everywhere, ours on CUDA only: hence the tolerance."""
    torch.manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(16, 8)) for _ in range(2)]
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    settings = {"lr": 0.02, "weight_decay": 0.1}
    one = Muon([{"params": ours, "matrices": True}], **settings)
    other = torch.optim.Muon(theirs, momentum=0.95, adjust_lr_fn="match_rms_adamw", **settings)
    before = [p.detach().clone() for p in ours]
    for _ in range(4):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        one.step()
        other.step()
    for old, a, b in zip(before, ours, theirs, strict=True):
        moved, their_move = a.detach() - old, b.detach() - old
        assert (moved - their_move).norm() < 0.03 * their_move.norm()


def test_stacked_matrices_are_moved_one_by_one() -> None:
    torch.manual_seed(0)
    whole = torch.nn.Parameter(torch.randn(24, 8))
    rows = [12, 8, 4]
    parts = [torch.nn.Parameter(p.clone()) for p in whole.detach().split(rows)]
    whole.grad = torch.randn(24, 8)
    for part, gradient in zip(parts, whole.grad.split(rows), strict=True):
        part.grad = gradient.clone()
    settings = {"lr": 0.1, "weight_decay": 0.0}
    Muon([{"params": [whole], "matrices": True}], {whole: rows}, **settings).step()
    Muon([{"params": parts, "matrices": True}], **settings).step()
    torch.testing.assert_close(whole.detach(), torch.cat([p.detach() for p in parts]))


def test_layers_say_which_weights_are_stacked() -> None:
    """Shapes do not: with keys and values of fewer heads a projection is no longer three times as high as
    wide, and an MLP may happen to be."""
    plain = fresh_model(shape("dadlm"), tokenizer(), 0)
    changes = {"architecture": "llama", "heads": 4, "kv_heads": 2, "head_width": 6, "mlp_width": 24}
    llama = fresh_model(shape("dadlm", **changes), tokenizer(), 0)
    published = {"architecture": "bd3lm", "tie_embedding": False, "lora": 2}
    adapted = fresh_model(shape("bd3lm", **published), tokenizer(), 0)
    expected = [(plain, [16, 16, 16], [64]), (llama, [24, 12, 12], [24, 24]), (adapted, [], [])]
    for model, qkv, up in expected:
        optimizer = start_optimizer(model, TrainConfig(optimizer="muon"))
        assert isinstance(optimizer, Muon)
        for layer in model.backbone.layers:
            moved = {w: rows for w, rows in layer.stacked().items() if w in optimizer.matrices}
            assert list(moved.values()) == [rows for rows in (qkv, up) if rows]
            for weight, rows in moved.items():
                assert optimizer.stacked[weight] == rows and sum(rows) == len(weight)


def test_only_matrices_of_layers_are_moved_by_it() -> None:
    model = fresh_model(shape("dadlm"), tokenizer(), 0)
    optimizer = start_optimizer(model, TrainConfig(optimizer="muon"))
    assert isinstance(optimizer, Muon)
    names = {name for name, parameter in model.named_parameters() if parameter in optimizer.matrices}
    kinds = ("qkv", "out", "up", "down")
    assert names == {f"backbone.layers.{i}.{kind}.weight" for i in range(2) for kind in kinds}
    others = sum(len(group["params"]) for group in optimizer.param_groups) - len(names)
    assert others == len(list(model.parameters())) - len(names)


def test_a_spoilt_step_changes_nothing() -> None:
    matrix = torch.nn.Parameter(torch.randn(4, 4))
    optimizer = Muon([{"params": [matrix], "matrices": True}], lr=0.1, weight_decay=0.5)
    matrix.grad = torch.randn(4, 4)
    optimizer.step()
    before, average = matrix.detach().clone(), optimizer.state[matrix]["exp_avg"].clone()
    matrix.grad = torch.full((4, 4), torch.nan)
    optimizer.found_inf = torch.ones(())  # type: ignore[attr-defined]
    optimizer.step()
    assert torch.equal(matrix, before) and torch.equal(optimizer.state[matrix]["exp_avg"], average)


def test_an_interrupted_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    straight, broken = (config("dadlm", tmp_path / name, optimizer="muon") for name in ("straight", "broken"))
    train(straight)
    train(broken, stop_at=5)
    train(broken)
    one, other = (state_tensors(tmp_path / name / "last") for name in ("straight", "broken"))
    assert_same_bits(one, other)
    assert "exp_avg_sq.backbone.layers.0.up.weight" not in one
    assert "exp_avg_sq.backbone.embedding.weight" in one


@pytest.mark.parametrize("kinds", [("adamw", "muon"), ("muon", "adamw")])
def test_moments_go_from_one_optimiser_to_the_other_where_both_have_them(
    kinds: tuple[Literal["adamw", "muon"], ...], tmp_path: Path
) -> None:
    """AdamW has use for Muon's average of a matrix only beside one of squares, which Muon has not."""
    train(config("bd3lm", tmp_path / "first", optimizer=kinds[0]))
    origin = str(tmp_path / "first" / "last")
    second = replace(config("bd3lm", tmp_path / "second", optimizer=kinds[1]), init_from=origin)
    state = trainer(second).state
    kept = state_tensors(tmp_path / "first" / "last")
    for name, parameter in state.model.named_parameters():
        moments, is_matrix = state.optimizer.state[parameter], ".layers." in name and "norm" not in name
        assert ("exp_avg_sq" in moments) == (not is_matrix or kinds[1] == "adamw")
        for kind, moment in moments.items():
            wanted = torch.zeros_like(moment) if is_matrix and kinds[0] == "muon" else kept[f"{kind}.{name}"]
            assert torch.equal(moment, wanted)


def test_shards_are_refused() -> None:
    with pytest.raises(ConfigError, match="parallel ddp"):
        TrainConfig(optimizer="muon", parallel="fsdp")
