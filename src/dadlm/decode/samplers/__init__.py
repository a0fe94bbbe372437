"""The samplers by name: the command line, the API's schema, the playground and the presets read this
registry.

To add one: write a file with a subclass of `Sampler`, and name it in `SamplerName` and `SAMPLERS`.
"""

from typing import Literal

from dadlm.decode.samplers.base import Block, Proposal, Sampler
from dadlm.decode.samplers.confidence import Confidence
from dadlm.decode.samplers.dilated import Dilated
from dadlm.decode.samplers.entropy import Entropy
from dadlm.decode.samplers.first_hitting import FirstHitting
from dadlm.decode.samplers.random import Random

SamplerName = Literal["first-hitting", "random", "confidence", "entropy", "dilated"]
SAMPLERS: dict[str, Sampler] = {
    sampler.name: sampler for sampler in (FirstHitting(), Random(), Confidence(), Entropy(), Dilated())
}

__all__ = ["SAMPLERS", "Block", "Proposal", "Sampler", "SamplerName"]
