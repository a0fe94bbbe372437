"""What some clients want to know of a step: its graph, and how probable its tokens were.

Only the rows that ask are looked at.
"""

from dataclasses import fields, replace

import torch

from dadlm.decode.events import StepEvent, event_of
from dadlm.decode.predict import Prediction, at_path
from dadlm.decode.samplers import Block
from dadlm.decode.step import Step
from dadlm.model import Model
from dadlm.serve.request import TokenLogprob
from dadlm.serve.text import text_of

_TOKENS_SHOWN = 3  # per node
_DIGITS = 5  # of a probability: a step is mostly these, and nobody sees more


def row_of_step(step: Step, row: int, width: int) -> Step:
    """One row of a step; `width` leaves out the padding of a shorter MDLM window."""

    def cut(x: torch.Tensor) -> torch.Tensor:
        return x[row : row + 1] if x.dim() == 1 else x[row : row + 1, :width]

    block = Block(**{field.name: cut(getattr(step.block, field.name)) for field in fields(Block)})
    prediction = Prediction(
        *(cut(getattr(step.prediction, field.name)) for field in fields(Prediction)),
    )
    names = ("path", "kept", "infilled", "at", "ids")
    return replace(
        step, block=block, prediction=prediction, **{name: cut(getattr(step, name)) for name in names}
    )


def trace(model: Model, step: Step) -> StepEvent:
    event = event_of(model, step, _TOKENS_SHOWN)
    top = [
        [[(id_, text, round(p, _DIGITS)) for id_, text, p in node] for node in group]
        for group in event.top_tokens
    ]
    transition = [[[round(p, _DIGITS) for p in row] for row in rows] for rows in event.transition]
    return replace(event, top_tokens=top, transition=transition)


@torch.inference_mode()
def logprobs(model: Model, step: Step, count: int) -> dict[int, TokenLogprob]:
    """Of the tokens that a step of one row has fixed, by place in the block."""
    place = step.kept[0].nonzero().squeeze(1)
    path = step.path[0, place]
    hidden = at_path(step.prediction.hidden, step.path)[0, place]
    logp = model.head.token_logits(hidden, path).log_softmax(-1)
    # Ties go to the lowest id, as everywhere.
    best = logp.sort(dim=-1, descending=True, stable=True)
    tokens = step.ids[0, place]
    own = logp.gather(1, tokens[:, None]).squeeze(1).tolist()

    def text(token: int) -> str:
        return text_of(model.tokenizer, [token])

    columns = zip(
        *(place.tolist(), tokens.tolist(), own),
        *(best.indices[:, :count].tolist(), best.values[:, :count].tolist()),
        strict=True,
    )
    return {
        at: TokenLogprob(token, text(token), p, [(i, text(i), q) for i, q in zip(ids, ps, strict=True)])
        for at, token, p, ids, ps in columns
    }
