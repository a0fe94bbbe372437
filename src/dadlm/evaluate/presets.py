"""How to decode in a comparison: the paper's three grids, a quick one, and configurations as words.

A word is a way to denoise, `FH` (first-hitting), `T=8` (random remasking in 8 steps a block) or `conf=0.9`
(keep what is at least that sure), and what else is asked of it: `T=8/infill=2,0.5`, `FH/path=viterbi`.
Knows nothing of what is measured.

N block size, T denoising steps a block.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from dadlm.decode import DecodeSettings
from dadlm.errors import ConfigError
from dadlm.evaluate.paper import GENERATION
from dadlm.model import ModelConfig

PRESETS = ("quick", "paper", *(f"paper-{size}" for size in GENERATION))

DRAWING = ("top_p", "temperature", "nucleus")
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
        return "FH" if self.settings.sampler == "first-hitting" else f"T={self.settings.steps or 'N'}"

    @property
    def label(self) -> str:
        """Tells this configuration from every other: all that differs from the defaults."""
        parts, default = [self.denoising], DecodeSettings()
        for name in ("infill", "path", "top_p", "temperature", "transition_weight", "nucleus", "padded"):
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
        settings = asdict(self.settings) | {"infill": self.infill}
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
            f"no configurations: name a preset ({', '.join(PRESETS)}) or give FH, T=8, conf=0.9"
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
    how, *rest = word.split("/")
    name, _, value = how.partition("=")
    if how == "FH":
        options: dict[str, Any] = {}
    elif name == "T":
        options = {"sampler": "random", "steps": _number(int, value, word)}
    elif name == "conf":
        options = {"sampler": "confidence", "threshold": _number(float, value, word)}
    else:
        raise _unknown(word)
    for part in rest:
        name, _, value = part.partition("=")
        if name in options:
            raise ConfigError(f"{word!r} says {name} twice")
        options[name] = _option(name, value, word)
    return Configuration(DecodeSettings(**options))


def _option(name: str, value: str, word: str) -> Any:
    if name == "infill":
        k, _, r = value.partition(",")
        return _number(int, k, word), _number(float, r, word)
    if name in ("top_p", "temperature", "transition_weight"):
        return _number(float, value, word)
    if name in ("path", "nucleus"):
        return value
    if name == "padded":
        return bool(_number(int, value, word))
    raise _unknown(word)


def _number(kind: type, text: str, word: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise ConfigError(f"{word!r}: {text!r} is not {wanted}; write for example T=8/infill=2,0.5") from None


def _unknown(word: str) -> ConfigError:
    return ConfigError(
        f"unknown configuration {word!r}: name a preset ({', '.join(PRESETS)}), or give FH, T=8 or conf=0.9, "
        "each with /infill=2,0.5, /path=viterbi, /path=lookahead, /top_p=0.9, /nucleus=position, "
        "/temperature=1, /transition_weight=0.5 or /padded=1"
    )


def _named(name: str, config: ModelConfig) -> list[Configuration]:
    if name == "quick":
        half = max(1, config.block // 2)
        return [parse("FH"), parse("FH/infill=2,0.5"), parse(f"T={half}")]
    if name == "paper":
        if config.family == "mdlm" or config.block not in GENERATION:
            raise ConfigError(
                f"the paper has grids for the block sizes {', '.join(map(str, GENERATION))}, not for this "
                f"{config.family} model with blocks of {config.block}: use quick, or give FH, T=8, ..."
            )
        return _paper(config.block)
    return _paper(int(name[6:])) if name in PRESETS else [parse(name)]


def _paper(size: int) -> list[Configuration]:
    """Every row of the paper's table for a block size."""
    return [
        Configuration(replace(parse(row.denoising).settings, infill=row.infill)) for row in GENERATION[size]
    ]
