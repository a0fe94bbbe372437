"""One denoising step of rows that each have settings of their own: `block.denoise_step` for mixed company.

The settings are tensors, so that one step, and on CUDA one captured graph, serves whoever is there. Each row
gets to the bit what it would get alone. On CUDA nothing waits for the device.

B rows, N block size, K candidates.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from dadlm import counter, dag
from dadlm.decode import remask
from dadlm.decode.block import Block, Step, choose_best, composite, settle
from dadlm.decode.infill import short_gaps
from dadlm.decode.inside import draw_inside
from dadlm.decode.places import places, put
from dadlm.decode.predict import Prediction, Predictor, at_path
from dadlm.decode.sample import draw_each
from dadlm.decode.settings import DecodeSettings
from dadlm.model import Model

Choice = tuple[Tensor, Tensor, Tensor]
"""Paths, tokens and their probabilities, [B, N] each."""


@dataclass(frozen=True)
class Mixed:
    """`DecodeSettings` of B rows as tensors [B]; numbers in fp64, and rounded where a single one would be."""

    random: Tensor
    confidence: Tensor
    best: Tensor
    """No path is drawn: the best one is taken, of the block or (ahead) node after node."""
    ahead: Tensor
    padded: Tensor
    standard: Tensor
    """Nucleus rule."""
    position: Tensor
    """Tokens from the nucleus of their position."""
    longest: Tensor
    """Infilling's k; 0: none."""
    ratio: Tensor
    threshold: Tensor
    transition_weight: Tensor
    temperature: Tensor
    top_p: Tensor

    @classmethod
    def of(cls, settings: Sequence[DecodeSettings], device: torch.device | str = "cpu") -> "Mixed":
        columns = list(zip(*map(_numbers, settings), strict=True))
        numbers = torch.tensor(columns, dtype=torch.float64).to(device)  # one copy for all
        return cls(*(x.to(_dtype(column[0])) for x, column in zip(numbers, columns, strict=True)))

    def __getitem__(self, rows: slice) -> "Mixed":
        return Mixed(*(getattr(self, field.name)[rows] for field in fields(self)))

    def put(self, rows: Tensor, other: "Mixed") -> None:
        """Replace the settings of some rows, in place."""
        for field in fields(self):
            getattr(self, field.name)[rows] = getattr(other, field.name)


def _numbers(settings: DecodeSettings) -> tuple[bool | int | float, ...]:
    longest, ratio = settings.infill or (0, 0.0)
    return (
        settings.sampler == "random",
        settings.sampler == "confidence",
        settings.path != "sample",
        settings.path == "lookahead",
        settings.padded,
        settings.nucleus != "bd3lm",
        settings.of_position,
        min(longest, 2**31),  # no gap is longer
        float(ratio),
        float(settings.threshold),
        float(settings.transition_weight),
        float(settings.temperature),
        float(settings.top_p),
    )


def _dtype(number: bool | int | float) -> torch.dtype:
    return {bool: torch.bool, int: torch.int64, float: torch.float64}[type(number)]


@dataclass(frozen=True)
class Features:
    """What a step must be able to do: known before it, so that no row pays for what none asks for."""

    drawn: bool
    """Some row draws its path and tokens."""
    viterbi: bool
    """Some row takes the best path of its block, for which every node's tokens are looked at."""
    ahead: bool
    """Some row takes the best node after each node."""
    position: bool
    """Some row draws from the nucleus of positions, for which those of all candidates are."""
    wide: bool
    """Some row may keep several tokens in a step, or looks at how sure they are."""
    cold: bool
    """Some row has temperature 0."""
    padded: bool
    """Nothing follows the end of some row."""

    @classmethod
    def of(cls, settings: Sequence[DecodeSettings]) -> "Features":
        return cls(
            drawn=any(one.path == "sample" for one in settings),
            viterbi=any(one.path == "viterbi" for one in settings),
            ahead=any(one.path == "lookahead" for one in settings),
            position=any(one.of_position for one in settings),
            wide=any(one.sampler != "first-hitting" or one.infill is not None for one in settings),
            cold=any(one.temperature == 0 for one in settings),
            padded=any(one.padded for one in settings),
        )


