"""Model cards, and the Hugging Face hub; `dadlm.load("owner/name")` loads what is put there."""

import re
from pathlib import Path

from dadlm.errors import CheckpointError, ConfigError
from dadlm.model import Model
from dadlm.model.checkpoint import count_parameters

CARD = "README.md"
_NAMES = {"ar": "autoregressive", "mdlm": "MDLM", "bd3lm": "BD3LM", "dadlm": "DA-DLM"}


def check_name(name: str) -> None:
    """Checked before anything is written."""
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name, re.ASCII):
        raise ConfigError(f"a model on the hub is called OWNER/NAME, got {name!r}")


def push(folder: Path, name: str, private: bool = False) -> str:
    """Upload all files of a folder to the repository `name`, created if needed; returns its address."""
    from huggingface_hub import HfApi  # here, because it takes a second to import

    check_name(name)
    try:
        api = HfApi()
        address = api.create_repo(name, repo_type="model", private=private, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, commit_message="Upload by dadlm")
    except Exception as error:  # of half a dozen libraries, all meaning that the hub refused it
        reason = str(error).strip().split("\n")[0]
        message = f"the hub did not take {name}: {reason} (hf auth login says who you are)"
        raise CheckpointError(message) from error
    return str(address)


def card_of(model: Model) -> str:
    """Markdown with the front matter that the hub reads; what only the model's maker knows is left open."""
    config = model.config
    blocks = f", blocks of {config.block_size}" if config.family in ("bd3lm", "dadlm") else ""
    candidates = f", {config.candidates} candidates" if config.family == "dadlm" else ""
    return f"""---
library_name: dadlm
pipeline_tag: text-generation
tags: [dadlm, {config.family}, diffusion]
---

# {_NAMES[config.family]} language model

{count_parameters(config)["total"]:,} parameters: {config.layers} layers of width {config.width}, vocabulary
{config.vocab_size:,}, context {config.context:,}{blocks}{candidates}.

```python
import dadlm

model = dadlm.load("NAME")  # this repository or a copy of it
print(dadlm.generate(model, ["Once upon a time"], seed=1).texts[0])
```

```python
from transformers import pipeline  # pip install 'dadlm[transformers]'

write = pipeline("text-generation", model="NAME", trust_remote_code=True)  # runs modeling_dadlm.py
print(write("Once upon a time", max_new_tokens=64)[0]["generated_text"])
```

## Data, licence, limits

To be written by whoever trained it: the text it was trained on, its licence, what it must not be used for.
"""
