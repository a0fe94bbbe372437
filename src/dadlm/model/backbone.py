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

from dadlm.model import fused, kernels
from dadlm.model.attention import (
    NodeAttention,
    attend_and_write,
    attend_nodes,
    attend_one_block,
    attend_read,
    attend_tree,
    softmax_average,
)
from dadlm.model.config import ModelConfig
from dadlm.model.context import Context
from dadlm.model.layer import (
    Attend,
    Condition,
    Layer,
    Modulation,
    Norm,
    Rotation,
    Shared,
    every_rotation,
    refreshed,
    rotation,
)
from dadlm.nodes import Nodes, expand


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
        self.kept: Rotation | None = None
        self.buffer: Rotation | None = None  # the same tensors, while nobody keeps them
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
        whole, one_by_one = position is None, visible is None and block == 1
        if position is None:
            position = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        if visible is None:
            visible = (position // block + 1) * block
            visible = visible.clamp(max=ids.shape[1]) if whole else visible  # the last block may be short
        if self.config.asks_before:
            context.remember(ids, position)
        shared = self.shared(position, adapted=not self.config.lora_gated)

        def attend(index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            seen = context.store(index, k, v, position)
            return attend_read(q, *seen, visible, in_order, shared.grad)

        def at_once(index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor | None:
            """Of one token behind the text that the context holds."""
            held = context.in_place(index) if one_by_one and ids.shape[1] == 1 else None
            if held is None or not kernels.turns(q, shared.grad):
                return None
            return attend_and_write(q, k, v, held, position, shared.rotation)

        last = len(self.layers) - int(only_context)
        x = self._through(self.embed(ids), shared, range(last), attend, at_once)
        if only_context:
            _, k, v = self.layer_list()[-1].project(x, shared)
            context.store(last, k, v, position)
        return x

    def read_tree(
        self, ids: Tensor, context: Context, *, position: Tensor, visible: Tensor, sees: Tensor
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Run trees of tokens ids [B, C] that follow clean text, leaving nothing in `context`.

        A node stands at `position` [B, C] and sees the first visible [B, C] positions of the text and the
        nodes that `sees` [B, C, C] allows: its ancestors and itself. Returns the final hidden states
        [B, C, D], and the keys and values [B, C, H', E] of each layer, for `Context.store`.
        """
        shared = self.shared(position, adapted=not self.config.lora_gated)
        x, kept = self.embed(ids), list[tuple[Tensor, Tensor]]()
        for index, layer in enumerate(self.layer_list()):
            q, k, v = layer.project(x, shared)
            kept.append((k, v))
            x = layer.finish(x, attend_tree(q, k, v, context[index], visible, sees), shared)
        return self.finish(x, shared.condition, shared.grad), kept

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
        x, late = nodes.collapsed.from_slots(self.embed(ids)), 0
        if start is not None and candidate is not None:
            late = self.config.expand_at
            if late:
                x = self._run(x, nodes.collapsed, context, range(late))
            x = expand(x, candidate, start, nodes)
        return self._run(x, nodes, context, range(late, len(self.layers)))

    def keep_constants(self) -> None:
        """See `Model.keep_constants`: the modulations of adaLN, and the rotary turns of all positions."""
        device = self.embedding.weight.device
        if self.buffer is None or self.buffer[0].device != device:  # no weight changes them
            self.buffer = every_rotation(self.config, device)
        self.kept = self.buffer
        condition = self._condition()
        for modulation in self.modulations():
            modulation.kept = modulation.buffer = refreshed(modulation.buffer, modulation(condition))

    def release_constants(self) -> None:
        self.kept = None
        for modulation in self.modulations():
            modulation.kept = None

    def drop_constants(self) -> None:
        """Give the memory of constants back."""
        self.buffer = None
        for modulation in self.modulations():
            modulation.buffer = None

    def modulations(self) -> list[Modulation]:
        return [module for module in self.modules() if isinstance(module, Modulation)]

    def compile_parts(self) -> None:
        """Fuse the pure parts with torch.compile: functions from tensors to tensors, never the layouts and
        caches between them, so that there are no graph breaks."""
        torch._dynamo.config.recompile_limit = 64  # the default of 8 is less than the shapes that occur
        for layer in self.layer_list():
            layer.project = torch.compile(layer.project, dynamic=False)
            layer.finish = torch.compile(layer.finish, dynamic=False)
        self.finish = torch.compile(self.finish, dynamic=False)
        average = torch.compile(softmax_average, dynamic=False)
        self.attend_nodes = partial(attend_nodes, average=average)

    def _run(self, x: Tensor, nodes: Nodes, context: Context | None, layers: range) -> Tensor:
        position, seen = nodes.position, nodes
        if self.config.shift:
            position = position - nodes.is_candidate.to(position.dtype)
            # A masked first token stands in the place of the last clean one: that must not be seen twice.
            seen = replace(nodes, first=nodes.first - nodes.masked[..., 0].to(nodes.first.dtype))
        shared = self.shared(position)
        direct = self.attend_nodes is attend_nodes and context is not None and seen.is_one_block

        def attend(index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            prefix = None if context is None else context[index]
            return self.attend_nodes(q, k, v, prefix=prefix, nodes=seen, grad=shared.grad)

        def at_once(index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor | None:
            if not direct or context is None or not kernels.turns(q, shared.grad):
                return None
            return attend_one_block(q, k, v, context[index], seen, shared.rotation)

        return self._through(x, shared, layers, attend, at_once)

    def _through(
        self, x: Tensor, shared: Shared, layers: range, attend: fused.Attend, at_once: fused.AtOnce
    ) -> Tensor:
        """The residual stream behind some layers; behind the last one, the final hidden states. `at_once` is
        the rotary turn and `attend` in one, or None where that cannot be done."""
        ends = layers.stop == len(self.layers)
        if layers and fused.usable(self, x, shared):
            following = fused.Following(self.norm, *self.modulation(shared.condition)) if ends else None
            some = [self.layer_list()[index] for index in layers]
            return fused.through(some, layers.start, x, shared, attend, at_once, following)
        for index in layers:
            x = self._pass(self.layers[index], x, shared, partial(attend, index))
        return self.finish(x, shared.condition, shared.grad) if ends else x

    def _pass(self, layer: nn.Module, x: Tensor, shared: Shared, attend: Attend) -> Tensor:
        if self.checkpointing and shared.grad:
            return checkpoint(layer, x, shared, attend, use_reentrant=False)  # type: ignore[return-value]
        return layer(x, shared, attend)

    def layer_list(self) -> list[Layer]:
        return [layer for layer in self.layers if isinstance(layer, Layer)]

    def shared(self, position: Tensor, adapted: bool | Tensor = True) -> Shared:
        """Here, once for a pass, the gradient mode decides which algorithms are used. Gated adapters take no
        part in clean text."""
        turn = rotation(position, self.config.query_width, self.config.rope_theta, self.kept)
        return Shared(turn, self._condition(), torch.is_grad_enabled(), adapted)

    def embed(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        if self.mask_change is None:
            return x
        return x + self.mask_change * (ids == self.config.mask_id)[..., None]

    def _condition(self) -> Tensor | None:
        return None if self.condition is None or self.modulation.kept is not None else self.condition()

    def finish(self, x: Tensor, condition: Tensor | None, grad: bool) -> Tensor:
        hidden = self.norm(x, *self.modulation(condition), grad)
        if torch.is_autocast_enabled(x.device.type):  # once, and not in every product that takes it
            hidden = hidden.to(torch.get_autocast_dtype(x.device.type))
        return hidden
