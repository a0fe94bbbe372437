"""A name or folder in place of a model, methods of models, and options that say what they are."""

import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest
from tests.decode.tiny import prompt_of, tiny

import dadlm
from dadlm import ConfigError, DecodeOptions, DecodeSettings
from dadlm.decode import fill_gaps, named, release_models
from dadlm.errors import CheckpointError

PROMPT, HOW = prompt_of(6), {"max_new_tokens": 6, "seed": 2}


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Folders that were loaded."""
    found, load = [], named.load
    release_models()
    monkeypatch.setattr(named, "load", lambda folder, device: found.append(folder) or load(folder, device))
    return found


def test_a_folder_is_loaded_once_until_it_changes(tmp_path: Path, loads: list[Path], monkeypatch) -> None:
    first, second = tiny("dadlm"), tiny("dadlm", seed=1)
    dadlm.save(first, tmp_path / "model")
    expected = dadlm.generate(first, PROMPT, **HOW)
    assert dadlm.generate(tmp_path / "model", PROMPT, **HOW) == expected
    monkeypatch.chdir(tmp_path)
    assert dadlm.generate("./model", PROMPT, **HOW) == expected  # the same folder by another path
    events = list(dadlm.stream("./model", PROMPT, **HOW))
    assert len(events) == expected.forward_passes[0]
    ids = [*PROMPT, 1, 2]
    assert fill_gaps("./model", ids, [(2, 3)], seed=1) == fill_gaps(first, ids, [(2, 3)], seed=1)
    assert loads == [tmp_path / "model"]
    dadlm.save(second, tmp_path / "model")
    assert dadlm.generate("./model", PROMPT, **HOW) == dadlm.generate(second, PROMPT, **HOW) != expected


def test_few_models_are_kept(tmp_path: Path, loads: list[Path]) -> None:
    folders = [tmp_path / str(n) for n in range(6)]
    for folder in folders:
        dadlm.save(tiny("ar", layers=1), folder)
        dadlm.generate(folder, PROMPT, max_new_tokens=1)
    assert named._loaded.cache_info().currsize < 6


@pytest.mark.parametrize("name", ["dadlm-edges", "ar"])  # weights in two files, and in one
def test_a_name_that_ships(name: str, loads: list[Path]) -> None:
    text = dadlm.generate(name, "The city", max_new_tokens=3, seed=1).texts
    assert dadlm.generate(name, "The city", max_new_tokens=3, seed=1).texts == text and len(loads) == 1
    with pytest.raises(CheckpointError, match="Models that ship: dadlm-edges, "):
        dadlm.generate("no-such-model", "The city")


def test_methods_are_the_functions(tmp_path: Path) -> None:
    model = tiny("dadlm")
    assert model.generate(PROMPT, **HOW) == dadlm.generate(model, PROMPT, **HOW)
    assert [e.to_json() for e in model.stream(PROMPT, **HOW)] == [
        e.to_json() for e in dadlm.stream(model, PROMPT, **HOW)
    ]


def test_typed_options_are_the_fields_of_the_settings() -> None:
    assert get_type_hints(DecodeOptions) == get_type_hints(DecodeSettings)
    assert not DecodeOptions.__required_keys__


def test_an_unknown_option_is_told_the_nearest_and_all() -> None:
    with pytest.raises(ConfigError, match=r"topp; did you mean top_p\? Valid options: max_new_tokens, mode,"):
        tiny("ar").generate(PROMPT, topp=0.3)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"num_beams\. Valid options: .*shortlist"):
        dadlm.stream(tiny("ar"), PROMPT, num_beams=2)  # type: ignore[call-arg]


def test_evaluate_is_there_and_costs_nothing_until_it_is_used() -> None:
    program = (
        "import sys, dadlm; heavy = ('dadlm.evaluate', 'dadlm.train', 'transformers', 'datasets')\n"
        "assert not [name for name in heavy if name in sys.modules], 'imported at once'\n"
        "assert 'evaluate' in dir(dadlm); print(dadlm.evaluate.reconstruction.__module__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.stdout == "dadlm.evaluate.reconstruction\n", done.stderr
    with pytest.raises(AttributeError, match="has no attribute 'evaluation'"):
        dadlm.evaluation  # noqa: B018
