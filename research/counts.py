"""What `evaluate.quality` counts in tokens, on the device: in Python a thousand texts take seconds.

R texts, L tokens of the longest, n length of an n-gram.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


def counted(texts: list[list[int]], device: torch.device | str = "cpu") -> dict[str, np.ndarray]:
    """Lengths, shares of distinct 1-, 2- and 3-grams, mean entropy of a text, share of repeated 4-grams."""
    length = torch.tensor([len(ids) for ids in texts], device=device)
    ids = pad_sequence([torch.tensor(ids, dtype=torch.int64) for ids in texts], True, -1).to(device)
    base = int(ids.max()) + 1 if ids.numel() else 1
    share = torch.zeros(len(ids), base + 1, device=device, dtype=torch.float64)
    share.scatter_add_(1, torch.where(ids < 0, base, ids), torch.ones_like(ids, dtype=torch.float64))
    share = share[:, :base] / length.clamp(min=1)[:, None]
    return {
        "tokens": length.cpu().numpy(),
        "distinct": np.array([_distinct(_grams(ids, n, base)) for n in (1, 2, 3)]),
        "entropy": np.array(-torch.xlogy(share, share).sum(1).mean().item()),
        "repetition": np.array(_repetition(_grams(ids, 4, base))),
    }


def _grams(ids: Tensor, n: int, base: int) -> Tensor:
    """[R, L - n + 1]: the n-grams of ids [R, L] as numbers, -1 where the text is over."""
    if ids.shape[1] < n:
        return ids[:, :0]
    windows = ids.unfold(1, n, 1)
    number = sum(windows[..., place] * base ** (n - 1 - place) for place in range(n))
    return torch.where((windows >= 0).all(-1), number, -1)


def _distinct(grams: Tensor) -> float:
    there = grams[grams >= 0]
    return there.unique().numel() / max(there.numel(), 1)


def _repetition(grams: Tensor) -> float:
    """Each n-gram of a row is new once; the others are repeated."""
    ordered = grams.sort(1).values
    again = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    return int(again.sum()) / max(int((grams >= 0).sum()), 1)
