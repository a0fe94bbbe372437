"""A server with tiny models for the tests of the playground. Some of their words are HTML."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.decode.tiny import silence_eot, tiny
from tests.serve.running import running, settings

from dadlm import Model
from dadlm.serve.service import Service
from dadlm.tokens.vocabularies import word_level

SCRIPT = "<img src=x onerror=document.title='run'>"
PLAIN = "the a one red blue river runs under over slow bridge and then fox owl"
WORDS = f"{PLAIN} {SCRIPT}".split()


def tiny_models() -> dict[str, Model]:
    """Every family but MDLM; their texts run to the limit."""
    shape = {"vocab": len(WORDS) + 2, "tokenizer": word_level(WORDS)}
    return {family: silence_eot(tiny(family, **shape)) for family in ("dadlm", "bd3lm", "ar")}


@contextmanager
def serving(models: dict[str, Model], api_key: str | None = None) -> Iterator[str]:
    """The address of a running server, which ends with the context."""
    with running(Service(models, settings()), api_key) as server:
        yield f"{server.url}/"
