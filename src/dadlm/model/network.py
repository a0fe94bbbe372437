"""A model of any family: backbone, vocabulary head and, for DA-DLM, the parts that make the graph.

B rows, C nodes, D width, G blocks, N block size, K candidates, L sequence length.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from dadlm.model.attention import NodeAttention, attend_nodes
from dadlm.model.backbone import Backbone
from dadlm.model.capture import Engines
from dadlm.model.config import ModelConfig
from dadlm.model.context import Context
from dadlm.model.edge import left_of
from dadlm.model.emission import Head
from dadlm.model.lora import freeze
from dadlm.model.scores import Denoised, Scores
from dadlm.model.transition import TRANSITIONS
from dadlm.nodes import PaddedSizes, lay_out, select
from dadlm.noise import Noise
from dadlm.tokens import Tokenizer


class Graph(nn.Module):
    """What DA-DLM adds to BD3LM: start node, candidate embeddings, transitions."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        # Both enter the residual stream at `expand_at`, and are of its scale there.
        self.start = nn.Parameter(torch.randn(config.width) * config.candidate_scale)
        self.candidate = nn.Parameter(torch.randn(config.candidates, config.width) * config.candidate_scale)
        self.transition = TRANSITIONS[config.transition](config)


_keeping = threading.Lock()


