"""Models by the names people type, with a word on standard error where the name alone does not tell which."""

import sys
from pathlib import Path

from dadlm.model import Model, load
from dadlm.model.pretrained import shipped


def open_model(name: str, device: str, dtype: str) -> Model:
    """Load a model; of one that ships with the package, say so."""
    model = load(name, device, dtype)
    if shipped(name) is not None:
        here = f"; the folder {name} that lies here is ./{name}" if Path(name).is_dir() else ""
        print(f"model: {name}, which ships with dadlm (--model for another{here})", file=sys.stderr)
    return model
