"""What the report reads of each kind of result, and what a result lacks of it.

A file may come from another version or an editor: whatever passes here can be shown, whatever does not is
named. More fields than these are welcome.
"""

from dataclasses import dataclass
from math import isfinite
from typing import Any

from dadlm.evaluate.subject import NAMES

Shape = Any  # a predicate, a dictionary of shapes, a list of one shape, or _Maybe


@dataclass(frozen=True)
class _Maybe:
    """Null or this."""

    shape: Shape
    absent: bool = False
    """Whether the field may also be left out."""


def _optional(shape: Shape) -> _Maybe:
    return _Maybe(shape, absent=True)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _family(value: Any) -> bool:
    return isinstance(value, str) and value in NAMES


def _infill(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and _count(value[0]) and _number(value[1])


def _times(value: Any) -> bool:
    """Latencies by the name of a model."""
    shape = {"ms_median": _Maybe(_number), "batch_size": _count, "device": _text}
    return isinstance(value, dict) and not any(lacks(one, shape) for one in value.values())


_INTERVAL = {"mean": _number, "low": _number, "high": _number}
_SCALE = {"family": _family, "context": _count, "parameters": _count}
_MODEL = {"name": _text, **_SCALE, "weights": _text}
_DATA = {"source": _Maybe(_text), "rows": _count, "row_length": _count}
_ROUGE = {"rouge1": _INTERVAL, "rouge2": _INTERVAL, "rougeL": _INTERVAL, "average": _INTERVAL}
_VERDICTS = {"pairs": _count, "wins_a": _count, "wins_b": _count, "ties": _count, "win_rate": _INTERVAL}
_TEXTS = {
    "judge_perplexity": _Maybe(_INTERVAL),
    "distinct": {"1": _number, "2": _number, "3": _number},
    "entropy": _number,
    "repetition": _number,
}

SHAPES: dict[str, dict[str, Shape]] = {
    "reconstruction": {
        "model": _MODEL,
        "against": _Maybe(_MODEL),
        "data": _DATA,
        "count": _optional(_count),
        "value": _number,
        "interval": _INTERVAL,
        "gap": _number,
        "bound": _number,
        "against_interval": _optional(_INTERVAL),
        "against_bound": _optional(_number),
        "against_gap": _optional(_number),
    },
    "perplexity": {
        "model": _MODEL,
        "data": _DATA,
        "count": _optional(_count),
        "tokens": _count,
        "is_bound": _flag,
        "nll": _INTERVAL,
        "perplexity": _INTERVAL,
        "nll_by_time": _Maybe(_INTERVAL),
    },
    "generation": {
        "models": [_MODEL],
        "data": _DATA,
        "samples": _count,
        "prompt_tokens": _count,
        "new_tokens": _count,
        "embedder": _Maybe(_text),
        "judge_lm": _Maybe(_text),
        "latency": _optional(_times),
        "notes": _optional(lambda value: isinstance(value, list)),
        "reference": _optional(_TEXTS),
        "rows": [
            {
                "model": _text,
                "family": _family,
                "block_size": _Maybe(_count),
                "denoising": _text,
                "infill": _Maybe(_infill),
                "configuration": _optional(_text),
                "mauve": _Maybe(_INTERVAL),
                **_TEXTS,
                "raw_tpf": _number,
                "tpf_with_cache_passes": _number,
                "adjusted_tpf": _Maybe(_number),
                "empty": _count,
            }
        ],
    },
    "judge": {
        "judge": _text,
        "a": _text,
        "b": _text,
        "model_a": _optional(_SCALE),
        "model_b": _optional(_SCALE),
        **_VERDICTS,
        "unparsed": _count,
        "first_position_share": _number,
        "requests": _optional(_count),
        "cost": _optional(_number),
        "rows": [_VERDICTS | {"configuration": _text}],
    },
    "summarisation": {
        "model": _MODEL,
        "data": {"source": _Maybe(_text), "pairs": _count},
        "count": _optional(_count),
        "settings": {
            "sampler": _text,
            "steps": _Maybe(_count),
            "threshold": _number,
            "temperature": _number,
            "infill": _Maybe(_infill),
        },
        **_ROUGE,
        "tpf": _number,
        "lead": _ROUGE,
        "empty": _optional(_count),
        "truncated": _optional(_count),
    },
    "latency": {
        "device": _text,
        "batch_size": _count,
        "prompt_tokens": _count,
        "steps": _count,
        "warmup": _count,
        "rows": [
            {
                "model": _MODEL,
                "ms_median": _number,
                "ms_min": _number,
                "ms_max": _number,
                "ratio_to_bd3lm": _Maybe(_number),
                "memory_mib": dict.fromkeys(("start", "end", "peak"), _Maybe(_number)),
            }
        ],
    },
}
_PAIR = {"against_value": _number, "difference": _INTERVAL, "same_masks": _flag}


def problem(result: dict[str, Any]) -> str:
    """What keeps a result of a known kind from being shown; empty: nothing."""
    paired = result["kind"] == "reconstruction" and result.get("against") is not None
    return lacks(result, SHAPES[result["kind"]] | (_PAIR if paired else {}))


def lacks(value: Any, shape: Shape, where: str = "") -> str:
    """The first place where a value has not the shape; empty: it has."""
    if isinstance(shape, _Maybe):
        return "" if value is None else lacks(value, shape.shape, where)
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return f"{where or 'it'} is not an object"
        parts = []
        for name, part in shape.items():
            if name in value:
                parts.append((value[name], part, f"{where}.{name}".strip(".")))
            elif not (isinstance(part, _Maybe) and part.absent):
                return f"no {where}.{name}".replace(" .", " ")
    elif isinstance(shape, list):
        if not isinstance(value, list) or not value:
            return f"{where} is not a list with something in it"
        parts = [(item, shape[0], f"{where}[{i}]") for i, item in enumerate(value)]
    else:
        return "" if shape(value) else f"{where} is {str(value)[:40]!r}"
    return next(filter(None, (lacks(*part) for part in parts)), "")