def denoise_mixed(
    model: Model, predictor: Predictor, block: Block, mixed: Mixed, features: Features, fixed: bool
) -> tuple[Block, Step]:
    """Predict the graphs, choose paths and tokens, keep some of them, remask the rest.

    `fixed`: no shape depends on the data.
    """
    prediction = predictor.predict(block.ids, block.masked, block.first)
    infilled = short_gaps(block.masked, block.inside, mixed.longest[:, None], mixed.ratio[:, None].float())
    kept, at = _keep(block, infilled, mixed)
    sure_first = mixed.confidence[:, None]
    wanted = torch.where(sure_first, block.masked, kept)
    path, drawn, emitted = _choose(model, prediction, block, wanted, mixed, features, fixed)
    padded = mixed.padded[:, None] if features.padded else False
    if features.wide:
        weight, threshold = mixed.transition_weight[:, None], mixed.threshold[:, None].float()
        sure = composite(emitted, prediction.transition_logp, path, weight)
        ending = block.ends & (drawn == model.config.eot_id) & padded if features.padded else None
        sure_enough = remask.confident(block.masked, infilled, sure, threshold, ending)
        kept = torch.where(sure_first, sure_enough, kept)
    ids = torch.where(kept, drawn, block.ids)
    ids, kept = settle(block, ids, kept, model.config.eot_id, padded)
    after = replace(block, ids=ids, masked=block.masked & ~kept, step=at + 1)
    return after, Step(block, prediction, path, kept, infilled, at, ids)


def _keep(block: Block, infilled: Tensor, mixed: Mixed) -> tuple[Tensor, Tensor]:
    """What the samplers that do not look at the tokens keep [B, N], and the step it happens at [B]."""
    one = remask.first_hitting(block.masked, infilled, block.seed, block.number, block.step)
    share, at = remask.random(block.masked, infilled, block.reveal, block.step)
    return torch.where(mixed.random[:, None], share, one), torch.where(mixed.random, at, block.step)


def _choose(
    model: Model,
    prediction: Prediction,
    block: Block,
    wanted: Tensor,
    mixed: Mixed,
    features: Features,
    fixed: bool,
) -> Choice:
    """As `block.choose`: paths [B, N], tokens [B, N] and untempered probabilities [B, N] where wanted."""

    def best(rows: Tensor | slice) -> Choice:
        ahead = mixed.ahead[rows, None] if features.viterbi and features.ahead else features.ahead
        return choose_best(model, prediction[rows], block.masked[rows], ahead)

    if not features.drawn:
        return best(slice(None))
    B, N = wanted.shape
    room = (B * N if features.wide else B) if fixed else None
    of_path, uniform = block.uniform(counter.PATH), block.uniform(counter.TOKEN)
    position = features.position and prediction.hidden.shape[2] > 1  # else a position is its candidate
    later = mixed.best | mixed.position if position else mixed.best
    path = dag.sample_path(prediction.transition_logp, of_path)
    place = places(wanted & ~later[:, None], room)
    some = place.clamp(max=B * N - 1)
    hidden, node, row = at_path(prediction.hidden, path).flatten(0, 1)[some], path.flatten()[some], some // N
    logits = model.head.token_logits(hidden, node)
    how = (mixed.temperature[row], mixed.top_p[row], mixed.standard[row])
    drawn = draw_each(logits, uniform.flatten()[some], *how, cold=features.cold)
    tokens, emitted = put(drawn, place, wanted), torch.zeros_like(wanted, dtype=torch.float32)
    if features.wide:
        probability = logits.softmax(-1).gather(-1, drawn[:, None]).squeeze(-1)
        emitted = put(probability, place, wanted)
    found: Choice = (path, tokens, emitted)
    if features.viterbi or features.ahead:
        found = _replaced(found, mixed.best, fixed, best)
    if position:

        def inside(rows: Tensor) -> Choice:
            numbers = of_path[rows], uniform[rows]
            heat, share = mixed.temperature[rows], mixed.top_p[rows]
            return draw_inside(model, prediction[rows], wanted[rows], numbers, heat, share, room)

        found = _replaced(found, mixed.position, fixed, inside)
    return found


def _replaced(found: Choice, which: Tensor, fixed: bool, choose_: Callable[[Tensor], Choice]) -> Choice:
    """What was found, but for rows `which` [B] as these choose.

    All their nodes go through the vocabulary head: the other rows are spared that where they can be.
    """
    rows = torch.arange(len(which), device=which.device) if fixed else which.nonzero().squeeze(1)
    path, tokens, emitted = (
        old.index_copy(0, rows, torch.where(which[rows, None], new, old[rows]))
        for old, new in zip(found, choose_(rows), strict=True)
    )
    return path, tokens, emitted
