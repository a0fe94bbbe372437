"""The models that ship with the package complete one prompt in equal steps; AR judges their perplexity."""

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from torch import Tensor

from dadlm.decode import DecodeSettings, generate, settings_for
from dadlm.errors import ConfigError
from dadlm.model import Model
from dadlm.objective import losses

TEXTS, NEW_TOKENS = 32, 64
SYSTEMS = {
    "AR": "ar",
    "BD3LM": "bd3lm",
    "DA-DLM": "dadlm",
    "BD3LM with edges": "bd3lm-edges",
    "DA-DLM with edges": "dadlm-edges",
}
SHOWN = ("AR", "BD3LM", "DA-DLM with edges")
"""The systems whose first text is printed."""
NOTES = (
    "Perplexity: of all texts under AR, which is lenient with its own. T: steps a block of 16, each of which "
    "writes every fourth word (dilated). Seconds: of one processor, all texts. Edges: a token is scored "
    "given the two before it; counted from text. AR writes the best texts of models of this size; "
    "docs/models.md says which model to use when."
)


@dataclass(frozen=True, kw_only=True)
class Completion:
    """The texts of one system, measured."""

    system: str
    steps: int | None
    """Per block; None: token by token."""
    text: str
    """The first text."""
    seconds: float
    """Processor time of all texts together."""
    tokens: int
    forward_passes: int
    judge_perplexity: float
    """Of all texts, given the prompt."""

    @property
    def decoding(self) -> str:
        return f"T = {self.steps}" if self.steps else "token by token"


def completions(models: Mapping[str, Model], prompt: str, seed: int, judge: Model) -> Iterator[Completion]:
    """Yields each system as soon as it is measured; text i has seed `seed` + i."""
    for system, model in models.items():
        if model.tokenizer is None:
            raise ConfigError("a model without a tokenizer cannot read a prompt")
        ids = model.tokenizer.encode(prompt) or [model.config.eot_id]
        settings = _settings(model, len(ids))
        start = time.process_time()
        out = generate(model, [ids] * TEXTS, seed=seed, batch_size=TEXTS, settings=settings)
        seconds, tokens = time.process_time() - start, sum(map(len, out.tokens))
        yield Completion(
            system=system,
            steps=settings.steps,
            text=out.texts[0],
            seconds=seconds,
            tokens=tokens,
            forward_passes=sum(out.forward_passes),
            judge_perplexity=math.exp(float(_nats(judge, ids, out.tokens)) / tokens),
        )


def _settings(model: Model, prompt: int) -> DecodeSettings:
    """A quarter as many steps as a block has tokens; AR has no choice."""
    N, context = model.config.block, model.config.context
    # Up to the end of a block: tokens that are cut off would cost passes and not count.
    length: dict[str, int] = {"max_new_tokens": max(1, min(prompt + NEW_TOKENS, context) // N * N - prompt)}
    if N == 1:
        return settings_for(model.config, length)
    return settings_for(model.config, length | {"steps": max(1, N // 4)})


@torch.inference_mode()
def _nats(judge: Model, prompt: list[int], texts: list[list[int]]) -> Tensor:
    """Negative log-likelihood of texts after a prompt."""
    longest = max(map(len, texts))
    rows = [prompt + text + [judge.config.eot_id] * (longest - len(text)) for text in texts]
    nll = losses(judge, torch.tensor(rows, device=judge.device), None).train[:, len(prompt) - 1 :]
    written = torch.arange(longest) < torch.tensor([[len(text)] for text in texts])
    return nll.double()[written.to(nll.device)].sum()


def show_completion(row: Completion, prompt: str, console: Console) -> None:
    console.print(Text.assemble((row.system, "bold"), f", {row.decoding}"))
    console.print(Padding(Text.assemble((prompt, "dim"), row.text), (0, 0, 1, 2)))


def compare(rows: list[Completion], console: Console) -> None:
    """A table of all rows."""
    table = Table(
        title=f"{TEXTS} texts after one prompt, about {NEW_TOKENS} tokens each", title_justify="left"
    )
    table.add_column("")
    table.add_column("decoding", no_wrap=True)
    for name in ("tokens\nper pass", "seconds", "perplexity\nunder AR"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        per_pass = f"{row.tokens / row.forward_passes:.2f}"
        table.add_row(
            row.system, row.decoding, per_pass, f"{row.seconds:.1f}", f"{row.judge_perplexity:,.0f}"
        )
    console.print(table)
    console.print(NOTES, style="dim")
