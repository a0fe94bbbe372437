"""One denoising step as plain data: for `stream`, the terminal, pictures and, as JSON, for other programs.

N block size, K candidates, V vocabulary without the mask, m tokens shown per node.
"""

from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from dadlm.decode.predict import at_path
from dadlm.decode.step import Step
from dadlm.errors import ConfigError
from dadlm.model import Model
from dadlm.model.edge import left_of


@dataclass(frozen=True)
class StepEvent:
    """A step of one row's block, as it entered the step and what came of it."""

    block: int
    """Index of the block in the text."""
    step: int
    """Denoising step inside the block."""
    ids: list[int]
    """[N]: tokens after the step; the mask id where undecided."""
    texts: list[str]
    """[N]: the same tokens as people read them; "" where undecided."""
    anchor: list[bool]
    """[N]: known before the step."""
    top_tokens: list[list[list[tuple[int, str, float]]]]
    """[N][K][m]: most probable (id, text, probability) of each node, without token edges; an anchor has its
    own token."""
    transition: list[list[list[float]]]
    """[N][K][K]: probability from node j of the group before to node k."""
    path: list[int]
    """[N]: the chosen node of each group."""
    fixed: list[bool]
    """[N]: decided in this step."""
    infilled: list[bool]
    """[N]: decided because they lay in a short gap."""
    drawn: list[int | None]
    """[N]: the token that was drawn on the path, kept or not; None where none was."""
    drawn_texts: list[str]
    """[N]: the same tokens as people read them; "" where none was drawn."""
    probability: list[float | None]
    """[N]: of that token by its node, given the token to its left; untempered."""
    alone: list[float | None]
    """[N]: the same without token edges; for a model that has none, the same number."""

    @property
    def has_edges(self) -> bool:
        """Some token was more or less probable for the one to its left."""
        return self.probability != self.alone

    def to_json(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def _repr_svg_(self) -> str | None:
        """Notebooks draw the graph, if matplotlib is there."""
        from dadlm.decode.picture import svg_of

        with suppress(ConfigError):
            return svg_of(self)


@dataclass(frozen=True)
class CycleEvent:
    """A draft and what became of it: the tokens on the way that the target took, and on the likeliest way
    from where it left the draft."""

    block: int
    """Number of the cycle."""
    step: int
    """0: a cycle has one."""
    drafted: list[int]
    drafted_texts: list[str]
    accepted: list[bool]
    """Of `drafted`; the target's own token follows those that were accepted."""

    def to_json(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


@torch.inference_mode()
def event_of(model: Model, step: Step, tokens: int, row: int = 0) -> StepEvent:
    """The event of one row of a step."""
    block = step.block
    ids = torch.where(block.masked & ~step.kept, model.config.mask_id, step.ids)[row].tolist()
    return StepEvent(
        block=int(block.number[row]),
        step=int(step.at[row]),
        ids=ids,
        texts=["" if id_ == model.config.mask_id else token_text(model, id_) for id_ in ids],
        anchor=(~block.masked[row]).tolist(),
        top_tokens=_top_tokens(model, step, tokens, row),
        transition=step.prediction.transition_logp[row].exp().tolist(),
        path=step.path[row].tolist(),
        fixed=step.kept[row].tolist(),
        infilled=step.infilled[row].tolist(),
        **_drawn(model, step, row),
    )


def logits_at(model: Model, step: Step, row: int, place: Tensor, edges: bool = True) -> Tensor:
    """Logits [n, V] of the path's nodes at some positions [n] of a row, given the tokens to their left as
    they were drawn, or without token edges."""
    hidden, node = at_path(step.prediction.hidden, step.path)[row, place], step.path[row, place]
    left, before = None, step.prediction.before
    if edges and before is not None:
        tokens = torch.where(step.drawn, step.tokens, step.ids)[row]
        left = left_of(tokens, step.block.masked[row], before[row], model.config.mask_id)
        left = left.map(lambda x: x[place])
    return model.head.token_logits(hidden, node, left)


def _drawn(model: Model, step: Step, row: int) -> dict[str, list]:
    """The drawn tokens of a row with their probabilities, as an event has them."""
    place = step.drawn[row].nonzero().squeeze(1)
    tokens = step.tokens[row, place]

    def column(values: Tensor) -> list:
        found = dict(zip(place.tolist(), values.tolist(), strict=True))
        return [found.get(i) for i in range(step.drawn.shape[1])]

    def said(edges: bool) -> list[float | None]:
        probability = logits_at(model, step, row, place, edges).softmax(-1)
        return column(probability.gather(1, tokens[:, None]).squeeze(1))

    drawn = column(tokens)
    texts = ["" if id_ is None else token_text(model, id_) for id_ in drawn]
    return {
        "drawn": drawn,
        "drawn_texts": texts,
        "probability": said(edges=True),
        "alone": said(edges=False),
    }


def _top_tokens(model: Model, step: Step, tokens: int, row: int) -> list[list[list[tuple[int, str, float]]]]:
    masked = step.block.masked[row]
    probability = step.prediction.logits_of(model, row, masked).softmax(-1)  # of the open positions alone
    values, indices = best_of(probability, min(tokens, probability.shape[-1] - 1))  # all but the mask
    found = zip(indices.tolist(), values.tolist(), strict=True)
    groups = []
    for id_, is_open in zip(step.block.ids[row].tolist(), masked.tolist(), strict=True):
        if not is_open:
            groups.append([[(id_, token_text(model, id_), 1.0)]] + [[] for _ in range(indices.shape[1] - 1)])
            continue
        groups.append(
            [
                [(id_, token_text(model, id_), p) for id_, p in zip(ids, ps, strict=True)]
                for ids, ps in zip(*next(found), strict=True)
            ]
        )
    return groups


def best_of(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest of the last dimension and their places, [..., count] each; ties go to the first.

    A few are looked for one after the other: to sort a vocabulary takes ten times as long.
    """
    if count > 8:
        ordered = values.sort(dim=-1, descending=True, stable=True)
        return ordered.values[..., :count], ordered.indices[..., :count]
    rest, found = values.clone(), []
    for _ in range(count):
        found.append(rest.max(-1, keepdim=True))
        rest.scatter_(-1, found[-1].indices, -torch.inf)
    if not found:
        return values[..., :0], values[..., :0].long()
    return torch.cat([one.values for one in found], -1), torch.cat([one.indices for one in found], -1)


def token_text(model: Model, id_: int) -> str:
    """How a token is shown to people."""
    return str(id_) if model.tokenizer is None else model.tokenizer.token_text(id_)
