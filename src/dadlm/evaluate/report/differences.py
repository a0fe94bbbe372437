"""In what a result is not the paper's setting: data, scale, and the value of any option."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from dadlm.evaluate import paper
from dadlm.evaluate.report.document import Difference, whole
from dadlm.evaluate.report.subjects import Facts, source_of

# How the paper's data sets are spelled in file and hub names, letters and digits only.
_SPELLINGS = {
    "OpenWebText": ("openwebtext", "owt"),
    "LM1B": ("lm1b", "billionword"),
    "XSum": ("xsum",),
    "CNN/DailyMail": ("cnn", "dailymail"),
}


def known_as(source: str | None, names: Iterable[str]) -> str | None:
    """Which of the paper's data sets a source is, by its name."""
    plain = re.sub(r"[^a-z0-9]", "", (source or "").lower())
    return next((name for name in names if any(word in plain for word in _SPELLINGS[name])), None)


def data_differs(data: Facts, *names: str) -> Iterator[Difference]:
    """`names` are the data sets the paper used."""
    if known_as(data["source"], names) is None:
        yield Difference(what="data", ours=source_of(data), paper=" and ".join(names))


def models_differ(models: Sequence[Facts], sets: Sequence[str] = ("OpenWebText",)) -> Iterator[Difference]:
    """Size and context; the paper's context depends on the data set."""
    sizes = [model["parameters"] for model in models]
    if not all(0.9 < size / paper.PARAMETERS < 1.1 for size in sizes):  # the graph adds 2%
        theirs = f"about {parameters(paper.PARAMETERS)}"
        yield Difference(what="parameters", ours=_span(sizes, parameters), paper=theirs)
    contexts = [model["context"] for model in models]
    if not set(contexts) <= {paper.CONTEXT[name] for name in sets}:
        theirs = " and ".join(whole(paper.CONTEXT[name]) for name in sets)
        yield Difference(what="context", ours=_span(contexts, whole), paper=theirs)


def value_differs(what: str, ours: int | str, theirs: int | str) -> Iterator[Difference]:
    if ours != theirs:
        told = [value if isinstance(value, str) else whole(value) for value in (ours, theirs)]
        yield Difference(what=what, ours=told[0], paper=told[1])


def parameters(count: float) -> str:
    """The size of a model: 10.6M."""
    if count < 1e6:
        return f"{count / 1e3:.1f}k"
    return f"{count / 1e6:.1f}M".replace(".0M", "M")


def _span(values: Sequence[int], write: Callable[[float], str]) -> str:
    return " to ".join(dict.fromkeys(write(end) for end in (min(values), max(values))))
