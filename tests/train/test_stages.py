"""MDLM or AR, then BD3LM, then DA-DLM: each takes over the weights of the stage before, and its shape."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.runs import (
    FAMILIES,
    WORDS,
    assert_same_bits,
    config,
    shape,
    text,
    tokenizer,
    train,
    trainer,
    with_model,
)

from dadlm.errors import CheckpointError, ConfigError
from dadlm.model import load, save
from dadlm.model.checkpoint import weights
from dadlm.train import Trainer
from dadlm.train.origin import fresh_model, model_from, shape_from, warn_of_other_text

BLOCKS = {"ar", "mdlm", "bd3lm"}
ALLOWED = {"ar": {"ar"}, "mdlm": {"mdlm"}, "bd3lm": BLOCKS, "dadlm": BLOCKS | {"dadlm"}}


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A few steps of every family."""
    folder = tmp_path_factory.mktemp("stages")
    for family in FAMILIES:
        train(config(family, folder / family, steps=3))
    return {family: folder / family for family in FAMILIES}


def test_three_stages_in_a_row(tmp_path: Path) -> None:
    origin: Path | None = None
    for family in ("mdlm", "bd3lm", "dadlm"):
        run = replace(config(family, tmp_path / family, steps=4), init_from=origin and str(origin))
        model = None if origin is None else model_from(origin, run.model, 0)
        if origin is not None and model is not None:
            before, now = weights(load(origin)), weights(model)
            assert before.keys() <= now.keys()
            assert_same_bits(before, {name: now[name] for name in before})
            assert {name.split(".")[0] for name in now.keys() - before.keys()} <= {"graph"}
        assert trainer(run, model).run().step == 4
        origin = tmp_path / family
    assert origin is not None and load(origin).config.family == "dadlm"


@pytest.mark.parametrize("origin", FAMILIES)
@pytest.mark.parametrize("family", FAMILIES)
def test_only_stages_that_make_sense_are_allowed(
    origin: str, family: str, stages: dict[str, Path], tmp_path: Path
) -> None:
    run = config(family, tmp_path)
    if origin in ALLOWED[family]:
        assert model_from(stages[origin], run.model, 0).config.family == family
        return
    with pytest.raises(CheckpointError, match=f"family {origin}; {family} can start from"):
        model_from(stages[origin], run.model, 0)


def test_the_new_parts_follow_the_seed(stages: dict[str, Path], tmp_path: Path) -> None:
    run = config("dadlm", tmp_path)
    one, same, other = (weights(model_from(stages["bd3lm"], run.model, seed)) for seed in (0, 0, 1))
    assert_same_bits(one, same)
    different = [name for name in one if not torch.equal(one[name], other[name])]
    assert different and all(name.startswith("graph.") for name in different)


@pytest.mark.parametrize(
    ("family", "change", "told"),
    [
        # The shapes agree, but these would be other heads.
        ("bd3lm", {"heads": 4}, r"heads 2 \(this model 4\): leave --model\.heads out"),
        ("bd3lm", {"norm_eps": 1e-6}, "norm_eps"),
        (
            "bd3lm",
            {"layers": 3, "width": 32},
            r"layers 2 \(this model 3\), width 16 \(this model 32\):",
        ),
        ("bd3lm", {"tie_embedding": False}, r"missing: head\.linear\.weight"),
        ("dadlm", {"transition": "gated"}, r"transition single \(this model gated\)"),
        ("bd3lm", {"norm_eps": float(torch.tensor(1e-5))}, None),  # rounded, as GGUF files have it
        ("bd3lm", {"block_size": 8, "context": 32}, None),
    ],
)
def test_another_network_is_refused_by_name(
    family: str, change: dict[str, Any], told: str | None, stages: dict[str, Path], tmp_path: Path
) -> None:
    changed = with_model(config(family, tmp_path), **change).model
    if told is None:
        assert model_from(stages[family], changed, 0).config == changed
        return
    with pytest.raises(CheckpointError, match=told):
        model_from(stages[family], changed, 0)


