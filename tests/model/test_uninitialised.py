"""Models without initial values: the same tensors, nothing drawn, and no compiler imported for them."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from tests.decode.tiny import tiny

from dadlm.model import Model
from dadlm.model.pretrained import NAMES
from dadlm.model.uninitialised import uninitialised


@pytest.mark.parametrize("family", ["ar", "mdlm", "bd3lm", "dadlm"])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_same_tensors_and_nothing_drawn(family: str, device: str) -> None:
    for more in ({}, {"architecture": "bd3lm", "tie_embedding": False}, {"lora": 2}):
        config = replace(tiny(family).config, **more)
        if family == "dadlm":
            config = replace(config, candidate_offset=0.5, track_bias=1.0)
        expected = {name: (x.shape, x.dtype) for name, x in Model(config).state_dict().items()}
        before = torch.get_rng_state()
        found = uninitialised(config, device=device).state_dict()
        assert {name: (x.shape, x.dtype) for name, x in found.items()} == expected
        assert {x.device.type for x in found.values()} == {device}
        assert torch.equal(before, torch.get_rng_state())


def test_loading_imports_no_compiler() -> None:
    """It took a second and 70 MB, in every command."""
    load = f"[dadlm.load(name) for name in {NAMES!r}]"
    code = f"import sys, dadlm; {load}; print('torch._dynamo' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "False\n"
