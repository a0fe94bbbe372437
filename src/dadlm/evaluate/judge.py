"""Two models compared in pairs of continuations by a third, as in the paper.

Every pair is shown in both orders; a model wins it only when both orders favour it, everything else is a tie.
Every answer is kept as soon as it comes, with its question, so a restart asks only what is missing. Knows
nothing of how a judge is reached (`endpoint.py`, `local_judge.py`).
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from threading import Event
from typing import Any, Protocol

from dadlm.evaluate.intervals import wilson
from dadlm.evaluate.pairs import Pair, Pairs
from dadlm.evaluate.question import Answer, Question, verdict_of
from dadlm.evaluate.work import Work

_ORDERS = ("AB", "BA")
_SHOWN = 3  # answers that could not be read, kept in the result as examples


class Judge(Protocol):
    """Whoever answers questions."""

    @property
    def label(self) -> str: ...

    @property
    def settings(self) -> Mapping[str, Any]:
        """What else decides the answers."""
        ...

    @property
    def threads(self) -> int:
        """How many questions may be under way at once."""
        ...

    def ask(self, question: Question, stop: Event) -> Answer:
        """Answer, or raise; once `stop` is set, waiting for a better moment ends."""
        ...


def judge(
    pairs: Pairs,
    by: Judge,
    *,
    price_in: float | None = None,
    price_out: float | None = None,
    out: str | Path | None = None,
    quiet: bool = True,
) -> dict[str, Any]:
    """How often A wins, by configuration and over all; prices are per million tokens."""
    questions = {_key(pair, order): _question(pair, order) for pair in pairs.pairs for order in _ORDERS}
    subject = {
        "judge": by.label,
        "judge_settings": by.settings,
        "a": pairs.a,
        "b": pairs.b,
        "model_a": pairs.model_a,
        "model_b": pairs.model_b,
        "missing": pairs.missing,
        "fingerprint": _fingerprint(questions),
    }
    with Work("judge", subject, out, quiet) as work:
        _ask(work, by, questions)

        def count(some: Iterable[Pair]) -> dict[str, Any]:
            answers = [tuple(work.values(_key(pair, order) for order in _ORDERS)) for pair in some]
            return _count(answers, price_in, price_out)

        groups: dict[str, list[Pair]] = {}
        for pair in pairs.pairs:
            groups.setdefault(pair.configuration, []).append(pair)
        rows = [{"configuration": name, **count(some)} for name, some in groups.items()]
        return work.finish({**count(pairs.pairs), "rows": rows})


def _ask(work: Work, by: Judge, questions: Mapping[str, Question]) -> None:
    """Ask what is missing, several at once; after a failure, keep the answers that were under way."""
    stop = Event()
    with ThreadPoolExecutor(by.threads) as pool:
        running = {
            pool.submit(by.ask, question, stop): key
            for key, question in questions.items()
            if key not in work.pieces
        }

        def keep(future) -> None:
            key = running.pop(future)
            work.add([(key, {"question": questions[key].text, **asdict(future.result())})])

        try:
            # The bar counts answers; they come in any order, so its keys are of no interest.
            counted = work.batches(list(questions), 1, "asking the judge")
            for _, future in zip(counted, as_completed(list(running)), strict=True):
                keep(future)
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
            for future in list(running):
                if not future.cancelled() and future.exception() is None:
                    keep(future)


def _count(answers: list[tuple[Any, ...]], price_in: float | None, price_out: float | None) -> dict[str, Any]:
    """One row of the result, from the answers of each pair in the order of `_ORDERS`."""
    flat = [answer for both in answers for answer in both]
    outcomes = Counter(_outcome(*(verdict_of(answer["text"]) for answer in both)) for both in answers)
    verdicts = Counter(verdict_of(answer["text"]) for answer in flat)
    wins_a, wins_b, chosen = outcomes["a"], outcomes["b"], verdicts["A"] + verdicts["B"]
    tokens_in, tokens_out = (_total(flat, name) for name in ("prompt_tokens", "completion_tokens"))
    unread = [answer["text"][:100] for answer in flat if verdict_of(answer["text"]) is None]
    return {
        "pairs": len(answers),
        "wins_a": wins_a,
        "wins_b": wins_b,
        "ties": outcomes["tie"],
        "unparsed": len(unread),
        "unparsed_examples": unread[:_SHOWN],
        "win_rate": asdict(wilson(wins_a, wins_a + wins_b)),
        "first_position_share": verdicts["A"] / chosen if chosen else 0.5,
        "requests": sum(answer["requests"] for answer in flat),
        "prompt_tokens": tokens_in,
        "completion_tokens": tokens_out,
        "cost": _cost((tokens_in, price_in), (tokens_out, price_out)),
    }


def _outcome(shown_ab: str | None, shown_ba: str | None) -> str:
    """Who wins a pair: only what both orders say counts."""
    return {("A", "B"): "a", ("B", "A"): "b"}.get((shown_ab or "", shown_ba or ""), "tie")


def _total(answers: list[Any], name: str) -> int | None:
    """None when the judge did not always say: a sum with holes would be too small."""
    counts = [answer[name] for answer in answers]
    return None if None in counts else sum(counts)


def _cost(*parts: tuple[int | None, float | None]) -> float | None:
    if any(tokens is None or price is None for tokens, price in parts):
        return None
    return sum(tokens * price for tokens, price in parts) / 1e6  # type: ignore[operator]


def _question(pair: Pair, order: str) -> Question:
    first, second = (pair.a, pair.b) if order == "AB" else (pair.b, pair.a)
    return Question(pair.prompt, first, second)


def _key(pair: Pair, order: str) -> str:
    return f"{pair.configuration}|{pair.index}|{order}"


def _fingerprint(questions: Mapping[str, Question]) -> str:
    """Of all that will be asked, wording included: answers to other questions must not mix in."""
    digest = hashlib.sha256()
    for key, question in questions.items():
        digest.update(f"{key}\n{question.text}\n".encode())
    return digest.hexdigest()[:16]
