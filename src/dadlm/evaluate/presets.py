"""How to decode in a comparison: the paper's three grids, a quick one, and configurations as words.

A word is a way to denoise, `FH` (first-hitting), `T=8` (random remasking in 8 steps a block), `D=8` (dilated
steps), `conf=0.9` (keep what is at least that sure) or `H=0.5` (keep so many nats), and further settings:
`T=8/infill=2,0.5`, `FH/path=viterbi`.
"""

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dadlm.decode import DecodeSettings
from dadlm.errors import ConfigError
from dadlm.evaluate.paper import GENERATION
from dadlm.evaluate.subject import described
from dadlm.model import ModelConfig

PRESETS = ("quick", "paper", *(f"paper-{size}" for size in GENERATION))

DRAWING = ("top_p", "top_k", "temperature", "nucleus")
"""Settings of how a token is drawn; the others say which tokens, and when."""


@dataclass(frozen=True)
class Configuration:
    """One way to decode, with the names that tables and files use for it."""

    settings: DecodeSettings
    autoregressive: bool = False

    @property
    def denoising(self) -> str:
        if self.autoregressive:
            return "AR"
        if self.settings.sampler == "confidence":
            return f"conf {self.settings.threshold:g}"
        if self.settings.sampler == "entropy":
            return f"H={self.settings.bound:g}"
        if self.settings.sampler == "dilated":
            return f"D={self.settings.steps or 'N'}"
        return "FH" if self.settings.sampler == "first-hitting" else f"T={self.settings.steps or 'N'}"

    @property
    def label(self) -> str:
        """Tells this configuration from every other: all that differs from the defaults."""
        parts, default = [self.denoising], DecodeSettings()
        for name in (
            "infill",
            "path",
            "top_p",
            "top_k",
            "temperature",
            "transition_weight",
            "nucleus",
            "padded",
            "shortlist",
        ):
            value = getattr(self.settings, name)
            if value != getattr(default, name):
                values = value if isinstance(value, tuple | list) else (value,)
                parts += [name, *(f"{one:g}" if isinstance(one, int | float) else one for one in values)]
        return " ".join(parts)

    @property
    def infill(self) -> list[float] | None:
        return None if self.settings.infill is None else list(self.settings.infill)

    @property
    def fingerprint(self) -> str:
        """A hash of all settings, so that what was made with another default is not taken for this."""
        return hashlib.sha256(json.dumps(self.described(), sort_keys=True).encode()).hexdigest()[:8]

    def described(self) -> dict[str, Any]:
        """The settings as JSON; how long a text becomes is the evaluation's business."""
        settings = described(self.settings) | {"infill": self.infill}
        del settings["max_new_tokens"]
        return settings


def configurations_for(config: ModelConfig, wanted: Iterable[str | Configuration]) -> list[Configuration]:
    """What `wanted` (names of presets, words, configurations) means for a model; each once, in order.

    An AR model has one way to decode, whatever the grid: nucleus sampling, a token at a time.
    """
    if config.family == "ar":
        return [Configuration(_drawing(wanted), autoregressive=True)]
    found: dict[str, Configuration] = {}
    for one in wanted:
        for configuration in [one] if isinstance(one, Configuration) else _named(one, config):
            configuration.settings.check(config)
            found.setdefault(configuration.label, configuration)
    if not found:
        raise ConfigError(
            f"no configurations: name a preset ({', '.join(PRESETS)}) or give FH, T=8, D=8, conf=0.9, H=0.5"
        )
    return list(found.values())


def _drawing(wanted: Iterable[str | Configuration]) -> DecodeSettings:
    """How the whole grid draws a token; the default where its configurations do not agree."""
    found = set()
    for one in wanted:
        named = one if isinstance(one, Configuration) else parse("FH" if one in PRESETS else one)
        found.add(DecodeSettings(**{name: getattr(named.settings, name) for name in DRAWING}))
    return found.pop() if len(found) == 1 else DecodeSettings()


def default_prompt_tokens(context: int) -> int:
    """The paper's 64, or half of a context too small for that."""
    return 64 if context >= 128 else context // 2


def parse(word: str) -> Configuration:
    """`T=8/infill=2,0.5` → a configuration."""
    options: dict[str, Any] = {}
    for at, part in enumerate(word.split("/")):
        name, _, value = part.partition("=")
        if at == 0 and part == "FH":
            continue
        if at == 0 and name in _DENOISING:
            options["sampler"], name = _DENOISING[name]
        elif name in options:
            raise ConfigError(f"{word!r} says {name} twice")
        elif at == 0 or name not in _READ or name in ("steps", "threshold", "bound"):
            raise ConfigError(
                f"unknown configuration {word!r}: name a preset ({', '.join(PRESETS)}), or give FH, T=8, "
                "D=8, conf=0.9 or H=0.5, each with /infill=2,0.5, /path=viterbi, /path=lookahead, "
                "/top_p=0.9, /top_k=50, /nucleus=position, /temperature=1, /transition_weight=0.5, /padded=1 "
                "or /shortlist=1024"
            )
        try:
            options[name] = _READ[name](value)
        except ValueError as error:
            raise ConfigError(f"{word!r}: {error}; write for example T=8/infill=2,0.5") from None
    return Configuration(DecodeSettings(**options))


def _number(kind: type[int] | type[float], text: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{text!r} is not {'a whole number' if kind is int else 'a number'}") from None


def _infill(text: str) -> tuple[int, float]:
    k, _, r = text.partition(",")
    return _number(int, k), _number(float, r)


_DENOISING = {
    "T": ("random", "steps"),
    "D": ("dilated", "steps"),
    "conf": ("confidence", "threshold"),
    "H": ("entropy", "bound"),
}

_READ: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(
        ("threshold", "bound", "top_p", "temperature", "transition_weight"), partial(_number, float)
    ),
    **dict.fromkeys(("path", "nucleus"), str),
    **dict.fromkeys(("steps", "top_k", "shortlist"), partial(_number, int)),
    "infill": _infill,
    "padded": lambda text: bool(_number(int, text)),
}


def _named(name: str, config: ModelConfig) -> list[Configuration]:
    if name == "quick":
        return [parse("FH"), parse("FH/infill=2,0.5"), parse(f"T={max(1, config.block // 2)}")]
    if name == "paper" and (config.family == "mdlm" or config.block not in GENERATION):
        raise ConfigError(
            f"the paper has grids for the block sizes {', '.join(map(str, GENERATION))}, not for this "
            f"{config.family} model with blocks of {config.block}: use quick, or give FH, T=8, ..."
        )
    if name not in PRESETS:
        return [parse(name)]
    rows = GENERATION[config.block if name == "paper" else int(name.removeprefix("paper-"))]
    return [Configuration(replace(parse(row.denoising).settings, infill=row.infill)) for row in rows]
