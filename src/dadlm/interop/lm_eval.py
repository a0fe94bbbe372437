"""Our models in EleutherAI's lm-evaluation-harness, as the model type "dadlm".

    dadlm lm-eval --model_args pretrained=dadlm --tasks lambada_openai

Importing this module registers the class. The harness's own command looks for models only in its own package;
`dadlm lm-eval` registers ours and then runs that command.
"""

import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from dadlm.decode import generate
from dadlm.errors import ConfigError
from dadlm.interop.likelihood import score_continuation
from dadlm.model import load

try:
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from lm_eval.models.utils import normalize_gen_kwargs
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
    from tqdm import tqdm
except ImportError as error:
    raise ConfigError("the harness is not installed: pip install 'dadlm[lm-eval]'") from error

_BATCH = 32


@register_model("dadlm")
class HarnessModel(TemplateLM):
    """An ar, bd3lm or dadlm model for the harness; `--model_args` are the arguments of `__init__`."""

    def __init__(
        self,
        pretrained: str = "dadlm",
        *,
        device: str | None = None,
        dtype: str = "float32",
        draws: int = 1,
        seed: int = 0,
        batch_size: int | str = _BATCH,
        max_batch_size: int | None = None,
        trust_remote_code: bool = False,
        **decoding: Any,
    ):
        """More `draws` lower the variance of the bound; `decoding` are options of `dadlm.generate`."""
        super().__init__()
        if trust_remote_code:
            raise ConfigError("dadlm never runs code of a model's folder: leave out --trust_remote_code")
        if device is None or device == "cuda:0":  # the harness's own default
            device = "auto"
        self._model = load(pretrained, device=device, dtype=dtype)
        if self._model.tokenizer is None:
            raise ConfigError(f"{pretrained} has no tokenizer: put its tokenizer.json into its folder")
        self._tokenizer = self._model.tokenizer
        self._draws, self._seed, self._decoding = int(draws), int(seed), decoding
        size = str(batch_size)  # may be "auto"; only generation is batched here
        self._batch = int(size) if size.isdecimal() else max_batch_size or _BATCH

    @property
    def eot_token_id(self) -> int:
        return self._tokenizer.eot_id

    @property
    def tokenizer_name(self) -> str:
        return f"dadlm-{self._tokenizer.fingerprint[:16]}"

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        return self._tokenizer.encode(string)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        answers = []
        for key, context, continuation in tqdm(requests, "loglikelihood", disable=disable_tqdm):
            answers.append(self._score(context, continuation))
            if key is not None:
                self.cache_hook.add_partial("loglikelihood", key, answers[-1])
        return answers

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Texts of any length, split into windows as long as the context allows, each after one token."""
        answers = []
        for request in tqdm(requests, "loglikelihood_rolling", disable=disable_tqdm):
            ids = self.tok_encode(request.args[0])
            longest = self._model.config.context - 1
            windows: Iterable = get_rolling_token_windows(ids, self.eot_token_id, longest, context_len=1)
            answers.append(sum(self._score(*make_disjoint_window(window))[0] for window in windows))
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, answers[-1])
        return answers

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Requests with equal options are decoded in batches; a text does not depend on its batch."""
        groups: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            groups.setdefault(repr(request.args[1]), []).append(number)
        answers = [""] * len(requests)
        with tqdm(total=len(requests), desc="generate_until", disable=disable_tqdm) as bar:
            for numbers in groups.values():
                options: dict[str, Any] = dict(normalize_gen_kwargs(requests[numbers[0]].args[1]))
                texts = self._generate([requests[number].args[0] for number in numbers], options)
                for number, text in zip(numbers, texts, strict=True):
                    for stop in filter(None, options["until"]):
                        text = text.split(stop)[0]
                    answers[number] = text
                    self.cache_hook.add_partial("generate_until", requests[number].args, answers[number])
                bar.update(len(numbers))
        return answers

    def _score(self, context: list[int], continuation: list[int]) -> tuple[float, bool]:
        known = context[len(continuation) - self._model.config.context :]  # empty: refused
        result = score_continuation(self._model, known, continuation, draws=self._draws, seed=self._seed)
        return result.logp, result.greedy

    def _generate(self, prompts: list[str], options: dict[str, Any]) -> list[str]:
        unknown = options.keys() - {"until", "max_gen_toks", "do_sample", "temperature", "top_p", "top_k"}
        if unknown:
            raise ConfigError(f"unknown generation options: {', '.join(sorted(unknown))}")
        new = min(options["max_gen_toks"], self._model.config.context // 2)  # the rest is for the prompt
        how: dict[str, Any] = {"max_new_tokens": new, "path": "viterbi"}  # greedy
        if options["do_sample"]:
            how = {"max_new_tokens": new} | {k: options.get(k, 1.0) for k in ("temperature", "top_p")}
            how["top_k"] = options.get("top_k") or None
        ids = [self.tok_encode(prompt)[new - self._model.config.context :] for prompt in prompts]
        # Seeds depend on the prompt and its repetitions, not on other requests: a cache may hold those.
        seen: Counter[str] = Counter()
        seeds = []
        for prompt in prompts:
            seeds.append(self._seed + zlib.crc32(prompt.encode(errors="replace")) + (seen[prompt] << 32))
            seen[prompt] += 1
        return generate(self._model, ids, seed=seeds, batch_size=self._batch, **(how | self._decoding)).texts


def main(words: Sequence[str]) -> None:
    """Run the harness's own command; unless another is named, the model is one of ours."""
    from lm_eval.__main__ import cli_evaluate

    words = list(words)
    if words and words[0] not in ("run", "ls", "validate", "-h", "--help"):
        words.insert(0, "run")
    if words[:1] == ["run"] and len(words) > 1 and not {"--config", "-C"}.intersection(words):
        words[1:1] = ["--model", "dadlm"]  # a later --model counts
    sys.argv = ["lm_eval", *words]
    cli_evaluate()
