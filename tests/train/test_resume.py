"""Stopping and going on, or splitting the batch, changes nothing."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tests.train.runs import (
    FAMILIES,
    assert_same_bits,
    config,
    metrics,
    progress,
    state_tensors,
    train,
    trainer,
    with_model,
    with_noise,
    with_train,
)

from dadlm.errors import CheckpointError, ConfigError
from dadlm.model import load
from dadlm.model.checkpoint import weights
from dadlm.train import RunConfig
from dadlm.train.processes import Ranks, alone_in


def eventful(family: str, out: Path) -> RunConfig:
    """Everything that depends on the step at once: dropout, clipping, decay, a rate of its own."""
    run = config(family, out, decay=6, graph_lr_scale=2.0, valid_rows=32)
    return with_noise(with_model(run, dropout=0.2), clip_search=True)


def assert_same_run(one: Path, other: Path) -> None:
    assert_same_bits(state_tensors(one / "last"), state_tensors(other / "last"))
    assert_same_bits(weights(load(one / "best")), weights(load(other / "best")))
    for key in ("step", "best", "noise"):
        assert progress(one / "last")[key] == progress(other / "last")[key], key
    assert metrics(one) == metrics(other)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_interrupted_run_ends_with_the_same_bits(family: str, tmp_path: Path) -> None:
    straight, broken = eventful(family, tmp_path / "straight"), eventful(family, tmp_path / "broken")
    assert not train(straight).interrupted
    stopped = train(broken, stop_at=5)
    assert (stopped.interrupted, stopped.step) == (True, 5)
    assert progress(tmp_path / "broken" / "last")["step"] == 5
    assert train(broken).step == 12
    names = {name.split(".")[0] for name in state_tensors(tmp_path / "broken" / "last")}
    assert names == {"weight", "ema", "step", "exp_avg", "exp_avg_sq"}
    assert_same_run(tmp_path / "straight", tmp_path / "broken")
    if family != "ar":  # else the search for an interval would not have been part of this test
        assert progress(tmp_path / "broken" / "last")["noise"]["low"] > 1e-3


def test_steps_raised_later_continue_as_if_they_had_always_been(tmp_path: Path) -> None:
    straight = config("dadlm", tmp_path / "straight", valid_every=4)
    train(straight)
    raised = config("dadlm", tmp_path / "raised", valid_every=4)
    train(with_train(raised, steps=8))
    train(raised)
    assert_same_run(tmp_path / "straight", tmp_path / "raised")


def test_the_seed_decides_weights_order_and_noise(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train(config("bd3lm", tmp_path / name, seed=seed, steps=3))
    assert_same_run(tmp_path / "a", tmp_path / "b")
    assert metrics(tmp_path / "a") != metrics(tmp_path / "c")


@pytest.mark.parametrize("family", FAMILIES)
def test_accumulation_changes_nothing(family: str, tmp_path: Path) -> None:
    losses, ends = [], []
    for parts in (1, 4):
        run = config(family, tmp_path / str(parts), batch_size=8, accumulate=parts)
        train(run)
        losses.append([one["loss"] for one in metrics(tmp_path / str(parts)) if "loss" in one])
        ends.append(weights(load(tmp_path / str(parts) / "last")))
    assert len(losses[0]) == 12
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)
    for name in ends[0]:
        torch.testing.assert_close(ends[0][name], ends[1][name], atol=1e-4, rtol=1e-3)


def test_a_finished_run_is_left_as_it_is(tmp_path: Path) -> None:
    run = config("bd3lm", tmp_path)
    first = train(run)
    before = state_tensors(tmp_path / "last"), metrics(tmp_path)
    assert train(run) == first
    assert_same_bits(state_tensors(tmp_path / "last"), before[0])
    assert metrics(tmp_path) == before[1]


def test_another_runs_folder_is_refused_with_the_settings_that_differ(tmp_path: Path) -> None:
    run = config("bd3lm", tmp_path)
    train(run, stop_at=2)
    before = state_tensors(tmp_path / "last")
    rates = r"train\.batch_size: 4 there, 8 now\n.*train\.lr: 0\.01 there, 0\.003 now$"  # steps may change
    others = {
        rates: with_train(run, lr=3e-3, batch_size=8, steps=30),
        r"noise\.schedule": with_noise(run, schedule="cosine"),
        r"data\.train": replace(run, data=replace(run.data, train="other.txt")),
    }
    for told, other in others.items():
        with pytest.raises(ConfigError, match=f"other settings.*\n  {told}"):
            trainer(other)
    assert_same_bits(state_tensors(tmp_path / "last"), before)


SOUND = '{"step": 2, "best": 1.0, "noise": {}, "run": {}'
CONTENTS = ("", "{", "[]", "{}", '{"step": 2}', SOUND.replace('"noise": {}', '"noise": {"shape": 1}') + "}")
CONTENTS += (SOUND.replace('"run": {}', '"run": {"train": 5}') + "}", SOUND + ', "data": 5}')
CONTENTS += (SOUND + ', "averaged": "many"}', SOUND + ', "summary_tokens": "few"}')
STATE, TENSORS = "training/state.json", "training/state.safetensors"


def with_nan(last: Path, name: str) -> bytes:
    tensors = state_tensors(last)
    tensors[name].view(-1)[0] = float("nan")
    return safetensors.torch.save(tensors)


def narrower(last: Path) -> bytes:
    other = last.parents[1] / "narrow"
    train(with_model(config("dadlm", other), width=8, candidate_offset=0.5), stop_at=2)
    return (other / "last" / TENSORS).read_bytes()


DAMAGES: dict[str, tuple[str, Callable[[Path], bytes | None], str]] = {
    **{text: (STATE, lambda _, text=text: text.encode(), r"state\.json is not") for text in CONTENTS},
    "truncated": (TENSORS, lambda last: (last / TENSORS).read_bytes()[:-100], "truncated or damaged"),
    "missing": (TENSORS, lambda _: None, "does not exist"),
    "of another shape": (TENSORS, narrower, "shape"),
    **{
        name: (TENSORS, lambda last, name=name: with_nan(last, name), f"{name} holds NaN or infinity")
        for name in ("weight.head.offset", "exp_avg_sq.backbone.embedding.weight")
    },
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_training_state_is_refused(name: str, tmp_path: Path) -> None:
    file, spoilt, told = DAMAGES[name]
    run = with_model(config("dadlm", tmp_path / "run"), candidate_offset=0.5)
    train(run, stop_at=2)
    last = tmp_path / "run" / "last"
    content = spoilt(last)
    (last / file).unlink()
    if content is not None:
        (last / file).write_bytes(content)
    with pytest.raises(CheckpointError, match=told):
        trainer(run)


def test_a_run_copied_with_its_links_followed_goes_on(tmp_path: Path) -> None:
    """As scp, zip and buckets copy it: `last` and `best` are folders then."""
    straight, broken = eventful("dadlm", tmp_path / "straight"), eventful("dadlm", tmp_path / "broken")
    train(straight)
    train(broken, stop_at=5)
    shutil.copytree(tmp_path / "broken", tmp_path / "copy")
    assert not (tmp_path / "copy" / "last").is_symlink()
    train(replace(broken, out=str(tmp_path / "copy")))
    assert_same_run(tmp_path / "straight", tmp_path / "copy")
    assert (tmp_path / "copy" / "last").is_symlink()


def test_processes_that_do_not_see_the_same_run_stop(tmp_path: Path) -> None:
    class Other(Ranks):
        """One of two machines: the first has gone on from step 10."""

        def broadcast(self, values: list[float]) -> list[float]:
            return [10.0]

    with pytest.raises(ConfigError, match="not all processes see the run"):
        trainer(config("ar", tmp_path), ranks=Other())


def test_two_processes_do_not_train_in_one_folder(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with alone_in(out, Ranks()):
        (out / "something").touch()
        with pytest.raises(ConfigError, match="another process trains in"), alone_in(out, Ranks()):
            pass
    with alone_in(out, Ranks()):
        pass
    with alone_in(tmp_path / "nothing", Ranks()):
        pass
    assert out.exists() and not (tmp_path / "nothing").exists()


def test_a_run_that_is_refused_leaves_the_folder_that_another_has_just_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    with alone_in(out, Ranks()):
        monkeypatch.setattr(Path, "exists", lambda _: False)  # as it was when the second one looked
        with pytest.raises(ConfigError, match="another process trains in"), alone_in(out, Ranks()):
            pass
        assert out.is_dir()


@pytest.mark.parametrize(
    ("setting", "refused"),
    [
        ({}, None),
        ({"power": 3.0}, "power 3.0"),
        ({"apart_rows": 32}, "apart_rows 32"),
        ({"block_share": 0.5}, "block_share 0.5"),
    ],
)
def test_a_run_of_an_earlier_release_is_resumed_if_settings_that_are_gone_had_their_defaults(
    setting: dict[str, Any], refused: str | None, tmp_path: Path
) -> None:
    run = config("bd3lm", tmp_path, steps=4, masks_per_row=2)
    train(run)
    content = progress(tmp_path / "last")
    saved = content["run"]["train"]
    saved["masks"] = saved.pop("masks_per_row")
    saved |= {"power": 1.0, "power_steps": 0, "apart_rows": 0, "block_share": 1.0} | setting
    (tmp_path / "last" / STATE).write_text(json.dumps(content), encoding="utf-8")
    if refused is None:
        with pytest.raises(ConfigError, match=r"train\.masks_per_row: 2 there, 1 now"):
            train(with_train(run, masks_per_row=1))
        assert train(with_train(run, steps=6)).step == 6
        return
    with pytest.raises(ConfigError, match=f"train.{refused}: this setting no longer exists"):
        train(with_train(run, steps=6))
    assert load(tmp_path).config.family == "bd3lm", "the model can still be used"
