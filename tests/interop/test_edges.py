"""Models with token edges in other forms: what keeps them, and what refuses to lose them."""

from pathlib import Path

import pytest
import torch
from tests.decode.test_chain import edge_model
from tests.decode.tiny import prompt_of

import dadlm
from dadlm.errors import ConfigError
from dadlm.interop.convert import convert

pytest.importorskip("transformers")
from transformers import AutoModelForMaskedLM

from dadlm.interop.transformers import DadlmForMaskedLM

ROWS = [prompt_of(6, seed) for seed in range(3)]
WAYS = [{"sampler": "random", "steps": 2}, {"sampler": "entropy", "bound": 6.0}, {"path": "viterbi"}]


@pytest.mark.parametrize("form", ["bilinear", "mlp"])
@pytest.mark.parametrize("family", ["bd3lm", "dadlm"])
def test_saved_and_loaded_by_transformers(family: str, form: str, tmp_path: Path) -> None:
    model = edge_model(family, form, N=4, vocab=30)
    DadlmForMaskedLM.of(model).save_pretrained(tmp_path)
    loaded, told = AutoModelForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(told.values()) and loaded.core.config == model.config
    ours = dadlm.load(tmp_path)
    for options in WAYS:
        how = {"seed": 4, "max_new_tokens": 9, **options}
        expected = dadlm.generate(model, ROWS, **how).tokens
        assert dadlm.generate(ours, ROWS, **how).tokens == expected
        for row, tokens in zip(loaded.generate(torch.tensor(ROWS), **how).tolist(), expected, strict=True):
            assert row[6 : 6 + len(tokens)] == tokens


@pytest.mark.parametrize("form", ["bilinear", "mlp"])
def test_8_bits_go_through_every_form(form: str, tmp_path: Path) -> None:
    """Texts of the 8-bit weights, and of what transformers makes of them, are the same."""
    model = edge_model("dadlm", form, N=4, vocab=30)
    dadlm.save(model, tmp_path / "small", bits=8)
    small = dadlm.load(tmp_path / "small")
    assert small.config == model.config
    for name, weight in model.state_dict().items():
        step = weight.abs().amax(-1, keepdim=True) / 127 if weight.dim() == 2 else torch.tensor(0.0)
        assert ((small.state_dict()[name] - weight).abs() <= step / 2 + 1e-6).all(), name
    convert(tmp_path / "small", tmp_path / "other", "transformers")
    again = dadlm.load(tmp_path / "other")
    how = {"seed": 1, "max_new_tokens": 8, "sampler": "random", "steps": 2}
    assert dadlm.generate(again, ROWS, **how).tokens == dadlm.generate(small, ROWS, **how).tokens


def test_the_published_form_cannot_hold_them(tmp_path: Path) -> None:
    model = edge_model("bd3lm", N=4, vocab=30, architecture="bd3lm", tie_embedding=False)
    dadlm.save(model, tmp_path / "model")
    with pytest.raises(ConfigError, match="token edges"):
        convert(tmp_path / "model", tmp_path / "published", "bd3lm")
