"""Mode lossless compared with its target: whole texts, in turn, and where the time of a cycle goes."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from dadlm.bench.machine import Machine, check_counts, log
from dadlm.decode import DecodeSettings, Generated, generate
from dadlm.decode.engines import borrow_lossless
from dadlm.decode.generate import completions
from dadlm.decode.lossless import LosslessEngine
from dadlm.decode.pair import drafts_for_itself, target_and_draft
from dadlm.model import Model

_PROMPT = 32
_PHASES = ("draft", "verify")
Prompts = list[list[int]]


def bench_lossless(
    model: Model,
    draft: Model | str | None = None,
    batches: tuple[int, ...] = (1, 32),
    trees: tuple[int, ...] = (0, 16, 64),
    tokens: int = 128,
    temperature: float = 0.0,
    rounds: int = 3,
) -> dict[str, Any]:
    """Tokens per second of mode ar and of mode lossless, for each size of tree and the one it chooses itself.

    `draft` is that of `generate`. The prompts are texts written by the model.
    """
    check_counts(batches=batches)
    machine, rows = Machine(model.device, model.backbone.embedding.weight.dtype), list[dict[str, Any]]()
    plain = DecodeSettings(mode="ar", max_new_tokens=tokens, temperature=temperature)
    ways = {"ar": plain}
    itself = drafts_for_itself(*target_and_draft(model, draft))
    for tree in (*trees, None):
        name = {0: "chain", None: "chosen"}.get(tree, f"tree of {tree}")
        ways[name] = replace(plain, mode="lossless", tree=tree)
        if tree is not None and itself:
            ways[f"{name}, one pass"] = replace(ways[name], one_pass=True)
    for batch in batches:
        first = generate(model, [[model.config.eot_id]] * batch, seed=1, mode="ar", max_new_tokens=_PROMPT)
        prompts = [ids[:-1] or [model.config.eot_id] for ids in first.tokens]
        for row in _texts(model, draft, prompts, ways, rounds, machine):
            rows.append({"system": row["system"], "batch": batch} | row)
            log(rows[-1])
    return {"kind": "lossless", **machine.describe(), "new_tokens": tokens, "texts": rows}


def _texts(
    model: Model,
    draft: Model | str | None,
    prompts: Prompts,
    ways: Mapping[str, DecodeSettings],
    rounds: int,
    machine: Machine,
) -> list[dict[str, Any]]:
    """Time all ways in turn, over several rounds; the first warms up."""
    seconds: dict[str, list[float]] = defaultdict(list)
    made: dict[str, Generated] = {}

    def write(name: str) -> None:
        how = ways[name]
        by = draft if how.mode == "lossless" else None
        made[name] = generate(model, prompts, seed=0, batch_size=len(prompts), draft=by, settings=how)

    for turn in range(rounds + 1):
        for name in ways:
            took = machine.timed_ms(lambda name=name: write(name)) / 1e3
            if turn:
                seconds[name].append(took)
    written = {name: sum(map(len, made[name].tokens)) for name in ways}
    speed = {name: written[name] / statistics.median(seconds[name]) for name in ways}
    return [
        {
            "system": name,
            "tokens_per_second": speed[name],
            "ratio_to_ar": speed[name] / speed["ar"],
            "tokens_per_cycle": written[name] / (sum(made[name].cycles) or written[name]),
            "tokens_per_pass": written[name] / sum(made[name].forward_passes),
            "peak_mib": machine.peak_of(lambda name=name: write(name)),
            **_phases(model, draft, prompts, how, machine),
        }
        for name, how in ways.items()
    ]


def _phases(
    model: Model, draft: Model | str | None, prompts: Prompts, how: DecodeSettings, machine: Machine
) -> dict[str, float | None]:
    """Milliseconds of each phase of a cycle, measured in a separate run."""
    if how.mode != "lossless":
        return {f"{name}_ms": None for name in (*_PHASES, "rest")}
    spent, cycles = defaultdict[str, float](float), 0
    target, drafting = target_and_draft(model, draft)

    def phase(name: str, work: Callable[[], Any]) -> Any:
        found: list[Any] = []
        spent[name] += machine.timed_ms(lambda: found.append(work()))
        return found[0]

    with borrow_lossless(target, drafting) as engine:
        assert isinstance(engine, LosslessEngine)
        engine.phase = phase
        for row in completions(target, prompts, how, 0):
            engine.add(row)
        while engine.rows:
            spent["all"] += machine.timed_ms(engine.step)
            cycles += 1
        del engine.phase
    spent["rest"] = spent["all"] - sum(spent[name] for name in _PHASES)
    return {f"{name}_ms": spent[name] / cycles for name in (*_PHASES, "rest")}
