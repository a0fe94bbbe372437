"""benchmarks/shortlist.py with edges of second order, which look two places to the left."""

from dataclasses import replace

import pytest
import torch
from benchmarks import shortlist
from tests.decode.tiny import BLOCK_FAMILIES, prompt_of, tiny

from dadlm import Model
from dadlm.train.edges import set_edges, set_second, with_edges


def edged(family: str) -> Model:
    model = with_edges(tiny(family, context=16), rank=4, second_rank=2)
    set_edges(model, torch.randn(29, 4), torch.randn(29, 4))
    set_second(model, torch.randn(29, 2), torch.randn(29, 2))
    return model


@pytest.mark.parametrize("family", BLOCK_FAMILIES)
def test_shares_of_the_whole_vocabulary_are_one(
    family: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shortlist, "SIZES", ((29, 8),))
    rows = torch.tensor([prompt_of(16, seed=seed) for seed in range(2)])
    shortlist.shares(edged(family), rows, 4, 0.9)
    *_, last = capsys.readouterr().out.splitlines()
    assert last.split()[2] == "29" and last.count("'1.000'") == 3 == last.count("'0.000'")


@pytest.mark.parametrize("family", BLOCK_FAMILIES)
def test_without_edges_it_is_the_model_before(family: str) -> None:
    plain, again = tiny(family, context=16), shortlist.without_edges(edged(family))
    assert replace(again.config, edge_rank=plain.config.edge_rank) == plain.config
    for name, tensor in plain.state_dict().items():
        assert tensor.equal(again.state_dict()[name])
