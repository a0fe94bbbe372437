"""Engines that stay with their models between calls, captured graphs included."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

import torch

from dadlm.decode.engine import Engine
from dadlm.decode.lossless import LosslessEngine
from dadlm.decode.pair import target_and_draft
from dadlm.model import Mode, Model, in_mode
from dadlm.model.capture import empty_cache


def engine_of(
    model: Model, mode: Mode, draft: Model | str | None = None, cached: bool = True
) -> tuple[Model, AbstractContextManager[Engine]]:
    """The model that decides the texts of a mode, and its engine to borrow; `draft` is for mode lossless."""
    if mode == "lossless":
        target, drafting = target_and_draft(model, draft)
        return target, borrow_lossless(target, drafting)
    target = in_mode(model, mode)
    return target, borrow_engine(target, cached)


def borrow_engine(model: Model, cached: bool = True) -> AbstractContextManager[Engine]:
    """The engine that stays with the model between calls, captured graphs included, or another if it is in
    use."""
    kept = model.engines if cached else []
    return _borrowed(kept, lambda one: one.device == model.device, lambda: Engine(model, cached=cached))


def borrow_lossless(target: Model, draft: Model | None) -> AbstractContextManager[Engine]:
    """The same for the lossless mode: an engine for each draft model."""

    def fits(one: LosslessEngine) -> bool:
        return one.device == target.device and one.drafts_with(draft)

    return _borrowed(target.drafted_engines, fits, lambda: LosslessEngine(target, draft))


@contextmanager
def _borrowed(kept: list, fits: Callable[..., bool], make: Callable[[], Engine]) -> Iterator[Engine]:
    engine = None
    with suppress(IndexError):  # in one act: another thread may want it too
        engine = kept.pop()
    if engine is None or not fits(engine):
        engine = make()
    try:
        yield engine
    except torch.OutOfMemoryError:
        engine.release()
        raise
    finally:
        engine.clear()
        if not kept:
            kept.append(engine)


def release_engine(model: Model) -> None:
    """Give back the memory that decoding holds between calls: keys and values, and captured graphs."""
    for view in model.views:
        release_engine(view)
    for kept in (model.engines, model.drafted_engines):
        for engine in kept:
            engine.release()
        kept.clear()
    model.drop_constants()


def reserve_rows(engine: Engine, rows: int) -> int:
    """On a GPU, take the memory of so many rows now, or of fewer where that does not fit; how many it was."""
    while engine.device.type == "cuda":
        empty_cache()
        try:
            engine.reserve(rows)
            break
        except torch.OutOfMemoryError:
            if rows == 1:
                raise
            rows //= 2
    return rows
