"""All stages in one command: the same as one by one, resumable anywhere with the same bits."""

import json
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.train.runs import WORDS, assert_same_bits, before_step, config, shape, state_tensors, tokenizer

from dadlm.errors import CheckpointError, ConfigError
from dadlm.model import load, save
from dadlm.recipes import ROUTES, route
from dadlm.train import Finished, RunConfig, train, train_route, trainer
from dadlm.train.loop import Loop
from dadlm.train.origin import fresh_model
from dadlm.train.route import RouteConfig, stages_of, write_log

FAMILIES = ("ar", "bd3lm", "dadlm")
STEPS = 4


def recipes() -> list[RunConfig]:
    return [config(family, Path("unused"), steps=STEPS, valid_every=2) for family in FAMILIES]


@pytest.fixture
def shared(tmp_path: Path) -> RouteConfig:
    text = tmp_path / "text.txt"
    text.write_text(" ".join(WORDS[n * n % len(WORDS)] for n in range(2000)), "utf-8")
    data = replace(RouteConfig().data, train=str(text), tokenizer="bpe:300", cache=str(tmp_path / "cache"))
    return RouteConfig(data=data, out=str(tmp_path / "route"), device="cpu")


def test_a_route_is_its_stages_one_by_one(shared: RouteConfig, tmp_path: Path) -> None:
    stages = stages_of(shared, recipes())
    done = train_route(stages, shared.out, quiet=True)
    assert [one.step for one in done] == [STEPS] * 3
    apart = stages_of(replace(shared, out=str(tmp_path / "apart")), recipes())
    for run, together in zip(apart, stages, strict=True):
        train(run, quiet=True)
        assert_same_bits(state_tensors(Path(run.out) / "last"), state_tensors(Path(together.out) / "last"))
    lines = (Path(shared.out) / "metrics.jsonl").read_text("utf-8").splitlines()
    entries = [json.loads(line) for line in lines]
    assert list(dict.fromkeys(entry["stage"] for entry in entries)) == [*FAMILIES]
    steps = [entry["route_step"] for entry in entries]
    assert steps == sorted(steps) and steps[-1] == 3 * STEPS
    pytest.importorskip("matplotlib")
    assert "<svg" in (Path(shared.out) / "route.svg").read_text("utf-8")


def test_a_route_stopped_before_its_first_loss_is_drawn_without_a_word(shared: RouteConfig) -> None:
    pytest.importorskip("matplotlib")
    stages = stages_of(shared, recipes())
    log = Path(stages[0].out) / "metrics.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text('{"step": 1, "tokens": 5}\n', "utf-8")
    write_log(stages, Path(shared.out))  # warnings are errors here
    assert "<svg" in (Path(shared.out) / "route.svg").read_text("utf-8")


@pytest.mark.parametrize(("family", "step"), [("ar", 3), ("bd3lm", 1), ("bd3lm", 4), ("dadlm", 2)])
def test_a_route_interrupted_anywhere_ends_with_the_same_bits(
    family: str, step: int, shared: RouteConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = stages_of(shared, recipes())
    train_route(straight, shared.out, quiet=True)
    broken = stages_of(replace(shared, out=str(tmp_path / "broken")), recipes())
    run: Callable[[Loop], Finished] = trainer.Trainer.run

    def stopped(one: Loop) -> Finished:
        if one.name == family:
            before_step(one, step, lambda: signal.raise_signal(signal.SIGINT))
        return run(one)

    with monkeypatch.context() as patch:
        patch.setattr(trainer.Trainer, "run", stopped)
        done = train_route(broken, tmp_path / "broken", quiet=True)
    # Ctrl-C during the last step of a stage ends the stage; the route goes on.
    assert done[-1].interrupted == (step < STEPS)
    assert train_route(broken, tmp_path / "broken", quiet=True)[-1].step == STEPS
    for one, other in zip(straight, broken, strict=True):
        assert_same_bits(state_tensors(Path(one.out) / "last"), state_tensors(Path(other.out) / "last"))


def test_a_route_starts_from_a_model_of_another_shape(shared: RouteConfig, tmp_path: Path) -> None:
    for family, left in (("ar", 3), ("bd3lm", 2), ("dadlm", 1)):
        save(fresh_model(shape(family, width=24, heads=3, layers=3), tokenizer(), 0), tmp_path / family)
        stages = stages_of(replace(shared, init_from=str(tmp_path / family)), recipes())
        assert [run.model.family for run in stages] == [*FAMILIES[-left:]]
        assert stages[0].init_from == str(tmp_path / family)
        assert {(run.model.width, run.model.heads, run.model.layers) for run in stages} == {(24, 3, 3)}
        done = train_route(stages, shared.out, quiet=True)
        assert load(done[-1].folder).config.width == 24
        shutil.rmtree(shared.out)


def test_a_route_goes_on_when_the_model_it_started_from_is_gone(shared: RouteConfig, tmp_path: Path) -> None:
    save(fresh_model(shape("ar", layers=3), tokenizer(), 0), tmp_path / "origin")
    route = replace(shared, init_from=str(tmp_path / "origin"))
    stages = stages_of(route, recipes())
    train(stages[0], quiet=True)
    shutil.rmtree(tmp_path / "origin")
    assert stages_of(route, recipes()) == stages
    shutil.rmtree(shared.out)
    with pytest.raises(CheckpointError, match="origin"):
        stages_of(route, recipes())


@pytest.mark.parametrize("scale", ROUTES)
def test_settings_of_a_route_reach_its_stages(scale: str) -> None:
    shared, runs = route(scale)
    changed = replace(shared, length=0.01, seed=3, batch_size=64, accumulate=2, device="cpu")
    for run, own in zip(stages_of(changed, runs), runs, strict=True):
        assert run.train.steps == round(own.train.steps / 100)
        assert (run.train.seed, run.train.batch_size, run.train.accumulate) == (3, 64, 2)
        assert run.out == f"runs/{scale}/{run.model.family}"
    plain = stages_of(shared, runs)
    assert [run.train for run in plain] == [own.train for own in runs]
    with pytest.raises(ConfigError, match="length must be positive"):
        replace(shared, length=0.0)
    with pytest.raises(ConfigError, match="unknown route 'huge'; choose one of small"):
        route("huge")
