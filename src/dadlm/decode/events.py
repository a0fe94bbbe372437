"""One denoising step as plain data: for `stream`, the terminal, pictures and, as JSON, for other programs.

N block size, K candidates, m tokens shown per node.
"""

from dataclasses import asdict, dataclass
from typing import Any

import torch

from dadlm.decode.step import Step
from dadlm.model import Model


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
    """[N][K][m]: most probable (id, text, probability) of each node; an anchor has its own token."""
    transition: list[list[list[float]]]
    """[N][K][K]: probability from node j of the group before to node k."""
    path: list[int]
    """[N]: the chosen node of each group."""
    fixed: list[bool]
    """[N]: decided in this step."""
    infilled: list[bool]
    """[N]: decided because they lay in a short gap."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


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
    )


def _top_tokens(model: Model, step: Step, tokens: int, row: int) -> list[list[list[tuple[int, str, float]]]]:
    probability = step.prediction.all_logits(model)[row].softmax(-1)
    ordered = probability.sort(dim=-1, descending=True, stable=True)  # ties go to the lowest id
    count = min(tokens, probability.shape[-1] - 1)  # all but the mask
    values, indices = ordered.values[..., :count].tolist(), ordered.indices[..., :count].tolist()
    groups = []
    for i, masked in enumerate(step.block.masked[row].tolist()):
        if not masked:
            known = int(step.block.ids[row, i])
            groups.append([[(known, token_text(model, known), 1.0)]] + [[] for _ in indices[i][1:]])
            continue
        groups.append(
            [
                [(id_, token_text(model, id_), p) for id_, p in zip(ids, ps, strict=True)]
                for ids, ps in zip(indices[i], values[i], strict=True)
            ]
        )
    return groups


def token_text(model: Model, id_: int) -> str:
    """How a token is shown to people."""
    return str(id_) if model.tokenizer is None else model.tokenizer.token_text(id_)
