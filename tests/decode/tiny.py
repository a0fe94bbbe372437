"""Tiny random models of every family, and settings shared by the tests of `decode`."""

import torch
from hypothesis import settings

from dadlm import Model, ModelConfig
from dadlm.tokens import Tokenizer

FAMILIES = ("ar", "mdlm", "bd3lm", "dadlm")
BLOCK_FAMILIES = ("bd3lm", "dadlm")

# Derandomised: the same examples on every machine, so that a red test stays red.
many = settings(max_examples=200, deadline=None, derandomize=True)


def tiny(
    family: str,
    *,
    block: int = 4,
    candidates: int = 3,
    vocab: int = 30,
    context: int = 64,
    seed: int = 0,
    tokenizer: Tokenizer | None = None,
    **shape,
) -> Model:
    """Random weights large enough that tokens, candidates and transitions differ; eot is vocab - 2."""
    shape = {"layers": 2, "width": 32, "heads": 2} | shape
    config = ModelConfig(
        family=family,  # type: ignore[arg-type]
        vocab_size=vocab,
        eot_id=vocab - 2,
        block_size=block,
        candidates=candidates,
        context=context,
        **shape,
    )
    model = Model(config, tokenizer).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if parameter.dim() > 1:
                # The text around a token counts more than the token, and candidates differ.
                scale = 0.6 if "layers" in name else 1.0 if "candidate" in name or "offset" in name else 0.2
                parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
            elif model.graph is not None and parameter is model.graph.start:
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model


def silence_eot(model: Model) -> Model:
    """Make end-of-text impossible, so that a text runs to its limit."""
    return _bias_eot(model, -1e4)


def force_eot(model: Model) -> Model:
    """Make end-of-text certain everywhere."""
    return _bias_eot(model, 1e4)


def _bias_eot(model: Model, by: float) -> Model:
    bias = torch.zeros(model.config.vocab_size)
    bias[model.config.eot_id] = by
    model.head.linear.bias = torch.nn.Parameter(bias)  # the lean head has none
    return model


def prompt_of(length: int, seed: int = 0, vocab: int = 30) -> list[int]:
    """Random ids, neither end-of-text nor mask."""
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return torch.randint(0, vocab - 2, (length,), generator=generator).tolist()
