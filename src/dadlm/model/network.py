"""A model of any family: backbone, vocabulary head and, for DA-DLM, the parts that make the graph.

B rows, C nodes, D width, G blocks, N block size, K candidates, L sequence length.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dadlm.model.backbone import Backbone
from dadlm.model.config import ModelConfig
from dadlm.model.context import Context
from dadlm.model.emission import Head
from dadlm.model.lora import freeze
from dadlm.model.transition import GatedTransition, SingleTransition
from dadlm.nodes import Nodes, Rooms, lay_out
from dadlm.tokens import Tokenizer


@dataclass(frozen=True)
class Denoised:
    """Hidden states [B, C, D] of the nodes of some blocks."""

    nodes: Nodes
    hidden: Tensor


class Graph(nn.Module):
    """What DA-DLM adds to BD3LM: start node, candidate embeddings, transitions."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        # Both enter the residual stream at `expand_at`, and are of its scale there.
        self.start = nn.Parameter(torch.randn(config.width) * config.candidate_scale)
        self.candidate = nn.Parameter(torch.randn(config.candidates, config.width) * config.candidate_scale)
        kind = {"single": SingleTransition, "gated": GatedTransition}[config.transition]
        self.transition = kind(config)


class Engines(list):
    """Decoding engines that wait for the next call; a copy of the model has none."""

    def __deepcopy__(self, memo: dict) -> "Engines":
        return Engines()

    def __reduce__(self) -> tuple[type, tuple]:
        return Engines, ()


class Model(nn.Module):
    """Any of the four families; `config.family` says which calls make sense."""

    def __init__(self, config: ModelConfig, tokenizer: Tokenizer | None = None) -> None:
        super().__init__()
        self.config, self.tokenizer = config, tokenizer
        self.engines = Engines()
        self.backbone = Backbone(config)
        self.head = Head(config, self.backbone.embedding)
        self.graph = Graph(config) if config.family == "dadlm" else None
        self._initialise()
        if config.lora:
            freeze(self)

    @property
    def device(self) -> torch.device:
        return self.backbone.embedding.weight.device

    @contextmanager
    def constants_kept(self) -> Iterator[None]:
        """While this is open, what depends on the weights alone is computed once, not in every pass."""
        with self.backbone.constants_kept(), self.head.constants_kept():
            yield

    def read(self, ids: Tensor, context: Context | None = None, **how) -> Tensor:
        """Run clean (ar, block families) or noisy (mdlm) sequences; see `Backbone.read`."""
        block = ids.shape[1] if self.config.family == "mdlm" else self.config.block
        return self.backbone.read(ids, Context() if context is None else context, block=block, **how)

    def denoise(
        self,
        ids: Tensor,
        masked: Tensor,
        first: Tensor,
        context: Context | None,
        packed: bool = True,
        rooms: Rooms | None = None,
    ) -> Denoised:
        """Run blocks ids [B, G, N], masked where `masked`, that start at positions first [B, G]."""
        graph, K = self.graph, self.config.nodes_per_mask
        nodes = lay_out(masked, first, candidates=K, start=graph is not None, packed=packed, rooms=rooms)
        noisy = ids.masked_fill(masked, self.config.mask_id)
        if self.config.shift and context is not None:
            noisy = torch.where(masked, _tokens_before(noisy, context.before(first)), noisy)
        start, candidate = (None, None) if graph is None else (graph.start, graph.candidate)
        return Denoised(nodes, self.backbone.denoise(noisy, nodes, context, start, candidate))

    def transition_logp(self, denoised: Denoised) -> Tensor:
        """[B, G, N, K, K]; with one node per position every transition is certain."""
        if self.graph is None:
            B, G, N = denoised.nodes.masked.shape
            return denoised.hidden.new_zeros(B, G, N, 1, 1, dtype=torch.float32)
        return self.graph.transition(denoised.hidden, denoised.nodes)

    def emission_logp(self, denoised: Denoised, target: Tensor) -> Tensor:
        """[B, G, N, K]: log-probability of target ids [B, G, N] at each node.

        Anchors are certain (0), nodes that do not exist impossible (-inf), and the vocabulary head runs
        on the nodes of masked positions only.
        """
        nodes, heads = denoised.nodes, denoised.nodes.heads
        ids = heads.take(target.flatten(1).gather(1, nodes.group.clamp(min=0)).flatten())
        candidate = heads.take(nodes.candidate.flatten())
        logp = self.head.target_logp(heads.take(denoised.hidden.flatten(0, 1)), ids, candidate)
        packed = heads.put(logp).view(denoised.hidden.shape[:2])
        return nodes.groups(nodes.to_slots(packed)).masked_fill(~nodes.active, -torch.inf)

    def _initialise(self) -> None:
        """lean, llama: normal(0.02), residual outputs less with depth. bd3lm: zero head and modulation."""
        lean = self.config.architecture != "bd3lm"
        for name, module in self.named_modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            elif isinstance(module, nn.Linear) and lean:
                depth = (2 * self.config.layers) ** -0.5 if name.endswith((".out", ".down")) else 1.0
                nn.init.normal_(module.weight, std=0.02 * depth)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Linear) and (name == "head.linear" or ".modulation" in f".{name}"):
                nn.init.zeros_(module.weight)
                nn.init.zeros_(module.bias)


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """While this is open, the model does not train."""
    training = model.training
    if training:
        model.eval()
    try:
        yield
    finally:
        if training:
            model.train()


def _tokens_before(ids: Tensor, last: Tensor) -> Tensor:
    """The token before each of ids [B, G, N], whose blocks follow the tokens last [B, G]."""
    return torch.cat([last[..., None], ids[..., :-1]], -1)


def count_parameters(config: ModelConfig) -> dict[str, int]:
    """Parameters by part; a tied head counts once, with the embedding."""
    with torch.device("meta"):
        model = Model(config)
    parts = {
        "embedding": model.backbone.embedding,
        "layers": model.backbone.layers,
        "transition": None if model.graph is None else model.graph.transition,
    }
    counts = {
        name: sum(p.numel() for p in part.parameters()) for name, part in parts.items() if part is not None
    }
    total = sum(p.numel() for p in model.parameters())
    return {**counts, "other": total - sum(counts.values()), "total": total}
