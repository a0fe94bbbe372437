"""A model card that says what a model is and how to use it, for models that have none of their own."""

from dadlm.model import Model
from dadlm.model.network import count_parameters

CARD = "README.md"
_NAMES = {"ar": "autoregressive", "mdlm": "MDLM", "bd3lm": "BD3LM", "dadlm": "DA-DLM"}


def card_of(model: Model) -> str:
    """Markdown with the head that the hub reads; what only its maker knows is left to be filled in."""
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
from transformers import AutoModel, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("NAME")
model = AutoModel.from_pretrained("NAME", trust_remote_code=True)  # pip install 'dadlm[transformers]'
ids = tokenizer("Once upon a time", return_tensors="pt").input_ids
print(tokenizer.decode(model.generate(ids, max_new_tokens=64, seed=1)[0]))
```

## Data, licence, limits

To be written by whoever trained it: the text it was trained on, its licence, what it must not be used for.
"""
