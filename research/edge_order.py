"""Whether edges of second order pay: a token's score given the token two places to its left, too.

    python -m research.edge_order --model bd3lm-edges --train SHARDS --valid SHARDS

Factors for the token two to the left are fitted to the text beside the model's own edges, which stay, and
added where both neighbours are open. Blocks of held-out text, all tokens masked, scored in one pass (one node
per position), nats a token and by place.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor

from dadlm.model import Model, load
from dadlm.model.edge import Bilinear, Left
from dadlm.tokens import Rows, Shards
from dadlm.train.edges import count_pairs
from research.edge_ranks import PLACES, Blocks

_LR, _AT_ONCE = 0.01, 1024


@torch.no_grad()
def logits_of(model: Model, blocks: Blocks) -> list[Tensor]:
    """[g, N, V] of some blocks at a time, the model's own edges included."""
    known = torch.zeros_like(blocks.left, dtype=torch.bool)
    is_open = torch.cat([known[:, :1], ~known[:, 1:]], 1)
    parts = zip(*(x.split(32) for x in (blocks.hidden, blocks.left, is_open)), strict=True)
    return [model.head.token_logits(hidden, None, Left(left, open_)) for hidden, left, open_ in parts]


def fit_second(model: Model, rows: Rows, rank: int, steps: int, tokens: int) -> tuple[Tensor, Tensor]:
    """Left and right [V, R]: Σ -log softmax(log p + s(left neighbour, ·) + ⟨left(second), right⟩)."""
    edge, V = model.head.edge, model.config.mask_id
    assert isinstance(edge, Bilinear)
    share = count_pairs(rows, V, tokens).share.log()
    first = (edge.left.weight[:V] * edge.scale[1]).detach(), edge.right[:V].detach()
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(V, rank, generator=generator) * size for size in (0.1, 0.0))
    optimizer = torch.optim.Adam([left.requires_grad_(), right.requires_grad_()], lr=_LR, betas=(0.9, 0.98))
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = _LR * min(1.0, (step + 1) / 20) * (1 - step / steps)
        row = torch.randint(len(rows), (_AT_ONCE // 64,), generator=generator)
        ids = rows.batch(row)[:, : 64 + 2]
        second, near, target = (ids[:, i : i + 64].reshape(-1) for i in range(3))
        logits = share + first[0][near] @ first[1].t() + left[second] @ right.t()
        loss = torch.nn.functional.cross_entropy(logits, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step}: {float(loss.detach()):.3f}", flush=True)
    return left.detach(), right.detach()


def nll(logits: list[Tensor], blocks: Blocks, factors: tuple[Tensor, Tensor], scale: float) -> Tensor:
    """[N]: nats at each place; the first two have a known token two to the left, and no edge of it."""
    total = torch.zeros(blocks.target.shape[1], dtype=torch.float64)
    parts = zip(logits, blocks.target.split(32), blocks.left.split(32), strict=True)
    for scores, target, left in parts:
        second = scale * factors[0][left[:, 1:-1]] @ factors[1].t()
        scores = torch.cat([scores[:, :2], scores[:, 2:] + second], 1)
        total -= scores.log_softmax(-1).gather(-1, target[..., None]).squeeze(-1).double().sum(0)
    return total / len(blocks.target)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="bd3lm-edges")
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--valid", type=Path, required=True)
    parser.add_argument("--rank", type=int, default=128)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=4_000_000, help="to count how often tokens occur")
    parser.add_argument("--rows", type=int, default=10)
    options = parser.parse_args()
    model = load(options.model)
    rows, valid = (Rows.from_shards(Shards.open(folder), 512) for folder in (options.train, options.valid))
    step = max(1, len(valid) // options.rows)
    with torch.no_grad():
        blocks = Blocks(model, valid.batch(range(0, step * options.rows, step)))
        logits = logits_of(model, blocks)
    factors = fit_second(model, rows, options.rank, options.steps, options.tokens)
    print("| weight of the second order | nats a token | at places 1 2 3 4 8 16 |\n|---|---|---|")
    for scale in (0.0, 0.25, 0.5, 0.75, 1.0):
        with torch.no_grad():
            found = nll(logits, blocks, factors, scale)
        places = " ".join(f"{found[place - 1]:.2f}" for place in PLACES if place <= len(found))
        print(f"| {scale} | {found.mean():.3f} | {places} |", flush=True)


if __name__ == "__main__":
    main()
