"""Keys and values of the clean stream, layer by layer: what a block sees of the text before it."""

from torch import Tensor


class Context:
    """Keeps whole sequences, as in training. `decode.cache.Cache` is the growing form of it."""

    def __init__(self) -> None:
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def store(self, layer: int, k: Tensor, v: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """Take keys and values [B, C, H, E] of positions [B, C]; give all that the layer holds."""
        del position  # whole sequences come in order
        self._layers[layer] = (k, v)
        return k, v

    def __getitem__(self, layer: int) -> tuple[Tensor, Tensor]:
        return self._layers[layer]
