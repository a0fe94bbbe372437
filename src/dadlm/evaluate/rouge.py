"""ROUGE-1, -2 and -L of one summary, and the sentence that any summary has to beat.

F1 by the rouge-score package with stemming, in percent. Knows nothing of models.
"""

import re
from collections.abc import Callable

from dadlm.errors import ConfigError

NAMES = ("rouge1", "rouge2", "rougeL")

_END = re.compile(r"""[.!?]+["'”’)\]]*(?=\s|$)|\n""")
# The last word before a full stop that ends no sentence: one letter (initials, "U.S."), or one of these.
_SHORT = re.compile(
    r"(?:^|[\s(\"'.“‘])(?:[A-Za-z]|Mr|Mrs|Ms|Dr|Prof|Rev|Gen|Col|Sgt|Lt|Gov|Sen|Rep|Hon|St|Jr|Sr|No|vs|etc"
    r"|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sep|Sept|Oct|Nov|Dec)\.$"
)


def rouge_scorer() -> Callable[[str, str], list[float]]:
    """A function of (reference, summary) that gives the three scores in the order of `NAMES`."""
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise ConfigError("ROUGE needs rouge-score: pip install 'dadlm[eval]'") from error
    scorer = RougeScorer(list(NAMES), use_stemmer=True)

    def scores(reference: str, summary: str) -> list[float]:
        by_name = scorer.score(reference, summary)
        return [100 * by_name[name].fmeasure for name in NAMES]

    return scores


def lead_sentence(document: str) -> str:
    """The first sentence: up to . ! or ? before white space, or to the end of the line.

    A full stop after one letter or a common abbreviation does not count. A rule of thumb: it splits news well
    enough for a baseline, and needs no model of the language.
    """
    document = document.strip()
    for end in _END.finditer(document):
        sentence = document[: end.end()].rstrip()
        if not _SHORT.search(sentence):
            return sentence
    return document
