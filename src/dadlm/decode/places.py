"""Positions [B, N] as flat places, so that the head runs on some of them only.

A captured step must know how many there are before it begins (`capacity`): spare places lie behind all
others, at B·N, and what is put there falls off.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, where

from dadlm.nodes import select


class Some(NamedTuple):
    """Some positions [n] of [B, N], those of spare capacity included, which nobody looks at."""

    take: Callable[[Tensor], Tensor]
    """From tensors [B, N, ...] the values at these positions [n, ...]."""
    row: Tensor | slice
    """Index of tensors [B]: values of their rows [n]."""
    put: Callable[[Tensor], Tensor]
    """Values [n] at their positions [B, N], and anything at those that are not wanted."""


def some_of_all(wanted: Tensor, capacity: int | None) -> Some:
    """The wanted positions of [B, N]; for `capacity` see `places`."""
    place = places(wanted, capacity)
    some = place.clamp(max=wanted.numel() - 1)
    take = lambda x: x.flatten(0, 1)[some]  # noqa: E731
    return Some(take, some // wanted.shape[1], lambda values: put(values, place, wanted))


def one_of_each_row(wanted: Tensor) -> Some:
    """The wanted position of each row of [B, N] that has at most one: fewer kernels than to look for all."""
    every, at = slice(None), (slice(None), 0)
    if wanted.shape[1] > 1:
        at = (torch.arange(len(wanted), device=wanted.device), wanted.view(torch.uint8).argmax(1))
    return Some(lambda x: x[at], every, lambda values: values[:, None].expand_as(wanted))


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
