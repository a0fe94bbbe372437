"""What counted token edges are worth, by rank: the whole table of pairs, its decomposition, the fit.

    python -m research.edge_ranks --model bd3lm --train SHARDS --valid SHARDS --ranks 64 128 256

Blocks of held-out text, all tokens masked, scored in one pass with the true left neighbours (one node per
position), nats a token and by place. The table of all pairs is dense here: for small vocabularies.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from dadlm.model import Model, load
from dadlm.noise import Noise
from dadlm.tokens import Rows, Shards
from dadlm.train.edges import count_pairs, decompose, fit

PLACES = (1, 2, 3, 4, 8, 16)


class Blocks:
    """Final states [G, N, D] of masked blocks, their tokens and the left neighbours of these [G, N]."""

    def __init__(self, model: Model, ids: Tensor) -> None:
        assert model.config.family == "bd3lm", "one node per position"
        N, self.head = model.config.block_size, model.head
        masked = torch.ones_like(ids, dtype=torch.bool)
        masked[:, :N] = False
        scores = model(ids, Noise.of(masked), emissions=False)
        groups = scores.nodes.groups(scores.nodes.to_slots(scores.hidden))
        self.hidden = groups[:, 1:, :, 0].flatten(0, 1)
        self.target, self.left = ids[:, N:].reshape(-1, N), ids[:, N - 1 : -1].reshape(-1, N)

    def nll(self, edge: Callable[[Tensor], Tensor], scale: float) -> Tensor:
        """[N]: nats at each place; the first has a known neighbour and no edge."""
        total = torch.zeros(self.target.shape[1], dtype=torch.float64)
        for hidden, target, left in zip(
            *(x.split(32) for x in (self.hidden, self.target, self.left)), strict=True
        ):
            logits = self.head.token_logits(hidden)
            logits[:, 1:] += scale * edge(left[:, 1:])
            total -= logits.log_softmax(-1).gather(-1, target[..., None]).squeeze(-1).double().sum(0)
        return total / len(self.target)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="bd3lm")
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--valid", type=Path, required=True)
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--tokens", type=int, default=20_000_000)
    parser.add_argument("--rows", type=int, default=10)
    options = parser.parse_args()
    model = load(options.model)
    V = model.config.mask_id
    rows, valid = (Rows.from_shards(Shards.open(folder), 512) for folder in (options.train, options.valid))
    step = max(1, len(valid) // options.rows)
    blocks = Blocks(model, valid.batch(range(0, step * options.rows, step)))
    pairs = count_pairs(rows, V, options.tokens)
    table = torch.zeros(V, V).index_put((pairs.first, pairs.second), pairs.log_ratio)

    def show(name: str, edge: Callable[[Tensor], Tensor]) -> None:
        found = {scale: blocks.nll(edge, scale) for scale in (0.75, 0.9, 1.0)}
        scale, best = min(found.items(), key=lambda one: float(one[1].mean()))
        places = " ".join(f"{best[place - 1]:.2f}" for place in PLACES if place <= len(best))
        print(f"| {name} | {scale} | {best.mean():.3f} | {places} |", flush=True)

    print("| edges | scale | nats a token | at places 1 2 3 4 8 16 |\n|---|---|---|---|")
    show("none", lambda left: torch.zeros(1))
    show(f"all {len(pairs.count):,} pairs", lambda left: table[left])
    for rank in options.ranks:
        start = decompose(pairs, rank)
        show(f"rank {rank}, decomposed", lambda left, factors=start: factors[0][left] @ factors[1].t())
        with torch.enable_grad():
            fitted = fit(pairs, start)
        show(f"rank {rank}, fitted", lambda left, factors=fitted: factors[0][left] @ factors[1].t())


if __name__ == "__main__":
    main()
