"""What of a result stands beside what of the paper's: data, scale, and the value of any option."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from dadlm.evaluate import paper
from dadlm.evaluate.report.document import Difference, whole
from dadlm.evaluate.report.subjects import Facts

# How the paper's data sets are spelled in file and hub names: whole words, apart by one space.
_SPELLINGS = {
    "OpenWebText": ("openwebtext", "open web text", "owt"),
    "LM1B": ("lm1b", "billion word", "billionword"),
    "XSum": ("xsum",),
    "CNN/DailyMail": ("cnndailymail", "dailymail", "daily mail", "cnndm", "cnn dm"),
}


def known_as(source: str | None, names: Iterable[str]) -> str | None:
    """Which of the paper's data sets a source seems to be, by its name."""
    words = f" {' '.join(re.findall('[a-z0-9]+', (source or '').lower()))} "
    return next((name for name in names if any(f" {word} " in words for word in _SPELLINGS[name])), None)


def data_beside(ours: str, *names: str) -> Difference:
    """Always told: no name of a file proves that it holds the paper's text, or which part of it."""
    return Difference(what="data", ours=ours, paper=" and ".join(names))


def models_differ(models: Sequence[Facts], sets: Sequence[str] = ("OpenWebText",)) -> Iterator[Difference]:
    """Size, graph and context; the paper's context depends on the data set."""
    sizes = [model["parameters"] for model in models]
    if not all(0.9 < size / paper.PARAMETERS < 1.1 for size in sizes):  # the graph adds 2%
        theirs = f"about {parameters(paper.PARAMETERS)}"
        yield Difference(what="parameters", ours=_span(sizes, parameters), paper=theirs)
    contexts = [int(model["context"]) for model in models]
    if not set(contexts) <= {paper.CONTEXT[name] for name in sets}:
        theirs = " and ".join(whole(paper.CONTEXT[name]) for name in sets)
        yield Difference(what="context", ours=_span(contexts, whole), paper=theirs)
    for name, theirs in (("candidates", paper.CANDIDATES), ("expand_at", paper.EXPAND_AT)):
        values = [int(model[name]) for model in models if name in model]
        if set(values) - {theirs}:
            yield Difference(what=name, ours=_span(values, whole), paper=whole(theirs))


def value_differs(what: str, ours: int | None, theirs: int) -> Iterator[Difference]:
    """None: the result does not say."""
    if ours != theirs:
        yield Difference(what=what, ours="unknown" if ours is None else whole(ours), paper=whole(theirs))


def parameters(count: float) -> str:
    """The size of a model: 10.6M."""
    if count < 1e6:
        return f"{count / 1e3:.1f}k"
    return f"{count / 1e6:.1f}M".replace(".0M", "M")


def _span(values: Sequence[int], write: Callable[[float], str]) -> str:
    return " to ".join(dict.fromkeys(write(end) for end in (min(values), max(values))))
