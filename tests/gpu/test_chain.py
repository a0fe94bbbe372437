"""The chain of a block over shortlists: one launch against the torch twin.

Also in Triton's interpreter, without a GPU: `TRITON_INTERPRET=1 pytest -m gpu tests/gpu/test_chain.py`.
"""

import os
from dataclasses import replace

import pytest
import torch
from tests.decode.test_chain import edge_model
from tests.decode.tiny import prompt_of

from dadlm import DecodeSettings, generate
from dadlm.decode import chain
from dadlm.decode.batched_settings import BatchedSettings
from dadlm.decode.predict import Prediction
from dadlm.decode.samplers import Block
from dadlm.model import successors
from dadlm.model.successors import keep_successors

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available() and not INTERPRETED, reason="needs CUDA"),
]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

SETTINGS = [
    DecodeSettings(shortlist=3),
    DecodeSettings(shortlist=5, top_p=1.0),
    DecodeSettings(shortlist=1, temperature=0.0),
    DecodeSettings(shortlist=5, top_p=0.5, nucleus="bd3lm"),
    DecodeSettings(shortlist=4, temperature=1.7, top_p=0.7),
    DecodeSettings(shortlist=2, top_p=1e-6),
    DecodeSettings(shortlist=5, temperature=0.3),
]


def inputs(model, N: int, rows: int, seed: int):
    """Random blocks: states of all nodes, ids, what is masked and what is wanted."""
    random, config = torch.Generator().manual_seed(seed), model.config
    K, V = config.nodes_per_mask, config.mask_id
    hidden = 3 * torch.randn(rows, N, K, config.width, generator=random)
    masked = torch.rand(rows, N, generator=random) < 0.7
    masked[0] = True
    number = torch.zeros(rows, dtype=torch.int64)
    block = Block(
        ids=torch.randint(V, (rows, N), generator=random), masked=masked, first=number, number=number,
        step=number, plan=torch.zeros(rows, N, dtype=torch.int64), seed=number, in_window=masked | True,
        wanted=masked, ends=masked,
    )  # fmt: skip
    wanted = masked & (torch.rand(rows, N, generator=random) < 0.6)
    wanted[0] = True
    path, uniform = torch.randint(K, (rows, N), generator=random), torch.rand(rows, N, generator=random)
    before = torch.randint(V, (rows,), generator=random)
    links = torch.zeros(rows, N, K, K)
    prediction = Prediction(hidden, torch.ones(rows, N, K).bool(), links, before)
    return prediction, path, block, wanted, uniform


def moved(x):
    """A dataclass of tensors on the device."""
    here = {name: value.to(DEVICE) for name, value in vars(x).items() if isinstance(value, torch.Tensor)}
    return replace(x, **here)


def check_draws(model, settings, switch, monkeypatch, **how):
    """Those of random blocks by kernels and by the twin, which `switch` of `chain` turns on and off."""
    model.keep_constants()
    rows, N = len(settings), model.config.block_size
    for seed in range(4):
        prediction, path, block, wanted, uniform = inputs(model, N, rows, seed)
        call = (
            model, moved(prediction), path.to(DEVICE), moved(block), wanted.to(DEVICE), uniform.to(DEVICE),
            BatchedSettings.of(settings, DEVICE), True, True,
        )  # fmt: skip
        results = []
        for on in (False, True):
            monkeypatch.setattr(chain, switch, lambda *_, on=on: on)
            results.append(chain.draw_chain(*call, **how))
        twin, fast = results
        assert torch.equal(fast.tokens, twin.tokens)
        torch.testing.assert_close(fast.probability, twin.probability, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(fast.entropy, twin.entropy, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["bd3lm", "dadlm"])
@pytest.mark.parametrize(
    ("N", "vocab", "rank", "second", "S"),
    [(1, 9, 1, 2, 3), (3, 30, 5, 0, 7), (4, 50, 17, 5, 11), (5, 33, 33, 40, 32), (16, 40, 16, 16, 6)],
)
@torch.inference_mode()
def test_one_launch_draws_what_the_twin_draws(family, N, vocab, rank, second, S, monkeypatch):
    monkeypatch.setattr(successors, "SUCCESSORS", S)
    model = edge_model(family, N=N, vocab=vocab, edge_rank=rank, edge_second_rank=second).to(DEVICE)
    keep_successors(model)
    check_draws(model, SETTINGS, "in_one_launch", monkeypatch, shortlist=5)


@pytest.mark.parametrize("family", ["bd3lm", "dadlm"])
@pytest.mark.parametrize(
    ("N", "vocab", "rank", "second"),
    [(1, 9, 1, 2), (3, 100, 40, 0), (3, 100, 40, 17), (16, 40, 16, 0), (16, 40, 16, 16)],
)
@torch.inference_mode()
def test_the_whole_vocabulary_as_the_twin_draws_it(family, N, vocab, rank, second, monkeypatch):
    model = edge_model(family, N=N, vocab=vocab, edge_rank=rank, edge_second_rank=second).to(DEVICE)
    settings = [replace(one, shortlist=None) for one in SETTINGS * 3]
    check_draws(model, settings, "by_kernels", monkeypatch)


def test_texts_are_those_of_the_twin(monkeypatch):
    monkeypatch.setattr(successors, "SUCCESSORS", 6)
    model = edge_model(N=4, vocab=30).to(DEVICE)
    prompts, texts = [prompt_of(n) for n in (4, 6, 9)], []
    for one_launch in (False, True):
        monkeypatch.setattr(chain, "in_one_launch", lambda *_, one_launch=one_launch: one_launch)
        texts.append(
            [
                generate(model, prompts, max_new_tokens=9, seed=2, shortlist=4, **how).tokens
                for how in ({}, {"sampler": "random", "steps": 2}, {"sampler": "confidence"})
            ]
        )
        model.engines.clear()
    assert texts[0] == texts[1]
