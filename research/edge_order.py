"""Whether edges of second order pay off: a token's score also given the token two places to its left.

    python -m research.edge_order --model bd3lm-edges --train SHARDS --valid SHARDS

Factors for pairs of tokens two places apart are counted and fitted like those of neighbours, and added to the
model's own edges where both neighbours are open: with columns of their own, and with the columns of the
model's edges (by weighted least squares), which would cost a lookup but no more columns of the head. Blocks
of held-out text, all tokens masked, are scored in one pass (one node per position): nats per token, overall
and by place.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor

from dadlm.model import Model, load
from dadlm.model.edge import Bilinear, Left
from dadlm.tokens import Rows, Shards
from dadlm.train.edges import count_pairs, decompose, fit
from research.edge_ranks import PLACES, Blocks


def logits_of(model: Model, blocks: Blocks) -> list[Tensor]:
    """[g, N, V] of some blocks at a time, the model's own edges included."""
    is_open = torch.ones_like(blocks.left, dtype=torch.bool)
    is_open[:, 0] = False
    parts = zip(*(x.split(32) for x in (blocks.hidden, blocks.left, is_open)), strict=True)
    return [model.head.token_logits(hidden, None, Left(left, open_)) for hidden, left, open_ in parts]


def nll(logits: list[Tensor], blocks: Blocks, factors: tuple[Tensor, Tensor], scale: float) -> Tensor:
    """[N]: nats at each place; the first two have a known token two to the left, and no edge of it."""
    total = torch.zeros(blocks.target.shape[1], dtype=torch.float64)
    for scores, target, left in zip(logits, blocks.target.split(32), blocks.left.split(32), strict=True):
        second = scale * factors[0][left[:, 1:-1]] @ factors[1].t()
        logp = torch.cat([scores[:, :2], scores[:, 2:] + second], 1).log_softmax(-1)
        total -= logp.gather(-1, target[..., None]).squeeze(-1).double().sum(0)
    return total / len(blocks.target)


def on_columns(factors: tuple[Tensor, Tensor], columns: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """What factors [V, R] come to with other columns [V, R], errors weighed by how often tokens occur; a
    constant of a left token is no error."""
    left, right = factors
    mean = (share @ columns, share @ right)
    own, theirs = columns - mean[0], right - mean[1]
    turn = torch.linalg.lstsq(own.t() * share @ own, own.t() * share @ theirs).solution  # [R, R]
    return left @ turn.t(), columns


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="bd3lm-edges")
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--valid", type=Path, required=True)
    parser.add_argument("--rank", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=20_000_000)
    parser.add_argument("--rows", type=int, default=16)
    options = parser.parse_args()
    model = load(options.model)
    rows, valid = (Rows.from_shards(Shards.open(folder), 512) for folder in (options.train, options.valid))
    pairs = count_pairs(rows, model.config.mask_id, options.tokens, apart=2)
    factors = fit(pairs, decompose(pairs, options.rank))
    step = max(1, len(valid) // options.rows)
    with torch.no_grad():
        blocks = Blocks(model, valid.batch(range(0, step * options.rows, step)))
        logits = logits_of(model, blocks)
        edge, V = model.head.edge, model.config.mask_id
        assert isinstance(edge, Bilinear)
        shared = on_columns(factors, edge.right[:V, : edge.ranks[0]], pairs.share)
        print("| columns | weight | nats a token | at places 1 2 3 4 8 16 |\n|---|---|---|---|")
        for name, some in (("own", factors), ("shared", shared)):
            for scale in (0.0, 0.2, 0.4, 0.6, 0.8):
                found = nll(logits, blocks, some, scale)
                places = " ".join(f"{found[place - 1]:.2f}" for place in PLACES if place <= len(found))
                print(f"| {name} | {scale} | {found.mean():.3f} | {places} |", flush=True)


if __name__ == "__main__":
    main()
