"""How to decode: every option of `generate`, checked where it is born."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, TypeGuard, get_args

from dadlm.decode.samplers import SAMPLERS, SamplerName
from dadlm.errors import ConfigError
from dadlm.model import Mode, ModelConfig

MOST_NODES = 128
"""Of a draft's tree."""

SUITED_SAMPLER: SamplerName = "dilated"
"""Of block models on the command line, the server and the page, where nothing is named."""


@dataclass(frozen=True, kw_only=True)
class DecodeSettings:
    """Options shared by `generate`, `stream` and the command line.
    The defaults are the paper's. For options that are not given, the command
    line and the server choose what suits the model (`settings_for`)."""

    max_new_tokens: int | None = None
    """Tokens to generate after the prompt. None: 128, or what the context leaves if that is less."""
    mode: Mode = "diffusion"
    """diffusion: block by block, controlled by the options below.
    ar: token by token, for AR models (always) and models with `causal_context`. Of
    the options below, it reads only path, top_p, top_k, temperature and nucleus.
    lossless: the text of mode ar in fewer passes;
    tokens are drafted by diffusion and then verified."""
    sampler: SamplerName = "first-hitting"
    """Which predictions a step keeps: one random position (first-hitting), a
    random share (random), all that are confident enough (confidence), as many
    as an entropy bound allows (entropy), or every n-th position (dilated)."""
    steps: int | None = None
    """Denoising steps per block, for the random and dilated samplers.
    None: as many as a block has tokens; on the command line and the server, half as many."""
    threshold: float = 0.9
    """Minimum confidence at which the confidence sampler keeps a token."""
    transition_weight: float = 0.5
    """Weight of the transition probabilities in that confidence (DA-DLM)."""
    bound: float = 0.5
    """Entropy in nats that the entropy sampler may keep in one step; more keeps more tokens.
    0 keeps one token, or all that are certain."""
    path: Literal["sample", "viterbi", "lookahead"] = "sample"
    """sample: draw a path and its tokens.
    viterbi: the most probable path of the block with its most probable tokens.
    lookahead: the best next node after each node, from left to right.
    With one node per position, viterbi and lookahead are both greedy decoding."""
    infill: tuple[int, float] | None = None
    """(k, r): once a share r of the block is known, fill gaps
    of at most k tokens between known ones in the same pass."""
    padded: bool = False
    """For models fine-tuned on pairs, whose targets are padded with end-of-text.
    After an end-of-text, all remaining positions are filled with it, and the confidence
    sampler prefers any other token to an end-of-text as the one token that it always keeps."""
    top_p: float = 0.9
    """Nucleus sampling: draw from the smallest set of tokens whose probability reaches top_p."""
    top_k: int | None = None
    """Draw only from the k most probable tokens; applied before top_p. None: no limit."""
    temperature: float = 1.0
    """Divides the logits before a token is drawn; 0 takes the most probable token.
    Even at 0, the order of the tokens and DA-DLM's path
    are random (but repeatable with the same seed)."""
    nucleus: Literal["standard", "bd3lm", "position"] = "standard"
    """The distribution that top_p and top_k are applied to.
    standard: the candidate on the path, as in the paper.
    position: all candidates of the position together (DA-DLM; standard at temperature 0).
    bd3lm: as standard, but also drops the token that crosses top_p, as BD3LM's code does.
    Unless given, the command line and the server use position for DA-DLM without edges."""

    shortlist: int | None = None
    """M, for models with token edges: draw a token only from the M most probable ones without
    edges and the most probable successors of the token to its left. None: the whole vocabulary.
    The paths viterbi and lookahead, and nucleus="position", always use the whole vocabulary."""

    tree: int | None = None
    """Mode lossless: number of nodes in the tree of drafted tokens that one cycle verifies.
    The text is that of mode ar with the same seed.
    0: a sampled chain, accepted with min(1, p/q), whose text is distributed as in mode ar.
    None: the size that proves fastest, or no drafts if drafting does not pay off."""
    drawn: bool = False
    """Mode lossless: sample the tokens of the tree and accept them as in a
    sampled chain. Above temperature 0 this gives more tokens per cycle, and a
    text with the same distribution as in mode ar. No effect at temperature 0."""
    one_pass: bool = False
    """Mode lossless, for models that draft for themselves (`causal_context`).
    The pass that verifies a draft also makes the next one, so a cycle takes one pass instead of two.
    Drafts are slightly worse, and time and memory of the pass grow by a block per node of the tree."""

    def __post_init__(self) -> None:
        for name, value in list(vars(self).items()):
            if getattr(value, "ndim", None) == 0:  # a number of numpy or torch
                object.__setattr__(self, name, value.item())
        _choice("mode", self.mode, get_args(Mode))
        _choice("sampler", self.sampler, tuple(SAMPLERS))
        _choice("path", self.path, ("sample", "viterbi", "lookahead"))
        _choice("nucleus", self.nucleus, ("standard", "bd3lm", "position"))
        for name in ("padded", "drawn", "one_pass"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} must be true or false, got {getattr(self, name)!r}")
        _within("top_p", self.top_p, 0, 1, open_low=True)
        _within("threshold", self.threshold, 0, 1)
        _within("transition_weight", self.transition_weight, 0, 1)
        _within("bound", self.bound, 0, 1_000_000)
        _within("temperature", self.temperature, 0, 100)
        for name in ("max_new_tokens", "steps", "top_k", "shortlist"):
            if getattr(self, name) is not None:
                _at_least_one(name, getattr(self, name))
        lossless = {"tree": self.tree is not None, "drawn": self.drawn, "one_pass": self.one_pass}
        for name in (name for name, is_given in lossless.items() if is_given):
            if self.mode != "lossless":
                raise ConfigError(f"{name} belongs to mode lossless, not to mode {self.mode}: leave it out")
            if self.tree is None:
                raise ConfigError(f"{name} describes the tree of mode lossless: give its size too (tree)")
        if self.tree is not None and (not _is_whole(self.tree) or not 0 <= self.tree <= MOST_NODES):
            raise ConfigError(f"tree must be a whole number from 0 to {MOST_NODES}, got {self.tree!r}")
        for name in {name for one in SAMPLERS.values() for name in one.options}:
            owners = [one.name for one in SAMPLERS.values() if name in one.options]
            if self.sampler in owners or getattr(self, name) == type(self).__dataclass_fields__[name].default:
                continue
            raise ConfigError(
                f"{name} belongs to the {' and '.join(owners)} sampler{'s' * (len(owners) > 1)}, and "
                f"{self.sampler} does not read it: leave it out, or choose the sampler {' or '.join(owners)}"
            )
        if self.infill is not None:
            if not isinstance(self.infill, tuple | list) or len(self.infill) != 2:
                raise ConfigError(f"infill takes a gap length k and a ratio r, got {self.infill!r}")
            _at_least_one("infill's gap length k", self.infill[0])
            _within("infill's ratio r", self.infill[1], 0, 1)

    @property
    def of_position(self) -> bool:
        """Tokens are drawn from the nucleus of their position, and there is one."""
        drawn = self.path == "sample" and self.temperature > 0
        return self.nucleus == "position" and drawn and (self.top_p < 1 or self.top_k is not None)

    def check(self, config: ModelConfig) -> None:
        """Refuse settings this model cannot follow."""
        if self.shortlist is not None and config.edge == "none":
            raise ConfigError(
                f"shortlist is {self.shortlist}, but this model has no token edges (edge none) and draws all "
                "tokens of a step at once; leave shortlist out"
            )
        if self.shortlist is not None and self.shortlist > config.mask_id:
            raise ConfigError(
                f"shortlist is {self.shortlist}, but this model has {config.mask_id} tokens to draw from; "
                "take fewer, or leave shortlist out to draw from all"
            )
        if self.mode != "diffusion" and config.family != "ar":
            raise ConfigError(
                f"mode {self.mode} is not decoded by a {config.family} model itself: pass "
                f"in_mode(model, {self.mode!r})"
            )
        if self.steps is not None and self.mode != "diffusion":
            raise ConfigError(f"steps has no meaning with mode {self.mode}: leave it out")
        if self.steps is not None and self.steps > config.block:
            raise ConfigError(
                f"steps is {self.steps}, but a block of this {config.family} model has {config.block} tokens "
                "and each step fixes at least one, so more steps than tokens cannot be"
            )

    def unread(self, config: ModelConfig) -> set[str]:
        """Names of settings that change nothing with this model and the other settings."""
        names = set()
        if self.mode == "ar" or config.family == "ar":
            names |= {"sampler", "steps", "threshold", "transition_weight", "bound", "infill", "padded"}
        if config.nodes_per_mask == 1:
            names |= {"transition_weight"} | ({"nucleus"} if self.nucleus == "position" else set())
        if self.path != "sample" or self.temperature == 0:
            names |= {"top_p", "top_k", "nucleus"}
        if self.path != "sample":
            names |= {"temperature"}
        if self.path != "sample" or (self.of_position and config.nodes_per_mask > 1):
            names |= {"shortlist"}
        return names

    def new_tokens(self, prompt: int, config: ModelConfig) -> int:
        """How many tokens follow a prompt of so many; the context bounds both together."""
        room = config.context - prompt
        if room < 1:
            raise ConfigError(
                f"the prompt has {prompt} tokens; the context of {config.context} must leave room for more"
            )
        if self.max_new_tokens is None:
            return min(128, room)
        if self.max_new_tokens > room:
            raise ConfigError(
                f"max_new_tokens is {self.max_new_tokens}, but after a prompt of {prompt} tokens "
                f"the context of {config.context} leaves {room}"
            )
        return self.max_new_tokens


