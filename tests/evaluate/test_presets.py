"""The paper's grids row by row, the quick one, and configurations as words."""

import pytest
from tests.decode.test_tpf import PAPER

from dadlm import ModelConfig
from dadlm.decode import DecodeSettings
from dadlm.errors import ConfigError
from dadlm.evaluate.presets import Configuration, configurations_for, default_prompt_tokens, parse
from dadlm.evaluate.report import subjects


def model(block: int, family: str = "dadlm") -> ModelConfig:
    return ModelConfig(family=family, block_size=block, context=64)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [16, 8, 4])
@pytest.mark.parametrize("family", ["bd3lm", "dadlm"])
def test_the_papers_grids_are_all_rows_of_its_tables(size: int, family: str) -> None:
    """Against the table of the TPF tests, which stands there independently."""
    grid = configurations_for(model(size, family), ["paper"])
    assert configurations_for(model(size, family), [f"paper-{size}"]) == grid
    found = [(size, one.settings.steps, one.settings.infill) for one in grid]
    assert sorted(found, key=str) == sorted((key for key in PAPER if key[0] == size), key=str)
    for one in grid:
        assert one.settings.sampler == ("first-hitting" if one.settings.steps is None else "random")
        assert (one.settings.top_p, one.settings.path, one.settings.temperature) == (0.9, "sample", 1.0)
    assert len({one.label for one in grid}) == len(grid) == {16: 15, 8: 15, 4: 13}[size]


def test_labels_are_short_and_tell_apart() -> None:
    labels = [one.label for one in configurations_for(model(16), ["paper"])]
    assert labels[:5] == ["FH", "FH infill 2 0.5", "FH infill 2 0", "FH infill 3 0.5", "T=16"]
    for word, label, settings in (
        ("conf=0.9", "conf 0.9", {"sampler": "confidence", "threshold": 0.9}),
        (
            "D=4/nucleus=position",
            "D=4 nucleus position",
            {"sampler": "dilated", "steps": 4, "nucleus": "position"},
        ),
        ("H=0.25", "H=0.25", {"sampler": "entropy", "bound": 0.25}),
        ("T=8/infill=2,0.5", "T=8 infill 2 0.5", {"sampler": "random", "steps": 8, "infill": (2, 0.5)}),
        ("FH/path=viterbi", "FH path viterbi", {"path": "viterbi"}),
        ("FH/top_p=0.5/padded=1", "FH top_p 0.5 padded 1", {"top_p": 0.5, "padded": True}),
        ("FH/top_k=50", "FH top_k 50", {"top_k": 50}),
    ):
        assert parse(word) == Configuration(DecodeSettings(**settings)) and parse(word).label == label


@pytest.mark.parametrize("block", [1, 2, 4, 5, 16])
@pytest.mark.parametrize("family", ["mdlm", "bd3lm", "dadlm"])
def test_quick_suits_every_model(block: int, family: str) -> None:
    config = ModelConfig(family=family, block_size=block, context=80)  # type: ignore[arg-type]
    grid = configurations_for(config, ["quick"])
    assert len(grid) == 3
    for one in grid:
        one.settings.check(config)


def test_an_ar_model_decodes_one_way_only() -> None:
    for wanted in (["paper"], ["quick", "T=8"]):
        (only,) = configurations_for(model(16, "ar"), wanted)
        assert (only.denoising, only.label, only.settings) == ("AR", "AR", DecodeSettings())
    # It draws as the grid does.
    mine = Configuration(DecodeSettings(sampler="random", steps=2, top_p=0.5, temperature=0.7))
    (only,) = configurations_for(model(16, "ar"), ["T=8/top_p=0.5/temperature=0.7/infill=2,0.5", mine])
    assert only.settings == DecodeSettings(top_p=0.5, temperature=0.7)
    assert (only.denoising, only.label) == ("AR", "AR top_p 0.5 temperature 0.7")
    (only,) = configurations_for(model(16, "ar"), ["T=8/top_p=0.5", "paper"])  # the paper's has 0.9
    assert only.settings == DecodeSettings()


def test_a_fingerprint_is_of_all_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of those that a label leaves out."""
    some = [Configuration(DecodeSettings(mode=mode)) for mode in ("ar", "diffusion")]
    assert some[0].label == some[1].label == "FH"
    assert some[0].fingerprint != some[1].fingerprint == parse("FH").fingerprint


def test_each_configuration_comes_once_in_the_order_asked_for() -> None:
    mine = Configuration(DecodeSettings(sampler="random", steps=2))
    grid = configurations_for(model(4), ["T=3", "FH", "quick", mine, "T=3"])
    assert [one.label for one in grid] == ["T=3", "FH", "FH infill 2 0.5", "T=2"]


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("slow", "unknown configuration 'slow'.*paper-16.*T=8, D=8"),
        ("T", "'' is not a whole number"),
        ("T=x", "'x' is not a whole number"),
        ("T=0", "steps must be .*at least 1"),
        ("T=5", "steps is 5.*4 tokens"),
        ("paper-16", "steps is 16.*4 tokens"),
        ("conf=2", "threshold"),
        ("FH/infill=2", "'' is not a number"),
        ("FH/infill=0,0.5", "gap length"),
        ("FH/infill=2,0.5/infill=3,0.5", "infill twice"),
        ("FH/wings=2", "unknown configuration 'FH/wings=2'"),
        ("FH/path=long", "unknown path 'long'"),
        ("T=2/steps=3", "steps twice"),
    ],
)
def test_bad_words_are_refused(word: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        configurations_for(model(4), [word])


def test_no_grid_for_other_block_sizes() -> None:
    with pytest.raises(ConfigError, match=r"16, 8, 4.*blocks of 2: use quick"):
        configurations_for(model(2), ["paper"])
    with pytest.raises(ConfigError, match="mdlm"):
        configurations_for(ModelConfig(family="mdlm", context=16), ["paper"])
    with pytest.raises(ConfigError, match="no configurations"):
        configurations_for(model(2), [])


def test_prompts_are_the_papers_or_half_of_a_small_context() -> None:
    assert [default_prompt_tokens(context) for context in (1024, 128, 127, 32)] == [64, 64, 63, 16]


def test_ways_to_denoise_stand_from_many_steps_to_few() -> None:
    words = ["FH", "T=16", "T=8", "T=2", "D=16", "D=8", "D=2", "H=0.5"]
    keys = [subjects.read_key(parse(word).label) for word in words]
    assert sorted({*keys}, key=subjects.rank_key) == keys
