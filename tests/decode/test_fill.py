"""Gaps in a text: against the long way round, against completion, and who sees what."""

import pytest
from tests.decode.naive import Draw, Ids, Naive
from tests.decode.test_generate import SETTINGS
from tests.decode.tiny import prompt_of, silence_eot, tiny

from dadlm import ConfigError, DecodeSettings, Model, generate
from dadlm.decode import fill_gaps
from dadlm.decode.engine import Engine
from dadlm.decode.request import Request

N = 4
FAMILIES = ("mdlm", "bd3lm", "dadlm")
TEXT = prompt_of(30)
GAPS = [(3, 2), (5, 4), (20, 3), (28, 2)]


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    return {family: tiny(family, block=N) for family in FAMILIES}


def naive_fill(model: Model, seed: int, settings: DecodeSettings) -> tuple[list[int], int]:
    """Block by block from the first gap on; what lies behind the text is masked, written and cut off."""
    naive = Naive(model)
    size = len(TEXT) if model.config.family == "mdlm" else N
    holes = {p for first, length in GAPS for p in range(first, first + length)}
    width = -(-len(TEXT) // size) * size
    text: Ids = [None if p in holes or p >= len(TEXT) else TEXT[p] for p in range(width)]
    passes = 0
    steps = settings.steps or (len(holes) if model.config.family == "mdlm" else N)
    for first in range(0, width, size):
        step, before = 0, [id_ for id_ in text[:first] if id_ is not None]
        while None in (block := text[first : first + size])[: len(TEXT) - first]:
            draw = Draw(seed, first // size, step)
            text[first : first + size], step = naive.step(before, block, draw, settings, steps)
            passes += 1
    return [id_ for id_ in text[: len(TEXT)] if id_ is not None], passes


@pytest.mark.parametrize("options", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_long_way_round_gives_the_same(models, family: str, options: dict):
    filled = fill_gaps(models[family], TEXT, GAPS, seed=5, **options)
    assert (filled.tokens, filled.forward_passes) == naive_fill(models[family], 5, DecodeSettings(**options))
    assert filled.gaps == [filled.tokens[first : first + length] for first, length in GAPS]


def test_without_the_cache_it_is_the_same(models):
    settings = DecodeSettings(sampler="random", steps=2)
    engine = Engine(models["dadlm"], cached=False)
    row = engine.add(Request(ids=tuple(TEXT), gaps=tuple(GAPS), settings=settings, seed=1))
    while engine.rows:
        engine.step()
    assert row.tokens == fill_gaps(models["dadlm"], TEXT, GAPS, seed=1, settings=settings).tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_a_gap_at_the_end_is_a_completion(family: str):
    model = silence_eot(tiny(family, block=N))
    filled = fill_gaps(model, TEXT, [(9, 21)], seed=2, sampler="random")
    completed = generate(model, TEXT[:9], max_new_tokens=21, seed=2, sampler="random")
    assert filled.gaps == completed.tokens
    assert (filled.forward_passes, filled.cache_passes) == (
        completed.forward_passes[0],
        completed.cache_passes[0],
    )


def changed(position: int) -> list[int]:
    return [(id_ + 1) % 28 if p == position else id_ for p, id_ in enumerate(TEXT)]


def filled_with(model: Model, text: list[int]) -> list[list[int]]:
    """A gap in a block of its own, many times over."""
    return [fill_gaps(model, text, [(9, 2)], seed=seed).gaps[0] for seed in range(10)]


@pytest.mark.parametrize("family", ("bd3lm", "dadlm"))
def test_a_block_sees_what_is_before_it_and_inside_it(models, family: str):
    plain = filled_with(models[family], TEXT)
    assert filled_with(models[family], changed(12)) == plain  # the block behind
    assert filled_with(models[family], changed(11)) != plain  # the same block, behind the gap
    assert filled_with(models[family], changed(2)) != plain


def test_mdlm_sees_the_whole_text(models):
    assert filled_with(models["mdlm"], changed(25)) != filled_with(models["mdlm"], TEXT)


def test_what_cannot_be_filled_is_refused(models):
    with pytest.raises(ConfigError, match="never sees what follows"):
        fill_gaps(tiny("ar"), TEXT, GAPS)
    for gaps in ([(0, 2)], [(3, 0)], [(29, 2)], [(5, 3), (7, 2)]):
        with pytest.raises(ConfigError, match="gap"):
            fill_gaps(models["bd3lm"], TEXT, gaps)
    for odd in ([(2.5, 1)], [2], [("a", 1)], [(2, 1, 3)]):
        with pytest.raises(ConfigError, match="two whole numbers"):
            fill_gaps(models["bd3lm"], TEXT, odd)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no gaps"):
        fill_gaps(models["bd3lm"], TEXT, [])
    with pytest.raises(ConfigError, match="max_new_tokens belongs to completions"):
        fill_gaps(models["bd3lm"], TEXT, GAPS, max_new_tokens=3)
    with pytest.raises(ConfigError, match="shorten"):
        fill_gaps(models["bd3lm"], prompt_of(65), [(3, 2)])


def test_a_gap_may_hold_anything_even_the_mask_token(models) -> None:
    model, holes = models["dadlm"], {p for first, length in GAPS for p in range(first, first + length)}
    masked = [model.config.mask_id if p in holes else id_ for p, id_ in enumerate(TEXT)]
    assert fill_gaps(model, masked, GAPS, seed=1).tokens == fill_gaps(model, TEXT, GAPS, seed=1).tokens