@pytest.mark.parametrize(
    ("own", "told"),
    [
        ({}, r"has edge bilinear \(this model none\): leave --model.edge out"),
        ({"edge": "mlp"}, r"has edge bilinear \(this model mlp\): leave --model.edge out"),
        (
            {"edge": "bilinear", "edge_rank": 4, "edge_second_rank": 2},
            r"has edge_second_rank 0 \(this model 2\): leave --model.edge-second-rank out",
        ),
        (
            {"edge": "bilinear", "edge_rank": 2},
            r"has edge_rank 4 \(this model 2\): leave --model.edge-rank out, and dadlm train RECIPE",
        ),
    ],
)
def test_other_edges_are_refused_by_name(own: dict[str, Any], told: str, tmp_path: Path) -> None:
    edges = {"edge": "bilinear", "edge_rank": 4}
    save(fresh_model(shape("bd3lm", **edges), tokenizer(), 0), tmp_path / "model")
    with pytest.raises(CheckpointError, match=told):
        model_from(tmp_path / "model", shape("dadlm", **own), 0)
    assert model_from(tmp_path / "model", shape("dadlm", **edges), 0).head.edge is not None


def test_vocabulary_and_tokenizer_come_from_the_stage_before(stages: dict[str, Path], tmp_path: Path) -> None:
    other = with_model(config("bd3lm", tmp_path), vocab_size=999, eot_id=5)
    model = model_from(stages["mdlm"], other.model, 0)
    assert model.tokenizer == tokenizer()
    assert (model.config.vocab_size, model.config.eot_id) == (len(WORDS) + 2, len(WORDS))


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    run = config("bd3lm", tmp_path)
    save(fresh_model(run.model, tokenizer(), 0), tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json"):
        model_from(tmp_path / "model", run.model, 0)


def test_a_run_does_not_go_on_with_another_text(tmp_path: Path) -> None:
    run = config("bd3lm", tmp_path)
    one = trainer(run)
    one.run()
    with pytest.raises(ConfigError, match="not the one that the run"):
        Trainer(run, one.state.model, text(39, 1), one.valid_rows, quiet=True)


def test_a_stage_takes_the_shape_of_the_model_it_starts_from() -> None:
    own = shape("dadlm", layers=4, expand_at=2, dropout=0.1, candidates=3)
    other = {"layers": 6, "width": 24, "heads": 3, "context": 32, "block_size": 8, "candidates": 5}
    for family in FAMILIES:
        origin = shape(family, **other, track_bias=None, expand_at=3)
        taken = shape_from(own, origin)
        assert (taken.family, taken.dropout) == ("dadlm", 0.1)
        assert (taken.layers, taken.width, taken.heads, taken.context) == (6, 24, 3, 32)
        assert taken.block_size == (8 if family in ("bd3lm", "dadlm") else 4)
        assert taken.expand_at == 3, "of the graph, or the same share of the layers"
        graph = (taken.candidates, taken.track_bias)
        assert graph == ((5, None) if family == "dadlm" else (3, 3.0))
    edged = shape_from(own, shape("bd3lm", edge="bilinear", edge_rank=4))
    assert (edged.edge, edged.edge_rank) == ("bilinear", 4)
    kept = shape_from(shape("bd3lm", edge="mlp", edge_rank=2), shape("bd3lm"))
    assert (kept.edge, kept.edge_rank) == ("mlp", 2), "edges may be added"


def test_another_text_than_before_is_told(stages: dict[str, Path], tmp_path: Path) -> None:
    run = replace(config("bd3lm", tmp_path), init_from=str(stages["mdlm"]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_other_text(run, text(40, 1))
        warn_of_other_text(replace(run, init_from=None), text(40, 3))
    other = replace(run, data=replace(run.data, train="other.txt"))
    with pytest.warns(UserWarning, match=r"mdlm was trained on made up, this stage on other\.txt"):
        warn_of_other_text(other, text(40, 3))
    with pytest.warns(UserWarning, match="made up with other content, this stage on made up"):
        warn_of_other_text(run, text(40, 3))