class Model(nn.Module):
    """Any of the four families; `config.family` says which calls make sense."""

    if TYPE_CHECKING:  # `dadlm.decode` adds these methods when it is imported
        from dadlm.decode.generate import generate, stream

    def __init__(
        self,
        config: ModelConfig,
        tokenizer: Tokenizer | None = None,
        attend_nodes: NodeAttention = attend_nodes,
    ) -> None:
        """`attend_nodes` may be the slow twin, `attention_dense.attend_nodes`."""
        super().__init__()
        self.config, self.tokenizer = config, tokenizer
        self.turn_end_id: int | None = None
        """What ends a turn of a chat, where no tokenizer is there to say it."""
        self.engines, self.drafted_engines, self.views = Engines(), Engines(), Engines()
        self.backbone = Backbone(config, attend_nodes)
        self.head = Head(config, self.backbone.embedding)
        self.graph = Graph(config) if config.family == "dadlm" else None
        for name, module in self.named_modules():  # norms keep their ones
            if isinstance(module, nn.Embedding):
                is_tokens, kind = module is self.backbone.embedding, config.architecture_class
                nn.init.normal_(module.weight, std=kind.embedding_std(config.width) if is_tokens else 0.02)
            elif isinstance(module, nn.Linear):
                config.architecture_class.initialise(module, name, config.layers)
        if config.lora:
            freeze(self)

    @property
    def device(self) -> torch.device:
        return self.backbone.embedding.weight.device

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The tokens that end what the model writes: end-of-text first; with a chat, what ends a turn too."""
        eot, words = self.config.eot_id, self.tokenizer
        turn_end = self.turn_end_id if words is None else words.turn_end_id
        return (eot,) if turn_end in (None, eot) else (eot, turn_end)

    def keep_constants(self) -> None:
        """Until `release_constants`, compute what depends on the weights alone once, not in every pass."""
        with _keeping:
            for part in (self.head, self.backbone):  # the head may run out of memory: first
                if part.keepers == 0:
                    part.keep_constants()
                part.keepers += 1  # of the part: the modes of a model share their backbone

    def release_constants(self) -> None:
        """The end of one `keep_constants`; the last one counts."""
        with _keeping:
            for part in (self.head, self.backbone):
                part.keepers -= 1
                if part.keepers == 0:
                    part.release_constants()

    def kept_constants(self) -> list[Tensor]:
        """The tensors that `keep_constants` has filled, and last those of `keep_successors`."""
        modulations = (one.kept for one in self.backbone.modulations())
        kept = [self.head.kept, self.backbone.kept, *modulations, self.head.successors]
        return [tensor for tensors in kept for tensor in tensors or () if tensor is not None]

    def drop_constants(self) -> None:
        """Give the memory of kept constants back, if nobody uses them now."""
        with _keeping:
            for part in (self.head, self.backbone):
                if part.keepers == 0:
                    part.drop_constants()

    def forward(
        self,
        ids: Tensor,
        noise: Noise | None,
        *,
        clean: Tensor | None = None,
        loss_mask: Tensor | None = None,
        sizes: PaddedSizes | None = None,
        emissions: bool = True,
        next_tokens: bool = False,
    ) -> Scores:
        """Score rows ids [B, L] under noise (None for AR): read the clean text, denoise its blocks, score.

        `clean` [B, L] is the text that blocks see before them, if it is not `ids`. `loss_mask` [B, L] are the
        positions that count (None: all): AR scores no others, MDLM's rows end behind the last, and blocks go
        by the noise. With `sizes` nothing waits for the device. Without `emissions` the vocabulary head is
        left out. With `next_tokens` a model with `causal_context` also says what an AR model would.
        """
        if self.config.family == "ar":
            hidden = self.read(ids)
            logp = self._next_logp(hidden, ids, loss_mask)[..., None, None] if emissions else None
            return Scores(hidden, None, logp, None)
        assert noise is not None, "all families but AR learn from masked text"
        if self.config.family == "mdlm":
            noisy = ids.masked_fill(noise.masked, self.config.mask_id)
            visible = None
            if loss_mask is not None:  # every position sees up to the last that counts
                end = (loss_mask * torch.arange(1, ids.shape[1] + 1, device=ids.device)).amax(1)
                visible = end[:, None].expand_as(ids)
            hidden = self.read(noisy, visible=visible)
            logp = self._masked_logp(hidden, ids, noise.masked, sizes) if emissions else None
            return Scores(hidden, None, logp, None)
        context, text = Context(), ids if clean is None else clean
        hidden = self.read(text, context, only_context=not next_tokens)
        next_logp = self._next_logp(hidden, text, loss_mask) if next_tokens else None
        blocks, masked, first = noise.split_blocks(ids, self.config.block_size)
        denoised = self.denoise(blocks, masked, first, context, sizes=sizes)
        emission = self.emission_logp(denoised, blocks) if emissions else None
        transition = None if self.graph is None else self.transition_logp(denoised)
        return Scores(denoised.hidden, denoised.nodes, emission, transition, denoised.before, next_logp)

    def _next_logp(self, hidden: Tensor, ids: Tensor, loss_mask: Tensor | None) -> Tensor:
        """[B, L-1]: of each token but the first after those before it; 0 outside the loss mask."""
        assert self.config.clean_block == 1, "a token that sees later ones would know the next"
        hidden, targets = hidden[:, :-1].flatten(0, 1), ids[:, 1:].flatten()
        if loss_mask is None:
            logp = self.head.target_logp(hidden, targets, None)
        elif ids.is_cuda:  # counting the mask would wait for the device
            logp = self.head.target_logp(hidden, targets, None) * loss_mask[:, 1:].flatten()
        else:
            chosen = select(loss_mask[:, 1:].flatten())
            logp = chosen.put(self.head.target_logp(chosen.take(hidden), chosen.take(targets), None))
        return logp.view(len(ids), -1)

    def _masked_logp(self, hidden: Tensor, ids: Tensor, masked: Tensor, sizes: PaddedSizes | None) -> Tensor:
        """[B, 1, L, 1]: of the masked tokens; 0 at the others."""
        chosen = select(masked.flatten(), None if sizes is None else sizes.masked)
        logp = self.head.target_logp(chosen.take(hidden.flatten(0, 1)), chosen.take(ids.flatten()))
        return chosen.put(logp).view(len(ids), 1, -1, 1)

    def read(self, ids: Tensor, context: Context | None = None, **how) -> Tensor:
        """Run clean (ar, block families) or noisy (mdlm) sequences; see `Backbone.read`."""
        block = ids.shape[1] if self.config.family == "mdlm" else self.config.clean_block
        return self.backbone.read(ids, Context() if context is None else context, block=block, **how)

    def denoise(
        self,
        ids: Tensor,
        masked: Tensor,
        first: Tensor,
        context: Context | None,
        packed: bool = True,
        sizes: PaddedSizes | None = None,
    ) -> Denoised:
        """Run blocks ids [B, G, N], masked where `masked`, that start at positions first [B, G]."""
        graph, K = self.graph, self.config.nodes_per_mask
        nodes = lay_out(masked, first, candidates=K, start=graph is not None, packed=packed, sizes=sizes)
        noisy = ids.masked_fill(masked, self.config.mask_id)
        before = first
        if self.config.asks_before and context is not None:
            before = context.before(first)
        if self.config.shift and context is not None:
            noisy = torch.where(masked, torch.cat([before[..., None], noisy[..., :-1]], -1), noisy)
        start, candidate = (None, None) if graph is None else (graph.start, graph.candidate)
        return Denoised(nodes, self.backbone.denoise(noisy, nodes, context, start, candidate), before)

    def transition_logp(self, denoised: Denoised) -> Tensor:
        """[B, G, N, K, K]; with one node per position every transition is certain."""
        if self.graph is None:
            B, G, N = denoised.nodes.masked.shape
            return denoised.hidden.new_zeros(B, G, N, 1, 1, dtype=torch.float32)
        return self.graph.transition(denoised.hidden, denoised.nodes, torch.is_grad_enabled())

    def emission_logp(self, denoised: Denoised, target: Tensor) -> Tensor:
        """[B, G, N, K]: log-probability of target ids [B, G, N] at each node, given the target to its left
        where the model has token edges.

        Anchors are certain (0), nodes that do not exist impossible (-inf), and the vocabulary head runs
        on the nodes of masked positions only.
        """
        nodes, heads, left = denoised.nodes, denoised.nodes.heads, None

        def of_nodes(x: Tensor) -> Tensor:
            """Values of the groups [B, G, N] at the nodes that need the head [n]."""
            return heads.take(x.flatten(1).gather(1, nodes.group.clamp(min=0)).flatten())

        if self.head.edge is not None:
            second = self.head.edge.second is not None
            left = left_of(target, nodes.masked, denoised.before, self.config.mask_id, second).map(of_nodes)
        candidate, hidden = heads.take(nodes.candidate.flatten()), heads.take(denoised.hidden.flatten(0, 1))
        logp = self.head.target_logp(hidden, of_nodes(target), candidate, left)
        packed = heads.put(logp).view(denoised.hidden.shape[:2])
        return nodes.groups(nodes.to_slots(packed)).masked_fill(~nodes.active, -torch.inf)


@contextmanager
def eval_mode(*models: nn.Module) -> Iterator[None]:
    """Models in eval mode (no dropout); those that were in training mode return to it."""
    training = [model for model in models if model.training]
    try:
        for model in training:
            model.eval()
        yield
    finally:
        for model in training:
            model.train()
