"""Conditional block reconstruction, the paper's language-modelling metric, alone or paired.

Two models with the same block size see the same blocks, masks and weights, so the variance that they share
cancels in the difference.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dadlm.errors import ConfigError
from dadlm.evaluate.intervals import bootstrap
from dadlm.evaluate.scores import block_of, finite, score_batch
from dadlm.evaluate.subject import describe
from dadlm.evaluate.text import about, check_length, documents_of, take
from dadlm.evaluate.work import Work
from dadlm.model import Model, eval_mode
from dadlm.tokens import Rows

NOTE = (
    "Scored are the first rows, as training reads the text it validates on; intervals draw whole documents."
)


def reconstruction(
    model: Model,
    rows: Rows,
    *,
    against: Model | None = None,
    count: int | None = None,
    seed: int = 0,
    batch_size: int = 16,
    out: str | Path | None = None,
    quiet: bool = True,
    data: Mapping[str, Any] | None = None,
    names: tuple[str, str] = ("", ""),
) -> dict[str, Any]:
    """Nats per token of the first `count` rows, and the paired difference to `against`.

    The first ones, not any: so it is the value that validation shows while a model is trained. Differences of
    the reconstruction and of the valid bound are negative where `model` is better. `data` is what `rows_of`
    says of the rows.
    """
    models = [model] if against is None else [model, against]
    for one in models:
        if one.config.family == "ar":
            raise ConfigError("an AR model masks no blocks to reconstruct: use `dadlm evaluate perplexity`")
        check_length(one, rows.context)
    check_tokenizers(models)
    count = take(rows, count)
    subject = {
        "model": describe(model, names[0]),
        "against": None if against is None else describe(against, names[1]),
        "data": about(rows, (data or {}).get("source"), range(count)),
        "seed": seed,
        "count": count,
    }
    keys = [str(row) for row in range(count)]
    with Work("reconstruction", subject, out, quiet) as work:
        for batch in work.batches(keys, batch_size, "reconstruction"):
            work.add(zip(batch, _pieces(models, rows, batch, count, seed), strict=True))
        values = torch.tensor(work.values(keys), dtype=torch.float64)
        groups = documents_of(rows.cut(0, count), model.config.eot_id)
        result = _one(values[:, 0], groups)
        result |= dict.fromkeys(("against_value", "difference", "bound_difference", "same_masks"))
        if against is not None:
            result |= {f"against_{name}": value for name, value in _one(values[:, 1], groups).items()}
            for name, kind in (("difference", 0), ("bound_difference", 1)):
                result[name] = asdict(bootstrap(values[:, 0, kind] - values[:, 1, kind], groups))
            result["same_masks"] = block_of(model, rows.context) == block_of(against, rows.context)
        result |= {"tokens": count * (rows.context - 1), "groups": len(groups.unique()), "note": NOTE}
        return work.finish(result)


def check_tokenizers(models: list[Model]) -> None:
    """Nats per token can be compared only over the same tokens."""
    tokenizers = [(one.tokenizer, one.config.vocab_size) for one in models]
    if tokenizers[0] != tokenizers[-1]:
        raise ConfigError(
            "the two models have different tokenizers, so nats per token cannot be compared: "
            "train both with the same one, or compare bits per byte of `dadlm evaluate perplexity`"
        )


def _pieces(models: list[Model], rows: Rows, keys: list[str], count: int, seed: int) -> list[Any]:
    """[reconstruction, bound] of each model, for each of the rows: [R][M][2]."""
    index = torch.tensor([int(key) for key in keys])
    with eval_mode(*models), torch.no_grad():
        scores = [score_batch(one, rows.batch(index), index, count, seed)[:2] for one in models]
    return finite(torch.stack([torch.stack(pair) for pair in scores])).permute(2, 0, 1).tolist()


def _one(values: Tensor, groups: Tensor) -> dict[str, Any]:
    """One model's part of the result, from its [reconstruction, bound] of each row."""
    interval = bootstrap(values[:, 0], groups)
    bound = float(values[:, 1].mean())
    # Rows first: for factorised models the gap is then exactly 0, not a rounding error.
    gap = float((values[:, 1] - values[:, 0]).mean())
    return {"value": interval.mean, "interval": asdict(interval), "gap": gap, "bound": bound}
