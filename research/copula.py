"""An AR model as copula at inference: it couples the tokens of a step, the diffusion model reweights each.

DCD (Liu, Broadrick, Niepert and Van den Broeck, "Discrete Copula Diffusion", ICLR 2025, arXiv 2410.01949):
the AR model draws the step's tokens from left to right, and its distribution of each is multiplied with what
the diffusion model gains from seeing the known tokens to the right,

    p(x_i | x_<i, x_t) ∝ p_AR(x_i | x_<i) · p_DM(x_i | x_t) / p_DM(x_i | x_t to the left of i).

The divisor (`reference`): one more pass with a causal mask inside the block, as the authors do it (`causal`),
or what the model says when the known tokens to the right are masked again, which is exact for a model of
masked text but takes a pass for each run of masked positions (`remask`). Which tokens a step keeps (`order`):
those of random remasking, or the next N / T from the left, as in the authors' script.

n rows, N block size, V vocabulary without the mask.
"""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from dadlm import counter
from dadlm.decode.cache import Cache
from dadlm.model import Model
from research.blocks import Blocks, Rival, Work

Next = Callable[[int, Tensor, Tensor], Tensor]
"""The AR model's log-probabilities [m, V] at a place of blocks ids [n, N], in the rows [m] asked for."""


def draw(
    ids: Tensor,
    masked: Tensor,
    wanted: Tensor,
    odds: Tensor,
    following: Next,
    pick: Callable[[int, Tensor, Tensor], Tensor],
) -> Tensor:
    """Blocks ids [n, N] with tokens drawn where masked, up to the last that is wanted; odds [n, N, V] are the
    logarithms of the diffusion model's quotients. `pick` draws from unnormalised log-probabilities [m, V]."""
    ids = ids.clone()
    open_ = masked & (wanted.flip(1).cumsum(1).flip(1) > 0)
    for place in range(ids.shape[1]):
        if len(rows := open_[:, place].nonzero().squeeze(1)):
            logits = following(place, ids, rows) + odds[rows, place]
            ids[rows, place] = pick(place, logits, rows)
    return ids


class Copula:
    """An AR model that follows blocks, with a cache of its own."""

    def __init__(self, model: Model, blocks: Blocks) -> None:
        self.model, self.blocks = model, blocks
        rows, length = blocks.text.shape
        self.cache = Cache(model, rows, length)
        self.known = torch.zeros(rows, dtype=torch.int64)
        """How many first positions the cache holds the keys and values of, with the tokens that stay."""

    def following(self, work: Work, ids: Tensor) -> Next:
        """Reads the text of the block up to each place that is asked for."""
        first, done = self.blocks.first, self.known[work.rows].clone()
        self.reached = done

        def of(place: int, ids: Tensor, rows: Tensor) -> Tensor:
            text = torch.cat([self.blocks.text[work.rows, :first], ids], 1)
            end = first + place
            width = int((end - done[rows]).max())  # tokens that were known are read along with the last
            position = torch.arange(end - width, end).expand(len(rows), -1)
            some = work.rows[rows]
            where = slice(0, len(self.known)) if len(some) == len(self.known) else some
            view = self.cache.view(where, self.blocks.text, end)
            hidden = self.model.read(
                text[rows, end - width : end], view, position=position, visible=position + 1
            )
            done[rows] = end
            work.passes["copula"] += len(rows)
            return self.model.head.token_logits(hidden[:, -1]).log_softmax(-1)

        return of

    def keep(self, rows: Tensor, masked: Tensor) -> None:
        """What stays after a step, up to the first position that is still masked [n, N]. The token before
        that one is read again: what it says is wanted then."""
        before = (masked.cumsum(1) == 0).sum(1) + self.blocks.first - 1
        self.known[rows] = torch.minimum(self.reached, before)


def odds_left(work: Work, logp: Tensor) -> Tensor:
    """log p(x_i | x_t) − log p(x_i | x_t to the left), the latter by a causal mask inside the block."""
    with work.blocks.looking_left():
        return logp - work.logp("reference")


def odds_remasked(work: Work, logp: Tensor) -> Tensor:
    """The same, the latter with the known tokens to the right masked again."""
    return logp - remasked(logp, work.masked, lambda rows, open_: work.logp("reference", rows, masked=open_))


def remasked(logp: Tensor, masked: Tensor, believe: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """[n, N, V]: log p(x_i | what is known to the left), at masked positions. Those of one run share a
    pass; a run with nothing known behind it needs none."""
    found = logp.clone()
    run = (masked & ~F.pad(masked[:, :-1], (1, 0))).cumsum(1)
    place = torch.arange(masked.shape[1])
    for number in range(1, int(run.max()) + 1):
        inside = masked & (run == number)
        start = torch.where(inside, place, masked.shape[1]).amin(1, keepdim=True)
        rows = (inside.any(1) & (~masked & (place > start)).any(1)).nonzero().squeeze(1)
        if len(rows):
            said = believe(rows, masked[rows] | (place >= start[rows]))
            found[rows] = torch.where(inside[rows, :, None], said, found[rows])
    return found


class Dcd(Rival):
    def __init__(
        self,
        ar: Model,
        steps: int,
        order: Literal["random", "left"] = "random",
        reference: Literal["causal", "remask"] = "causal",
    ) -> None:
        self.ar, self.steps, self.order = ar, steps, order
        self.odds = odds_left if reference == "causal" else odds_remasked

    def join(self, blocks: Blocks) -> None:
        self.copula = Copula(self.ar, blocks)

    def __call__(self, work: Work) -> tuple[Tensor, Tensor, Tensor]:
        kept, at = self.kept(work)
        odds, uniform = self.odds(work, work.logp("draw")), work.uniform(counter.TOKEN)

        def pick(place: int, logits: Tensor, rows: Tensor) -> Tensor:
            return work.draw(logits, uniform[rows, place])

        following = self.copula.following(work, work.ids)
        tokens = draw(work.ids, work.masked, kept, odds, following, pick)
        self.copula.keep(work.rows, work.masked & ~kept)
        return tokens, kept, at

    def kept(self, work: Work) -> tuple[Tensor, Tensor]:
        if self.order == "random":
            return work.due(self.steps)
        size = -(-work.blocks.N // self.steps)
        place = torch.arange(work.blocks.N)
        return work.masked & (place < (work.step[:, None] + 1) * size), work.step
