"""Options of transformers' `generate` → ours; those that our decoder lacks are refused with a reason."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers import GenerationConfig

from dadlm.decode import DecodeSettings
from dadlm.decode.request import settings_of
from dadlm.errors import ConfigError
from dadlm.model import Model, ModelConfig

_SAMPLING = ("temperature", "top_p", "top_k")
_IGNORED = ("transformers_version", "bos_token_id", "tokenizer")  # a tokenizer is there for stop_strings
_NEUTRAL = {
    1: ("num_beams", "num_beam_groups", "repetition_penalty", "encoder_repetition_penalty", "typical_p"),
    0: ("no_repeat_ngram_size", "min_length", "min_new_tokens", "min_p", "diversity_penalty", "top_k"),
}
_PER_TOKEN = "is asked for once per token, but a step here decides several at once"
_REASONS = {
    "num_beams": 'is for decoding from left to right; path="viterbi" takes the most probable path of a block',
    "assistant_model": "is not needed: several tokens are decided in a step",
    "stopping_criteria": _PER_TOKEN,
    "stop_strings": _PER_TOKEN,
    "logits_processor": _PER_TOKEN,
    "prefix_allowed_tokens_fn": _PER_TOKEN,
    "repetition_penalty": _PER_TOKEN,
    "no_repeat_ngram_size": _PER_TOKEN,
    "return_dict_in_generate": "cannot be: tokens are returned, and nothing else",
}


@dataclass(frozen=True)
class Asked:
    settings: DecodeSettings
    copies: int
    """Texts per prompt."""
    pad_id: int
    """Pads shorter rows."""
    cache: bool


def default_generation(model: Model) -> dict[str, Any]:
    """The content of generation_config.json, without which `pipeline` would use defaults of its own."""
    ours, config, ends = DecodeSettings(), model.config, model.end_ids
    return {
        "do_sample": True,
        "temperature": ours.temperature,
        "top_p": ours.top_p,
        "max_new_tokens": ours.new_tokens(1, config),
        "eos_token_id": config.eot_id if len(ends) == 1 else [*ends],
        "pad_token_id": config.eot_id,
    }


def turn_end_of(said: Any, config: ModelConfig) -> int | None:
    """The token that ends a turn, as config.json says, checked."""
    if said is None or (type(said) is int and 0 <= said < config.mask_id):
        return said
    raise ConfigError(f"turn_end_id in config.json must be a token below {config.mask_id}, got {said!r}")


def read_options(
    defaults: Mapping[str, Any], given: Mapping[str, Any], length: int, longest: int, model: Model
) -> Asked:
    """Merge options `given` by the caller over the model's `defaults`.

    Rows have `length` tokens with padding; without it the longest has `longest`.
    """
    config = model.config
    given = {name: value for name, value in given.items() if value is not None}
    whole = {**defaults, **given}
    options: dict[str, Any] = {
        name: value for name, value in whole.items() if not _means_nothing(name, value)
    }
    options["max_new_tokens"] = _new_tokens(defaults, given, length, config.context - max(1, longest))
    options.pop("max_length", None)
    if not whole.get("do_sample", True):
        options = {"path": "viterbi"} | {k: v for k, v in options.items() if k not in _SAMPLING}
    options.pop("do_sample", None)
    _check_end(options.pop("eos_token_id", config.eot_id), model.end_ids)
    copies, pad_id = options.pop("num_return_sequences", 1), options.pop("pad_token_id", config.eot_id)
    if not isinstance(copies, int) or copies < 1:
        raise ConfigError(f"num_return_sequences must be a whole number of at least 1, got {copies!r}")
    _refuse(options)
    return Asked(settings_of(None, options), copies, pad_id, bool(whole.get("use_cache", True)))


def _check_end(asked: Any, ends: tuple[int, ...]) -> None:
    """Accept any of the tokens that end a text: all of them do, whichever are named."""
    named = asked if isinstance(asked, list) else [asked]
    if not named or any(end not in ends for end in named):
        raise ConfigError(
            f"texts of this model end with token {' or '.join(map(str, ends))}; eos_token_id is {asked}"
        )


def _means_nothing(name: str, value: Any) -> bool:
    neutral = any(name in names and value == number for number, names in _NEUTRAL.items())
    switched_off = value is None or (value is False and name not in DecodeSettings.__dataclass_fields__)
    return neutral or switched_off or name in _IGNORED or name.startswith("_") or name == "use_cache"


def _new_tokens(defaults: Mapping[str, Any], given: Mapping[str, Any], length: int, room: int) -> int | None:
    """What is `given`, which is checked later; else the `defaults`, cut to what fits."""
    for options, most in ((given, None), (defaults, room)):
        new = options.get("max_new_tokens")
        if new is None and (whole := options.get("max_length")) is not None:
            new = whole - length
            if new < 1:
                raise ConfigError(f"max_length is {whole}, but the prompt has {length} tokens already")
        if new is not None:
            return new if most is None or most < 1 else min(new, most)
    return None


def _refuse(options: Mapping[str, Any]) -> None:
    """Refuse options that only transformers has; for unknown names, `settings_of` lists ours."""
    theirs = vars(GenerationConfig()).keys() | _REASONS.keys()
    for name in sorted(theirs & options.keys() - DecodeSettings.__dataclass_fields__.keys()):
        reason = _REASONS.get(name, "is an option of transformers' decoder that dadlm's does not have")
        raise ConfigError(f"{name} {reason}: leave it out")
