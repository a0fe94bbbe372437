"""Keys and values of the clean text, as `Backbone.read` leaves them for the nodes of the noisy blocks.

B rows, C tokens, G blocks, H' heads of keys and values, E head width, L positions.
"""

from torch import Tensor


class Context:
    """Keys and values of the clean stream: what a block sees of the text before it. This one keeps whole
    sequences, as in training; `decode.cache` has one that grows."""

    def __init__(self) -> None:
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        self._ids: Tensor | None = None

    def store(self, layer: int, k: Tensor, v: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """Store keys and values [B, C, H', E] of positions [B, C]; returns all that the layer holds."""
        del position  # whole sequences come in order
        self._layers[layer] = (k, v)
        return k, v

    def remember(self, ids: Tensor, position: Tensor) -> None:
        """Store the tokens [B, C] of positions [B, C], for `before`."""
        del position
        self._ids = ids

    def before(self, first: Tensor) -> Tensor:
        """The tokens before positions first [B, G]; any token before position 0, which is never masked."""
        assert self._ids is not None
        return self._ids.gather(1, (first - 1).clamp(min=0))

    def in_place(self, layer: int) -> tuple[Tensor, Tensor] | None:
        """Keys and values [B, L, H', E] themselves, for a kernel to write to; None if it cannot."""
        return None

    def __getitem__(self, layer: int) -> tuple[Tensor, Tensor]:
        return self._layers[layer]
