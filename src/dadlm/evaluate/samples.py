"""Prompts from rows of text, their completions by a model, and the true continuations.

Sample i continues the first tokens of row i with seed + i: the same prompts and random numbers for every
model and configuration, in any batch and for any number of samples.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dadlm.decode import generate
from dadlm.errors import ConfigError
from dadlm.evaluate.presets import Configuration, default_prompt_tokens
from dadlm.evaluate.subject import essence
from dadlm.evaluate.text import documents_of, pick
from dadlm.evaluate.work import Work
from dadlm.model import Model
from dadlm.model.files import whole_file
from dadlm.tokens import Rows, Tokenizer


@dataclass(frozen=True)
class PromptSet:
    """Prompts, how the text really continues, and how many tokens to generate."""

    rows: Rows
    """Of prompt and true continuation."""
    source: str | None
    """Where the rows come from."""
    tokenizer: Tokenizer
    prompt_tokens: int
    new_tokens: int
    indices: list[int]
    """Of the samples: that of the row, or beyond the number of rows where these are used more than once."""
    seed: int

    def prompt(self, index: int) -> list[int]:
        return self.rows[index % len(self.rows)][: self.prompt_tokens].tolist()

    @cached_property
    def texts(self) -> list[str]:
        return [self.tokenizer.decode(self.prompt(index)) for index in self.indices]

    @cached_property
    def documents(self) -> Tensor:
        """[samples]: the document of each prompt."""
        return documents_of(self.rows, self.tokenizer.eot_id)[torch.tensor(self.indices) % len(self.rows)]

    @cached_property
    def truth(self) -> list[list[int]]:
        """How each row continues, once; up to its first end-of-text, as completions are."""
        end = self.prompt_tokens + self.new_tokens
        rows = [self.rows[index] for index in self.indices[: len(self.rows)]]
        texts = [row[self.prompt_tokens : end].tolist() for row in rows]
        eot_id = self.tokenizer.eot_id
        return [ids[: ids.index(eot_id) + 1] if eot_id in ids else ids for ids in texts]


def prompt_set(
    models: Mapping[str, Model],
    rows: Rows,
    source: str | None,
    prompt_tokens: int | None,
    new_tokens: int | None,
    samples: int,
    seed: int,
) -> PromptSet:
    """Prompts that all models can complete."""
    context = min(rows.context, *(model.config.context for model in models.values()))
    prompt_tokens = default_prompt_tokens(context) if prompt_tokens is None else prompt_tokens
    new_tokens = context - prompt_tokens if new_tokens is None else new_tokens
    if prompt_tokens < 1 or new_tokens < 1 or prompt_tokens + new_tokens > context:
        raise ConfigError(
            f"a prompt of {prompt_tokens} tokens and {new_tokens} new ones do not fit: each must be "
            f"at least 1, both together at most {context}, the shortest of the rows and the models' contexts"
        )
    if samples < 1:
        raise ConfigError(f"samples must be at least 1, got {samples}")
    indices = [*pick(rows, samples, seed), *range(len(rows), samples)]
    return PromptSet(rows, source, shared_tokenizer(models), prompt_tokens, new_tokens, indices, seed)


def shared_tokenizer(models: Mapping[str, Model]) -> Tokenizer:
    """The tokenizer of all models, whose ids the rows are and whose tokens TPF counts."""
    (first, model), *others = models.items()
    if model.tokenizer is None:
        raise ConfigError(f"{first} has no tokenizer: put its tokenizer.json into the model's folder")
    for name, other in others:
        if other.tokenizer != model.tokenizer:
            raise ConfigError(
                f"{first} and {name} have different tokenizers, so neither prompts nor tokens per forward "
                "pass can be compared: evaluate them one by one, each into its own --out"
            )
    return model.tokenizer


def make_samples(
    work: Work, prompts: PromptSet, name: str, model: Model, configuration: Configuration, batch_size: int
) -> list[dict[str, Any]]:
    """The samples of one configuration; those missing from `work` are generated and kept batch by batch."""
    settings = replace(configuration.settings, max_new_tokens=prompts.new_tokens)
    run = f"{name}|{configuration.label}|{configuration.fingerprint}"
    keys = [f"{run}|{index}" for index in prompts.indices]
    for batch in work.batches(keys, batch_size, f"{name}, {configuration.label}"):
        indices = [int(key.rpartition("|")[2]) for key in batch]
        given = [prompts.prompt(index) for index in indices]
        seeds = [prompts.seed + index for index in indices]
        made = generate(model, given, seed=seeds, batch_size=batch_size, settings=settings)
        names = ("tokens", "text", "forward_passes", "cache_passes")
        rows = zip(made.tokens, made.texts, made.forward_passes, made.cache_passes, strict=True)
        work.add(zip(batch, (dict(zip(names, row, strict=True)) for row in rows), strict=True))
    return work.values(keys)


def write_samples(
    folder: Path,
    prompts: PromptSet,
    model: Mapping[str, Any],
    configuration: Configuration,
    samples: Sequence[Mapping[str, Any]],
) -> None:
    """One JSON object a line, for people and for the judge; `model` is what `describe` says of it."""
    about = {"model": model["name"], **essence(model), "weights": model["weights"]}
    about |= {"configuration": configuration.label, "source": prompts.source}
    with whole_file(folder / f"{file_name(model['name'], configuration.label)}.jsonl") as handle:
        for index, prompt, sample in zip(prompts.indices, prompts.texts, samples, strict=True):
            line = {**about, "index": index, "seed": prompts.seed + index, "prompt": prompt, **sample}
            line["tokens"] = len(sample["tokens"])
            handle.write((json.dumps(line, ensure_ascii=False) + "\n").encode())


def file_name(*words: str) -> str:
    """Words as a name that every file system takes."""
    return re.sub(r"[^\w.=]+", "-", "-".join(words)).strip("-.")
