"""How much of a model's probability a shortlist holds, and how much time it saves: models with token edges.

    python benchmarks/shortlist.py MODEL TEXT

Blocks of TEXT, all tokens masked, after the true text; tokens to the left of a place are the true ones. By
place: the probability of the conditional on a list of the M likeliest tokens without the edges and the S
likeliest successors, beside the best list of that length; and the total variation between the nucleus of the
list and that of the vocabulary. Then the time of a pass that writes one token of a block, two, or all.

n places, K candidates, V vocabulary without the mask.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from dadlm import dag, generate, load
from dadlm.decode import sample
from dadlm.model import Model
from dadlm.model.edge import left_of
from dadlm.model.successors import keep_successors
from dadlm.noise import Noise

PLACES = (0, 1, 3, 7, 15)
SIZES = ((256, 256), (512, 512), (1024, 512), (1024, 1024), (2048, 1024), (4096, 1024))


@torch.inference_mode()
def places_of(model: Model, rows: Tensor, blocks: int) -> tuple[Tensor, Tensor, Tensor, list[int]]:
    """Logits [blocks, places, V] without and with the edges at a node drawn of each place, the tokens to the
    left, and the places; of so many blocks of rows [B, L], drawn at random."""
    N, K = model.config.block_size, model.config.nodes_per_mask
    masked = torch.ones_like(rows, dtype=torch.bool)
    scores = model(rows, Noise.of(masked), emissions=False)
    assert scores.nodes is not None and scores.before is not None
    hidden = scores.nodes.groups(scores.nodes.to_slots(scores.hidden))
    path = torch.zeros_like(rows).view(hidden.shape[:3])
    if scores.transition_logp is not None:
        path = dag.sample_path(scores.transition_logp, generator=torch.Generator().manual_seed(0))
    tokens = rows.view(path.shape)
    left = left_of(tokens, torch.ones_like(tokens, dtype=torch.bool), scores.before, model.config.mask_id)
    chosen = torch.randperm(tokens[:, 1:].numel() // N, generator=torch.Generator().manual_seed(0))[:blocks]
    at = [place for place in PLACES if place < N]

    def some(x: Tensor) -> Tensor:
        return x[:, 1:].flatten(0, 1)[chosen][:, at]

    node, near = some(path), left.map(some)
    own = some(hidden).gather(2, node[..., None, None].expand(*node.shape, 1, hidden.shape[-1])).squeeze(2)
    candidate = node if K > 1 else 0
    return (
        model.head.token_logits(own, candidate),
        model.head.token_logits(own, candidate, near),
        near.token,
        at,
    )


def cut(p: Tensor, top_p: float) -> Tensor:
    """The nucleus of p [n, V], normalised."""
    inside = p * sample.in_nucleus(p, torch.full((len(p),), top_p, dtype=torch.float64))
    return inside / inside.sum(-1, keepdim=True)


@torch.inference_mode()
def shares(model: Model, rows: Tensor, blocks: int, top_p: float) -> None:
    base, full, before, at = places_of(model, rows, blocks)
    p = full.softmax(-1)
    best = p.sort(-1, descending=True).values.cumsum(-1)
    need = (best < 0.99).sum(-1) + 1.0
    print(f"{len(p)} blocks, {p.shape[-1]} tokens; places {[place + 1 for place in at]}")
    print("tokens that hold 0.99, at best:", [round(float(x)) for x in need.mean(0)])
    order, table, true = (
        base.argsort(-1, descending=True),
        keep_successors(model).table.long(),
        cut_all(p, top_p),
    )
    print("M     S     tokens  share by place" + " " * 26 + f"best list  variation at top-p {top_p}")
    for M, S in SIZES:
        if p.shape[-1] < M or table.shape[1] < S:
            continue
        listed = torch.zeros_like(p, dtype=torch.bool).scatter(-1, order[..., :M], True)
        listed = listed.scatter(-1, table[before][..., :S], True)
        size = listed.sum(-1)
        mass = (p * listed).sum(-1).mean(0)
        ideal = best.gather(-1, size[..., None] - 1).mean()
        away = (cut_all(p * listed, top_p) - true).abs().sum(-1) / 2
        print(
            f"{M:<5} {S:<5} {float(size.float().mean()):<7.0f} {[f'{float(x):.3f}' for x in mass]} "
            f"{float(ideal):<10.3f} {[f'{float(x):.3f}' for x in away.mean(0)]}"
        )


def cut_all(p: Tensor, top_p: float) -> Tensor:
    return cut(p.flatten(0, 1), top_p).view_as(p)


def without_edges(model: Model) -> Model:
    plain = Model(replace(model.config, edge="none", edge_second_rank=0), model.tokenizer).to(model.device)
    plain.load_state_dict({name: x for name, x in model.state_dict().items() if "head.edge" not in name})
    return plain.eval()


def milliseconds(model: Model, prompts: list[list[int]], new_tokens: int, **options) -> float:
    """Of a pass, the best of three texts' means; the first call also finds the successors."""
    found = []
    for _ in range(4):
        start = time.perf_counter()
        out = generate(model, prompts, max_new_tokens=new_tokens, seed=0, **options)
        found.append(1e3 * (time.perf_counter() - start) / max(out.forward_passes))
    return min(found[1:])


def times(model: Model, rows: Tensor, batches: tuple[int, ...]) -> None:
    N, plain = model.config.block_size, without_edges(model)
    print("milliseconds of a pass: batch, tokens a pass, without edges, vocabulary, shortlists")
    for batch in batches:
        prompts = [row[:64].tolist() for row in rows.repeat(-(-batch // len(rows)), 1)[:batch]]
        for steps in (N, N // 2, 1):
            how = {"sampler": "random", "steps": steps}
            found = [milliseconds(plain, prompts, 2 * N, **how)]
            for M in (None, 512, 1024, 2048):
                found.append(milliseconds(model, prompts, 2 * N, shortlist=M, **how))
            print(batch, N // steps, [round(x, 2) for x in found], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", help="a folder")
    parser.add_argument("text", help="a text file, held out")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=128)
    parser.add_argument("--top-p", type=float, default=0.9)
    parser.add_argument("--batches", type=int, nargs="*", default=(1, 8))
    options = parser.parse_args()
    model = load(options.model)
    assert model.tokenizer is not None
    ids = model.tokenizer.encode(Path(options.text).read_text(encoding="utf-8"))
    L = min(512, model.config.context)
    rows = torch.tensor(ids[: len(ids) // L * L]).view(-1, L)
    rows = rows[:: max(1, len(rows) // options.rows)][: options.rows]
    shares(model, rows, options.blocks, options.top_p)
    times(model, rows, tuple(options.batches))


if __name__ == "__main__":
    main()
