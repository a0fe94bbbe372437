"""What the tour measures: exact divergence from the truth, and how many blocks are valid.

R rows, G blocks per row, N words per phrase, K successors.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dadlm import dag
from dadlm.decode import DecodeSettings, generate
from dadlm.model import Model
from dadlm.noise import Noise
from dadlm.tour.language import LENGTH, SUCCESSORS, Language


@torch.no_grad()
def divergence(model: Model, language: Language, walks: Tensor) -> float:
    """Mean KL(truth ‖ model) of a fully masked block, in nats, over all blocks but the first of walks [R, G].

    Exact for each context: the truth is uniform over K known successors, and the model's probability of each
    is a sum over all paths in closed form (a single path for BD3LM).
    """
    ids = language.phrases[walks].to(model.device)  # [R, G, N]
    rows = ids.flatten(1)
    scores = model(rows, Noise.of(torch.ones_like(rows, dtype=torch.bool)), emissions=False)
    denoised = scores.denoised
    transition = model.transition_logp(denoised)
    logp = []
    for turn in range(SUCCESSORS):
        target = language.phrases[language.successors[walks[:, :-1], turn]].to(model.device)  # of blocks 1..
        target = torch.cat([ids[:, :1], target], 1)
        logp.append(dag.forward_logp(model.emission_logp(denoised, target), transition)[:, 1:])
    return float(-math.log(SUCCESSORS) - torch.stack(logp).mean())


@dataclass(frozen=True)
class Validity:
    """Share of valid blocks, and tokens per forward pass, at a number of steps."""

    steps: int
    valid: float
    tokens_per_forward: float


def validity(model: Model, language: Language, walks: Tensor, steps: int, seed: int) -> Validity:
    """Write one block after each true text of `walks` [R, G] in this many steps, without a nucleus."""
    prompts = language.phrases[walks].flatten(1).tolist()
    settings = DecodeSettings(max_new_tokens=LENGTH, sampler="random", steps=steps, top_p=1.0)
    out = generate(model, prompts, seed=seed, batch_size=256, settings=settings)
    blocks = torch.tensor([ids + [-1] * (LENGTH - len(ids)) for ids in out.tokens])
    valid = language.valid(walks[:, -1], blocks).float().mean()
    return Validity(steps, float(valid), out.mean_tokens_per_forward)
