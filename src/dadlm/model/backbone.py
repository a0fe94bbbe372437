"""The transformer shared by all families: a clean stream to read, and nodes to denoise against it.

`read` runs clean text block by block causally: with blocks of one token it is an AR model, or the clean half
of a model with `causal_context`; with one block as long as the text it is MDLM, and with blocks of N it is
the clean half of block diffusion.
`denoise` runs the nodes of the noisy blocks, which see the keys and values that `read` left behind.
In a model that began as a causal one (`config.shift`) a masked node takes the place of the token before it.

B rows, C tokens or nodes, D width, G blocks, N block size, K candidates.
"""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dadlm.model.attention import NodeAttention, attend_nodes, attend_read, attend_tree, softmax_average
from dadlm.model.config import ModelConfig
from dadlm.model.layer import Attend, Condition, Layer, Modulation, Norm, Shared, refreshed, rotation
from dadlm.nodes import Nodes, expand


class Context:
    """Keys and values of the clean stream: what a block sees of the text before it. It keeps whole sequences,
    as in training; `decode.cache` has the growing form of it."""

    def __init__(self) -> None:
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        self._ids: Tensor | None = None

    def store(self, layer: int, k: Tensor, v: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """Take keys and values [B, C, H, E] of positions [B, C]; give all that the layer holds."""
        del position  # whole sequences come in order
        self._layers[layer] = (k, v)
        return k, v

    def remember(self, ids: Tensor, position: Tensor) -> None:
        """Take the tokens [B, C] of positions [B, C]; with `config.asks_before` some are wanted."""
        del position
        self._ids = ids

    def before(self, first: Tensor) -> Tensor:
        """The tokens before positions first [B, G]; before position 0, which is never masked, any."""
        assert self._ids is not None
        return self._ids.gather(1, (first - 1).clamp(min=0))

    def __getitem__(self, layer: int) -> tuple[Tensor, Tensor]:
        return self._layers[layer]


class Backbone(nn.Module):
    def __init__(self, config: ModelConfig, attend_nodes: NodeAttention = attend_nodes) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = Norm(config)
        self.modulation = Modulation(config, 2)
        width = config.architecture_class.condition_width
        self.condition = Condition(width) if width else None
        self.mask_change = nn.Parameter(torch.zeros(config.width)) if config.lora else None
        self.attend_nodes = attend_nodes
        self.keepers = 0  # see `Model.keep_constants`
        self.checkpointing = False  # recompute the layers in backward instead of keeping what they made

    def read(
        self,
        ids: Tensor,
        context: Context,
        *,
        block: int,
        position: Tensor | None = None,
        visible: Tensor | None = None,
        only_context: bool = False,
    ) -> Tensor:
        """Run ids [B, C] in blocks of `block` tokens and leave their keys and values in `context`.

        A token sees every block up to its own, or as many positions as `visible` [B, C] says. Without
        `position` [B, C] the ids are whole sequences. Returns the final hidden states [B, C, D]; with
        `only_context` the last layer stops at its keys and values, and what comes back has no meaning.
        """
        in_order = block if position is None and visible is None else None
        whole = position is None
        if position is None:
            position = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        if visible is None:
            visible = (position // block + 1) * block
            visible = visible.clamp(max=ids.shape[1]) if whole else visible  # the last block may be short
        if self.config.asks_before:
            context.remember(ids, position)
        shared = self._shared(position, clean=True)
        x = self._embed(ids)
        for index, layer in enumerate(self._layers()):
            if only_context and index == len(self.layers) - 1:
                _, k, v = layer.project(x, shared)
                context.store(index, k, v, position)
                return x

            def attend(q: Tensor, k: Tensor, v: Tensor, index: int = index) -> Tensor:
                seen = context.store(index, k, v, position)
                return attend_read(q, *seen, visible, in_order, shared.grad)

            x = self._pass(layer, x, shared, attend)
        return self._finish(x, shared.condition, shared.grad)

    def read_tree(
        self, ids: Tensor, context: Context, *, position: Tensor, visible: Tensor, sees: Tensor
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Run trees of tokens ids [B, C] that follow clean text, leaving nothing in `context`.

        A node stands at `position` [B, C] and sees the first visible [B, C] positions of the text and the
        nodes that `sees` [B, C, C] allows: its ancestors and itself. Returns the final hidden states
        [B, C, D], and the keys and values [B, C, H, E] of each layer, for `Context.store`.
        """
        shared, x, kept = self._shared(position, clean=True), self._embed(ids), list[tuple[Tensor, Tensor]]()
        for index, layer in enumerate(self._layers()):
            q, k, v = layer.project(x, shared)
            kept.append((k, v))
            x = layer.finish(x, attend_tree(q, k, v, context[index], visible, sees), shared)
        return self._finish(x, shared.condition, shared.grad), kept

    def denoise(
        self,
        ids: Tensor,
        nodes: Nodes,
        context: Context | None,
        start: Tensor | None,
        candidate: Tensor | None,
    ) -> Tensor:
        """Run the noisy blocks ids [B, G, N] as nodes; final hidden states [B, C, D].

        The first `expand_at` layers see one node per position, as BD3LM's do; the others K per masked one and
        the start node. `start` [D] and `candidate` [K, D] are the embeddings that only DA-DLM has.
        """
        x, late = nodes.collapsed.from_slots(self._embed(ids)), 0
        if start is not None and candidate is not None:
            late = self.config.expand_at
            if late:
                x = self._run(x, nodes.collapsed, context, range(late))
            x = expand(x, candidate, start, nodes)
        x = self._run(x, nodes, context, range(late, len(self.layers)))
        return self._finish(x, self._condition(), torch.is_grad_enabled())

    def keep_constants(self) -> None:
        """See `Model.keep_constants`: the modulations of adaLN."""
        condition = self._condition()
        for modulation in self.modulations():
            modulation.kept = modulation.buffer = refreshed(modulation.buffer, modulation(condition))

    def release_constants(self) -> None:
        for modulation in self.modulations():
            modulation.kept = None

    def drop_constants(self) -> None:
        """Give the memory of constants back."""
        for modulation in self.modulations():
            modulation.buffer = None

    def modulations(self) -> list[Modulation]:
        return [module for module in self.modules() if isinstance(module, Modulation)]

    def compile_parts(self) -> None:
        """Fuse the pure parts with torch.compile: functions from tensors to tensors, never the layouts and
        caches between them, so that there are no graph breaks."""
        torch._dynamo.config.recompile_limit = 64  # the default of 8 is less than the shapes that occur
        for layer in self._layers():
            layer.project = torch.compile(layer.project, dynamic=False)
            layer.finish = torch.compile(layer.finish, dynamic=False)
        self._finish = torch.compile(self._finish, dynamic=False)
        average = torch.compile(softmax_average, dynamic=False)
        self.attend_nodes = partial(attend_nodes, average=average)

    def _run(self, x: Tensor, nodes: Nodes, context: Context | None, layers: range) -> Tensor:
        position, seen = nodes.position, nodes
        if self.config.shift:
            position = position - nodes.is_candidate.to(position.dtype)
            # A masked first token stands in the place of the last clean one: that must not be seen twice.
            seen = replace(nodes, first=nodes.first - nodes.masked[..., 0].to(nodes.first.dtype))
        shared = self._shared(position)
        for index in layers:
            prefix = None if context is None else context[index]
            attend = partial(self.attend_nodes, prefix=prefix, nodes=seen, grad=shared.grad)
            x = self._pass(self.layers[index], x, shared, attend)
        return x

    def _pass(self, layer: nn.Module, x: Tensor, shared: Shared, attend: Attend) -> Tensor:
        if self.checkpointing and shared.grad:
            return checkpoint(layer, x, shared, attend, use_reentrant=False)  # type: ignore[return-value]
        return layer(x, shared, attend)

    def _layers(self) -> list[Layer]:
        return [layer for layer in self.layers if isinstance(layer, Layer)]

    def _shared(self, position: Tensor, clean: bool = False) -> Shared:
        """Here, once for a pass, the gradient mode decides which algorithms are used, and whose text it is
        whether adapters take part."""
        turn = rotation(position, self.config.query_width, self.config.rope_theta)
        adapted = not (clean and self.config.lora_gated)
        return Shared(turn, self._condition(), torch.is_grad_enabled(), adapted)

    def _embed(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        if self.mask_change is None:
            return x
        return x + self.mask_change * (ids == self.config.mask_id)[..., None]

    def _condition(self) -> Tensor | None:
        return None if self.condition is None or self.modulation.kept is not None else self.condition()

    def _finish(self, x: Tensor, condition: Tensor | None, grad: bool) -> Tensor:
        hidden = self.norm(x, *self.modulation(condition), grad)
        if torch.is_autocast_enabled(x.device.type):  # once, and not in every product that takes it
            hidden = hidden.to(torch.get_autocast_dtype(x.device.type))
        return hidden
