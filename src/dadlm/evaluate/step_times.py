"""Time of a step of each model in each of its configurations, and its ratio to BD3LM's."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from dadlm.evaluate.latency import device_name, time_updates
from dadlm.evaluate.presets import Configuration
from dadlm.evaluate.samples import PromptSet
from dadlm.evaluate.work import Work
from dadlm.model import Model

_TURNS = 3

Run = tuple[str, Configuration]
"""The name of a model and how it decodes."""


def step_times(
    work: Work, models: Mapping[str, Model], runs: Sequence[Run], prompts: PromptSet, batch_size: int
) -> dict[str, dict[str, Any]]:
    """Milliseconds of a step of each model, in first-hitting (where asked for) and in each configuration."""
    device = device_name(next(iter(models.values())))
    groups: dict[str, list[Run]] = {}  # runs of the same configuration
    for name, configuration in runs:
        groups.setdefault(configuration.fingerprint, []).append((name, configuration))
    keys = {
        f"latency|{device}|{batch_size}|{same}|{','.join(name for name, _ in group)}": group
        for same, group in groups.items()
    }
    for (key,) in work.batches(list(keys), 1, "latency"):
        work.add([(key, _in_turns(models, keys[key], prompts, batch_size))])
    times: dict[str, dict[str, Any]] = {name: {} for name in models}
    for key, group in keys.items():
        for name, configuration in group:
            times[name][configuration.label] = work.pieces[key][name]
    timed = {"batch_size": batch_size, "device": device}
    return {
        name: {"ms_median": some.get("FH", {}).get("ms_median"), **timed, "configurations": some}
        for name, some in times.items()
    }


def speed_up(
    run: Run,
    runs: Sequence[Run],
    described: Mapping[str, Mapping[str, Any]],
    times: Mapping[str, Mapping[str, Any]],
) -> float | None:
    """Time of a step of the first BD3LM of this block size and configuration over this model's own.

    None: nothing to compare with. The configuration must be the same because steps of another do other work:
    for Viterbi paths, for example, the head reads all candidates.
    """
    name, configuration = run
    like = ("bd3lm", described[name].get("block_size"))
    for base, other in runs:
        if (described[base]["family"], described[base].get("block_size")) == like and other == configuration:
            if base == name:
                return 1.0
            both = (times[one]["configurations"][configuration.label]["ms_median"] for one in (base, name))
            theirs, own = both
            return theirs / own if theirs and own else None
    return None


def _in_turns(
    models: Mapping[str, Model], group: Sequence[Run], prompts: PromptSet, batch_size: int
) -> dict[str, dict[str, Any]]:
    """Times of the models of one configuration, in turns, so that other load slows all alike."""
    given = [prompts.prompt(index) for index in range(batch_size)]
    took: dict[str, list[float]] = {name: [] for name, _ in group}
    for _ in range(_TURNS):
        for name, configuration in group:
            took[name] += time_updates(
                models[name], given, configuration.settings, steps=4, warmup=10, seed=prompts.seed
            )
    return {
        name: {"ms_median": median(times) if times else None, "updates": len(times)}
        for name, times in took.items()
    }
