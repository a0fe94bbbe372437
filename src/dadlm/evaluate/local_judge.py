"""A causal language model on this machine as judge: the most probable of the three answers is its answer.

Nothing is sampled, so the same question always gets the same answer, and nothing is corrected: a model that
favours one letter whatever it reads shows it in `first_position_share`. Knows nothing of pairs or verdicts.
"""

from dataclasses import dataclass
from threading import Event
from typing import Any

from dadlm.evaluate.language_models import LanguageModel
from dadlm.evaluate.question import Answer, Question

_WORDS = ("A", "B", "tie")


@dataclass(frozen=True)
class LocalJudge:
    """Compares log-probabilities of the answers."""

    model: LanguageModel

    threads = 1  # the model itself uses the processor's cores

    @property
    def label(self) -> str:
        return self.model.label

    @property
    def settings(self) -> dict[str, Any]:
        return {"answers": "log-probabilities", "identity": self.model.identity}

    def ask(self, question: Question, stop: Event) -> Answer:
        logp = self.model.answer_logp(f"{question.text}\n\nAnswer:", [f" {word}" for word in _WORDS])
        return Answer(text=_WORDS[logp.index(max(logp))])
