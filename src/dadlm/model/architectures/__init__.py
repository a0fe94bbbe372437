"""The layers a backbone may have, by name. A new one is a class in a file of its own and an entry here."""

from typing import Literal

from dadlm.model.architectures.bd3lm import Bd3lm
from dadlm.model.architectures.lean import Lean
from dadlm.model.architectures.llama import Llama

ArchitectureName = Literal["lean", "bd3lm", "llama"]
ARCHITECTURES: dict[str, type[Lean]] = {"lean": Lean, "bd3lm": Bd3lm, "llama": Llama}

__all__ = ["ARCHITECTURES", "ArchitectureName"]
