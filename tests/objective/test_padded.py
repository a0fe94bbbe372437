"""On CUDA nodes before expansion are padded to a grid of tiles; the same on the CPU must change nothing."""

import pytest
import torch
import torch.nn.functional as F
from tests.model.tiny import tiny_model

from dadlm.nodes import Nodes, layout
from dadlm.noise import NoiseConfig, draw_noise
from dadlm.objective import losses


@pytest.mark.parametrize(
    ("family", "changes"),
    [("dadlm", {"expand_at": 0}), ("dadlm", {"expand_at": 1}), ("dadlm", {"candidates": 1}), ("bd3lm", {})],
)
def test_padding_the_collapsed_nodes_changes_no_loss_and_no_gradient(monkeypatch, family, changes):
    def padded(masked, first, start):
        count = masked.shape[1] * (int(start) + masked.shape[2])
        slot = torch.arange(count).expand(len(masked), -1)
        return Nodes(masked, first, 1, start, slot, F.pad(slot, (0, 5), value=-1))

    model = tiny_model(family, **changes)
    length = model.config.context
    ids = torch.randint(0, model.config.eot_id, (3, length), generator=torch.Generator().manual_seed(0))
    noise = draw_noise(
        NoiseConfig(), seed=0, step=0, rows=torch.arange(3), batch_rows=3, length=length, block_size=4
    )
    results = []
    for make in (layout._one_node_each, padded):
        monkeypatch.setattr(layout, "_one_node_each", make)
        loss = losses(model, ids, noise).train.mean()
        results.append((loss, *torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)))
    for plain, other in zip(*results, strict=True):
        if plain is None:  # the only candidate needs no transition
            assert other is None
            continue
        torch.testing.assert_close(plain, other, atol=1e-5, rtol=1e-4)
