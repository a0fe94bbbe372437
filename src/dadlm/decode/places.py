"""Positions [B, N] as flat places, so that the head runs on some of them only.

A captured step must know how many there are before it begins (`capacity`): spare places lie behind all
others, at B·N, and what is put there falls off.
"""

from torch import Tensor, where

from dadlm.nodes import select


def places(wanted: Tensor, capacity: int | None) -> Tensor:
    """Flat indices [n] of the wanted positions of [B, N]: exactly these, or `capacity` with spare ones at
    B·N."""
    if capacity is None:
        return wanted.flatten().nonzero().squeeze(1)
    place = select(wanted.flatten(), capacity).place[0]
    return where(place < 0, wanted.numel(), place)


def put(values: Tensor, place: Tensor, wanted: Tensor) -> Tensor:
    """Values [n, ...] at flat places of [B, N, ...], zeros elsewhere; spare ones fall off the end."""
    flat = values.new_zeros(wanted.numel() + 1, *values.shape[1:]).index_copy(0, place, values)
    return flat[:-1].view(*wanted.shape, *values.shape[1:])
