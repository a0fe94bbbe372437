"""The question to a judge about two continuations, the parser of its answer, and a judge on this machine.

The paper gives the criteria and the length limits, not the wording, which is ours. The judge never learns
which model wrote what.
"""

import re
from dataclasses import dataclass
from threading import Event
from typing import Literal

from dadlm.errors import ConfigError
from dadlm.evaluate.language_models import LanguageModel

Verdict = Literal["A", "B", "tie"]

PROMPT_CHARACTERS = 1_200
TEXT_CHARACTERS = 6_000

_INSTRUCTIONS = """\
You compare two continuations of the same text. Judge which one is better by
- continuity with the prompt,
- coherence and logical flow,
- fluency and readability,
- specificity,
- absence of generation artifacts, such as repetition, broken words or stray symbols.
The order of the continuations means nothing, and neither does their length. They may break off at the end."""
_ANSWER = "Which continuation is better? Answer with exactly one word: A, B or tie."
# The word alone or decorated: "**A**", "Answer: B.", "Continuation A". Nothing longer is interpreted: "A
# clear tie" begins with an A.
_FORM = re.compile(
    r"(?:(?:final )?(?:answer|verdict)(?: is)?\W+)?(?:continuation\W+)?(a|b|tie)", re.IGNORECASE
)
_DRESS = " \t\r\n.,:;!*_`'\"“”‘’()[]{}<>#"


@dataclass(frozen=True)
class Question:
    """Two continuations in the order in which the judge sees them."""

    prompt: str
    first: str
    second: str

    @property
    def text(self) -> str:
        """The question in words. A long prompt keeps its end, which the continuations follow."""
        return (
            f"{_INSTRUCTIONS}\n\n"
            f"[Prompt]\n{self.prompt[-PROMPT_CHARACTERS:]}\n\n"
            f"[Continuation A]\n{self.first[:TEXT_CHARACTERS]}\n\n"
            f"[Continuation B]\n{self.second[:TEXT_CHARACTERS]}\n\n"
            f"{_ANSWER}"
        )


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came back, and what it took."""

    text: str
    requests: int = 1
    """Requests sent until the answer came, those that failed included."""
    prompt_tokens: int | None = None
    """None: the judge does not say."""
    completion_tokens: int | None = None


def verdict_of(answer: str) -> Verdict | None:
    """A, B or tie; None for anything else."""
    found = _FORM.fullmatch(answer.strip(_DRESS))
    return None if found is None else _VERDICTS[found[1].lower()]


_VERDICTS: dict[str, Verdict] = {"a": "A", "b": "B", "tie": "tie"}
_NOTHING = "\n"  # an empty context: without any the first token would not be scored


class LocalJudge:
    """Prefers the text with the higher pointwise mutual information with the prompt, log p(text | prompt) −
    log p(text), under a language model that need not understand a question."""

    threads = 1  # the model itself uses the processor's cores

    def __init__(self, model: LanguageModel) -> None:
        self.model, self.label = model, model.label
        self.settings = {"rule": "what the prompt tells of a text", "identity": model.identity}
        self._pmi: dict[tuple[str, str], float] = {}
        """By prompt and text: a pair is asked about in both orders, and a text may be in several pairs."""

    def ask(self, question: Question, stop: Event) -> Answer:
        prompt = question.prompt[-PROMPT_CHARACTERS:]
        first, second = (self._information(prompt, text) for text in (question.first, question.second))
        return Answer(text="tie" if first == second else "A" if first > second else "B")

    def _information(self, prompt: str, text: str) -> float:
        text = text[:TEXT_CHARACTERS]
        if (prompt, text) not in self._pmi:
            scored = self.model.score([text, text], [prompt, _NOTHING])
            if scored.nll is None:
                raise ConfigError(
                    f"{self.label} is an encoder and has no probabilities; smollm2, for example, has"
                )
            if scored.truncated.any():
                raise ConfigError(
                    f"{self.label} reads {self.model.window} tokens, fewer than a prompt and its text have: "
                    "choose a language model with a longer context, or shorter texts"
                )
            self._pmi[prompt, text] = float(scored.nll[1] - scored.nll[0])
        return self._pmi[prompt, text]
