"""Drafts in the verifying pass on CUDA: texts, cycles and passes are those of the CPU in fp32."""

import copy

import pytest
import torch
from tests.decode.test_ahead import model_of
from tests.decode.test_mode import KINDS
from tests.decode.tiny import prompt_of, silence_eot

from dadlm import generate

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]


@pytest.mark.parametrize("kind", [*KINDS, "adapters"])
@pytest.mark.parametrize("draft", [{"tree": 0}, {"tree": 7}, {"tree": 7, "drawn": True}])
def test_texts_are_those_of_the_cpu(kind: str, draft: dict) -> None:
    model = silence_eot(model_of(kind))
    prompts = [prompt_of(n, seed=n) for n in (1, 2, 7, 12)]
    how = {"mode": "lossless", "one_pass": True, "seed": 3, "max_new_tokens": 21, **draft}
    assert generate(copy.deepcopy(model).cuda(), prompts, **how) == generate(model, prompts, **how)
