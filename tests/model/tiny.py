"""Small models with weights large enough that nothing is trivially zero; rows with blocks of every kind."""

import torch
from torch import Tensor

from dadlm.model import Model, ModelConfig, attention_dense
from dadlm.noise import Noise


def tiny_config(family: str = "dadlm", **changes) -> ModelConfig:
    shape = {"context": 16, "block_size": 4, "layers": 2, "width": 32, "heads": 4, "candidates": 3}
    tied = changes.get("architecture") != "bd3lm"
    settings = {"family": family, "vocab_size": 30, "eot_id": 28, "tie_embedding": tied, **shape}
    return ModelConfig(**(settings | changes))


def tiny_model(family: str = "dadlm", *, seed: int = 0, **changes) -> Model:
    """Every parameter, the zero-initialised ones too, is random about its usual place."""
    model = Model(tiny_config(family, **changes)).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = 0.1 if "condition" in name or "modulation" in name else 0.2  # they multiply up otherwise
            centre = 1.0 if "norm" in name else 0.0
            if name == "graph.transition.bias":
                centre = float(model.config.track_bias or 0.0)
            parameter.copy_(centre + spread * torch.randn(parameter.shape, generator=generator))
    return model


def dense_twin(model: Model) -> Model:
    """The same weights with the slow attention."""
    twin = Model(model.config, attend_nodes=attention_dense.attend_nodes).train(model.training)
    twin.load_state_dict(model.state_dict())
    return twin


def random_ids(config: ModelConfig, batch: int = 4, seed: int = 1, length: int | None = None) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, config.mask_id, (batch, length or config.context), generator=generator)


def every_kind_of_mask(config: ModelConfig, batch: int = 4, seed: int = 2) -> Tensor:
    """[B, L]: mixed blocks; row 1 has a full block after an empty one, row 2 only masks, row 3 none. Position
    0 is never masked, as in training."""
    generator, N = torch.Generator().manual_seed(seed), config.block_size
    masked = torch.rand(batch, config.context, generator=generator) < 0.5
    if batch > 1:
        masked[1, N : 2 * N], masked[1, 2 * N : 3 * N] = False, True
    if batch > 3:
        masked[2], masked[3] = True, False
    masked[:, 0] = False
    return masked


def random_noise(model: Model, batch: int = 4, seed: int = 2) -> Noise:
    """Masks of every kind with made-up times, so that each block has its own weight."""
    masked = every_kind_of_mask(model.config, batch, seed)
    blocks = model.config.context // model.config.block
    time = 0.2 + 0.8 * torch.rand(batch, blocks, generator=torch.Generator().manual_seed(seed))
    return Noise(masked, time, 1 / time)


def gradients(model: Model, scalar: Tensor) -> dict[str, Tensor]:
    """The gradient of `scalar` by every parameter, zeros where it does not depend on one."""
    named = dict(model.named_parameters())
    grads = torch.autograd.grad(scalar, list(named.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(named, grads, strict=True))
