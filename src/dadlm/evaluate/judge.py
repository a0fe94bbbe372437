"""Two models compared in pairs of continuations by a third, as in the paper.

Every pair is shown in both orders; a model wins it only when both orders favour it, everything else is a tie.
Every answer is kept as soon as it comes, under a hash of its question: a restart, also with more samples,
asks only what was never asked.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Protocol

from dadlm.evaluate.intervals import wilson
from dadlm.evaluate.pairs import Pairs
from dadlm.evaluate.question import Answer, Question, verdict_of
from dadlm.evaluate.work import Work

_Asked = tuple[str, list[str]]
"""The prompt of a pair, and the keys of its two questions: A shown first, then B."""
_OUTCOMES: dict[tuple[str | None, str | None], str] = {("A", "B"): "a", ("B", "A"): "b"}
_SHOWN = 3  # answers that could not be read, kept in the result as examples


class Judge(Protocol):
    """Answers questions; `settings` is what else decides the answers."""

    @property
    def label(self) -> str: ...
    @property
    def settings(self) -> Mapping[str, Any]: ...
    @property
    def threads(self) -> int: ...

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
    """How often A wins in each configuration; prices are per million tokens."""
    questions: dict[str, Question] = {}
    groups: dict[str, list[_Asked]] = {}
    for pair in pairs.pairs:
        both = [Question(pair.prompt, pair.a, pair.b), Question(pair.prompt, pair.b, pair.a)]
        keys = [hashlib.sha256(question.text.encode()).hexdigest()[:32] for question in both]
        questions |= zip(keys, both, strict=True)
        groups.setdefault(pair.configuration, []).append((pair.prompt, keys))
    subject = {
        "judge": by.label,
        "judge_settings": by.settings,
        "a": pairs.a,
        "b": pairs.b,
        "model_a": pairs.model_a,
        "model_b": pairs.model_b,
    }
    with Work("judge", subject, out, quiet) as work:
        _ask(work, by, questions)
        count = partial(_count, work.pieces, price_in, price_out)
        rows = [{"configuration": name, **count(some)} for name, some in groups.items()]
        for row in rows:
            row["win_rate"] = asdict(wilson(row["wins_a"], row["wins_a"] + row["wins_b"]))
        # Configurations continue the same prompts: over all of them there are counts, but no interval.
        whole = count([one for some in groups.values() for one in some])
        return work.finish({"source": pairs.source, "missing": pairs.missing, **whole, "rows": rows})


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


def _count(
    answers: Mapping[str, Any], price_in: float | None, price_out: float | None, pairs: list[_Asked]
) -> dict[str, Any]:
    """Counts over some pairs."""
    both = [keys for _, keys in pairs]
    verdicts = {key: verdict_of(answers[key]["text"]) for keys in both for key in keys}
    # Only what both orders say counts.
    outcomes = Counter(_OUTCOMES.get((verdicts[ab], verdicts[ba]), "tie") for ab, ba in both)
    shown = Counter(verdicts[key] for keys in both for key in keys)
    chosen = shown["A"] + shown["B"]
    asked = [answers[key] for key in verdicts]  # each question once, however many pairs ask it
    cost: float | None = 0.0
    totals: dict[str, int | None] = {}
    for name, price in (("prompt_tokens", price_in), ("completion_tokens", price_out)):
        counts = [answer[name] for answer in asked]
        # None when the judge did not always say: a sum with holes would be too small.
        total = totals[name] = None if None in counts else sum(counts)
        cost = None if None in (cost, total, price) else cost + total * price / 1e6  # type: ignore[operator]
    unread = [answers[key]["text"][:100] for key, verdict in verdicts.items() if verdict is None]
    return {
        "pairs": len(pairs),
        "prompts": len({prompt for prompt, _ in pairs}),
        "wins_a": outcomes["a"],
        "wins_b": outcomes["b"],
        "ties": outcomes["tie"],
        "unparsed": shown[None],
        "unparsed_examples": unread[:_SHOWN],
        "first_position_share": shown["A"] / chosen if chosen else 0.5,
        "requests": sum(answer["requests"] for answer in asked),
        **totals,
        "cost": cost,
    }