class DecodeOptions(TypedDict, total=False):
    """The fields of `DecodeSettings` as keyword arguments, for editors and type checkers."""

    max_new_tokens: int | None
    mode: Mode
    sampler: SamplerName
    steps: int | None
    threshold: float
    transition_weight: float
    bound: float
    path: Literal["sample", "viterbi", "lookahead"]
    infill: tuple[int, float] | None
    padded: bool
    top_p: float
    top_k: int | None
    temperature: float
    nucleus: Literal["standard", "bd3lm", "position"]
    shortlist: int | None
    tree: int | None
    drawn: bool
    one_pass: bool


def settings_for(config: ModelConfig, named: Mapping[str, Any]) -> DecodeSettings:
    """Settings with what is named; for the rest, what suits the model (docs/models.md): a block in half as
    many dilated steps as it has tokens, and DA-DLM without edges with the nucleus of the position."""
    suited: dict[str, Any] = {}
    if config.denoises_blocks and named.get("mode", "diffusion") == "diffusion":
        suited["sampler"] = named.get("sampler", SUITED_SAMPLER)
        sampler = SAMPLERS.get(suited["sampler"])
        if sampler is not None and "steps" in sampler.options:
            suited["steps"] = max(1, config.block // 2)
        if config.nodes_per_mask > 1 and config.edge == "none":  # with edges it takes twice the time
            suited["nucleus"] = "position"
    return DecodeSettings(**(suited | dict(named)))


def _choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"unknown {name} {value!r}; choose one of {', '.join(allowed)}")


def _at_least_one(name: str, value: object) -> None:
    if not _is_whole(value) or value < 1:
        raise ConfigError(f"{name} must be a whole number of at least 1, got {value!r}")


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _within(name: str, value: float, low: float, high: float, open_low: bool = False) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not (low < value if open_low else low <= value) or not value <= high:
        raise ConfigError(f"{name} must be in {'(' if open_low else '['}{low}, {high}], got {value!r}")
