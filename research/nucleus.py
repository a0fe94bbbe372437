"""What top-p leaves of a model's prediction of one token, for each kind of nucleus.

    python -m research.nucleus --ar runs/study/ar --bd3lm runs/study/bd3lm-16-long \\
        --dadlm runs/study/dadlm-16-long --valid SHARDS

Blocks of true text, masked at random, and one masked position of each. For every way to draw its token: how
many tokens can be drawn, their entropy, whether the true one is among them, and the mean −log q of what is
drawn under an AR model that reads the text up to there. All ways see the same positions; differences are
paired.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor

from dadlm import dag
from dadlm.decode.sample import nucleus
from dadlm.evaluate import bootstrap
from dadlm.model import Context, Model, load
from dadlm.tokens import Rows, Shards

FIRST, LAST = 4, 24  # blocks of a row to look at


@torch.inference_mode()
def emissions(model: Model, before: Tensor, block: Tensor, masked: Tensor, at: int) -> tuple[Tensor, Tensor]:
    """Priors [K] of the nodes of one position of a block [N], and what they emit [K, V]."""
    context = Context()
    model.read(before[None], context)
    first = torch.tensor([[len(before)]])
    denoised = model.denoise(block[None, None], masked[None, None], first, context, packed=False)
    nodes = denoised.nodes
    hidden = nodes.groups(nodes.to_slots(denoised.hidden))[0, 0, at]
    each = torch.stack([model.head.token_logits(one, k).softmax(-1) for k, one in enumerate(hidden)])
    if model.config.family == "bd3lm":
        return torch.ones(1), each
    return dag.node_marginals(model.transition_logp(denoised)[0, 0])[at].exp(), each


def drawn(prior: Tensor, each: Tensor, top_p: float) -> dict[str, Tensor]:
    """Distributions [V] of the token: uncut, cut by the nucleus of its candidate, or of the position."""
    together = (prior[:, None] * each).sum(0)
    own = nucleus(each, top_p)
    ways = {"uncut": together, "position": nucleus(together[None], top_p)[0]}
    if len(prior) > 1:
        ways["candidate"] = (prior[:, None] * own / own.sum(-1, keepdim=True)).sum(0)
    return {name: p / p.sum() for name, p in ways.items()}


def measured(p: Tensor, judge: Tensor, true: int) -> dict[str, float]:
    return {
        "tokens": float((p > 0).sum()),
        "entropy": float(torch.special.entr(p).sum()),
        "judge": float(-(p * judge).sum()),
        "true": float(p[true] > 0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for family in ("ar", "bd3lm", "dadlm"):
        parser.add_argument(f"--{family}", default=family, help="a folder; the shipped one")
    parser.add_argument("--valid", required=True, help="folder of token shards")
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--top-p", type=float, default=0.9)
    options = parser.parse_args()
    ar, *models = (load(getattr(options, family)) for family in ("ar", "bd3lm", "dadlm"))
    rows = Rows.from_shards(Shards.open(Path(options.valid)), ar.config.context)
    random = torch.Generator().manual_seed(0)
    N = models[0].config.block_size
    found: dict[str, list[dict[str, float]]] = {}
    for _ in range(options.cases):
        row = rows[int(torch.randint(len(rows), (), generator=random))]
        start = N * int(torch.randint(FIRST, LAST, (), generator=random))
        masked = torch.rand(N, generator=random) < torch.rand((), generator=random)
        at = int(torch.randint(N, (), generator=random))
        masked[at] = True
        before, block = row[:start], row[start : start + N]
        with torch.inference_mode():
            judge = ar.head.token_logits(ar.read(row[None, : start + at])[0, -1]).log_softmax(-1)
        for model in models:
            for way, p in drawn(*emissions(model, before, block, masked, at), options.top_p).items():
                entry = measured(p, judge, int(block[at]))
                found.setdefault(f"{model.config.family}, {way}", []).append(entry)
    print(f"{options.cases} places, top-p {options.top_p}")
    for name, entries in found.items():
        means = {key: sum(one[key] for one in entries) / len(entries) for key in entries[0]}
        base = found[f"bd3lm, {'uncut' if name.endswith('uncut') else 'position'}"]
        less = torch.tensor([a["judge"] - b["judge"] for a, b in zip(entries, base, strict=True)])
        print(f"{name:18s}", {k: round(v, 3) for k, v in means.items()}, "judge − BD3LM's:", bootstrap(less))


if __name__ == "__main__":
    main()
