"""The one shape check shared by all functions of `dag`.

It compares shapes and says what it saw; it refuses to look at values.

Shapes: B any leading batch dimensions (also none), N groups, K candidates.
"""

from torch import Tensor


def check_shapes(
    transition_logp: Tensor, emission_logp: Tensor | None = None, uniform: Tensor | None = None
) -> None:
    """Raise `ValueError` unless transitions are [B, N, K, K], emissions [B, N, K] and uniforms [B, N]."""
    shape = tuple(transition_logp.shape)
    if len(shape) < 3 or shape[-1] != shape[-2] or min(shape[-3:]) < 1:
        raise ValueError(
            f"transition_logp has shape {shape}; expected [..., N, K, K] with N >= 1 groups and "
            "K >= 1 candidates"
        )
    _expect("emission_logp", emission_logp, "[..., N, K]", shape[:-1], shape)
    _expect("uniform", uniform, "[..., N]", shape[:-2], shape)


def _expect(
    name: str, tensor: Tensor | None, letters: str, expected: tuple[int, ...], transition: tuple[int, ...]
) -> None:
    if tensor is not None and tuple(tensor.shape) != expected:
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)}; expected {letters} = {expected} "
            f"beside transition_logp [..., N, K, K] = {transition}"
        )
