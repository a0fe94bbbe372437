"""Renders a chat template: Jinja in a sandbox, set up as in transformers, which templates are written for.

A template comes with a model and may be hostile: it cannot reach Python, and its output is bounded, but it
can waste time. Imported only where a template is rendered: most models have none.
"""

import datetime
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dadlm.errors import DataError

_MOST_TEXT = 1 << 22  # characters of a rendered conversation
_LONGEST_MESSAGE = 500  # characters of an error, which a template may word
_REFUSED = "the chat template does not take these messages"


def render(template: str, names: Mapping[str, Any]) -> str:
    """The text that a template makes of these variables."""
    parts, length = list[str](), 0
    try:
        for part in _compiled(template).generate(names):
            parts.append(part)
            length += len(part) or 1  # empty parts take memory, too
            if length > _MOST_TEXT:
                raise DataError(f"the chat template makes more than {_MOST_TEXT:,} characters of this")
    except DataError:
        raise
    except jinja2.TemplateSyntaxError as error:
        place = f"line {error.lineno}: {_shortened(error)}"
        raise DataError(f"the chat template is not valid Jinja, {place}") from error
    except Exception as error:  # whatever a template can provoke
        raise DataError(f"{_REFUSED}: {_shortened(error)}") from error
    return "".join(parts)


@lru_cache(maxsize=8)  # not an attribute of `ChatTemplate`: compiled templates cannot be copied or pickled
def _compiled(template: str) -> jinja2.Template:
    made = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    made.filters["tojson"] = _json
    made.globals |= {"raise_exception": _refuse, "strftime_now": _now}
    return made.from_string(template)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's, which also refuses operators with which a short template could fill the memory at once."""

    intercepted_binops = frozenset({"*", "+", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if _size(operator, left, right) > _MOST_TEXT:
            raise DataError(f"the chat template makes more than {_MOST_TEXT:,} characters by one {operator}")
        return super().call_binop(context, operator, left, right)


def _size(operator: str, left: Any, right: Any) -> int:
    """The size of an operator's result: characters, items, or bits of a number."""
    if operator == "**":
        return _length(left) * right if isinstance(right, int) else 0
    if operator == "*" and isinstance(right, int) and not isinstance(left, int):
        return _length(left) * right
    if operator == "*" and isinstance(left, int) and not isinstance(right, int):
        return left * _length(right)
    return _length(left) + _length(right)


def _length(value: Any) -> int:
    if isinstance(value, int):
        return value.bit_length()
    return len(value) if isinstance(value, str | bytes | list | tuple) else 0


class _Generation(Extension):
    """{% generation %}, with which templates mark answers to learn from: rendered as what stands inside."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own form)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _shortened(message: object) -> str:
    return str(message)[:_LONGEST_MESSAGE]


def _refuse(message: object) -> NoReturn:
    raise DataError(f"{_REFUSED}: {_shortened(message)}")


def _json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As in transformers: Jinja's own escapes for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _now(form: str) -> str:
    return datetime.datetime.now().strftime(form)
