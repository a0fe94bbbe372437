"""Rendering a chat template: Jinja in a sandbox, set up as transformers does it, which templates expect.

A template comes with a model and may be hostile. It cannot reach Python, and its text is cut off; time it can
waste. Imported only where a template is rendered: most models have none.
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
_MOST_TOLD = 500  # characters of an error that a template words
_REFUSED = "the chat template does not take these messages"


def render(template: str, names: Mapping[str, Any]) -> str:
    """The text that a template makes of what it is given."""
    parts, length = list[str](), 0
    try:
        for part in _compiled(template).generate(names):
            parts.append(part)
            length += len(part) or 1  # empty ones are kept too
            if length > _MOST_TEXT:
                raise DataError(f"the chat template makes more than {_MOST_TEXT:,} characters of this")
    except DataError:
        raise
    except jinja2.TemplateSyntaxError as error:
        place = f"line {error.lineno}: {_told(error)}"
        raise DataError(f"the chat template is not valid Jinja, {place}") from error
    except Exception as error:  # whatever a template can provoke, its own refusals among it
        raise DataError(f"{_REFUSED}: {_told(error)}") from error
    return "".join(parts)


@lru_cache(maxsize=8)  # here and not with the template: what is compiled cannot be copied or pickled
def _compiled(template: str) -> jinja2.Template:
    made = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    made.filters["tojson"] = _json
    made.globals |= {"raise_exception": _refuse, "strftime_now": _now}
    return made.from_string(template)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's, which also refuses the operators by which a short template fills the memory at once."""

    intercepted_binops = frozenset({"*", "+", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if _size(operator, left, right) > _MOST_TEXT:
            raise DataError(f"the chat template makes more than {_MOST_TEXT:,} characters by one {operator}")
        return super().call_binop(context, operator, left, right)


def _size(operator: str, left: Any, right: Any) -> int:
    """How long the result is: characters, items, or bits of a number."""
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


def _told(what: object) -> str:
    return str(what)[:_MOST_TOLD]


def _refuse(message: object) -> NoReturn:
    raise DataError(f"{_REFUSED}: {_told(message)}")


def _json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers has it: Jinja's own makes text for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _now(form: str) -> str:
    return datetime.datetime.now().strftime(form)
