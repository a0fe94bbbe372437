"""The page at /docs: the OpenAPI schema as HTML, without scripts or anything from elsewhere."""

from collections.abc import Iterator
from html import escape
from importlib.resources import files
from typing import Any

Json = dict[str, Any]

STYLE = (files("dadlm.serve.reference") / "style.css").read_text("utf-8")
_BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "minItems": "{} or more items",
    "maxItems": "at most {} items",
    "minLength": "{} or more characters",
    "maxLength": "at most {} characters",
}
_HUGE = 10**9  # bounds beyond it are those of the type


def render(schema: Json, examples: dict[str, str]) -> str:
    """A page with every route and the fields of its request and answer; `examples` by path."""
    parts, routes = schema["components"]["schemas"], list(_routes(schema["paths"]))
    contents = "".join(f'<li><a href="#{_anchor(path)}">{escape(path)}</a></li>' for path, *_ in routes)
    body = "".join(_route(*one, parts, examples.get(one[0], "")) for one in routes)
    title = f"{schema['info']['title']} {schema['info']['version']}: API"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="docs.css"></head>'
        f"<body><main><h1>{escape(title)}</h1>"
        '<p><a href="./">Playground</a> · <a href="openapi.json">openapi.json</a> · '
        '<a href="v1/models">models</a> · <a href="metrics">metrics</a></p>'
        "<p>OpenAI's API, with options of this server. Chat needs a model with a chat template.</p>"
        f"<nav><ul>{contents}</ul></nav>{body}</main></body></html>"
    )


def _routes(paths: Json) -> Iterator[tuple[str, str, Json]]:
    for path, methods in paths.items():
        for method, about in methods.items():
            yield path, method.upper(), about


def _route(path: str, method: str, about: Json, parts: Json, example: str) -> str:
    sent = _schema_of(about.get("requestBody", {}))
    given = _schema_of(about["responses"].get("200", {}))
    words = about.get("description") or about.get("summary", "")
    old = " <em>deprecated</em>" if about.get("deprecated") else ""
    out = f'<section id="{_anchor(path)}"><h2><code>{method} {escape(path)}</code>{old}</h2>'
    out += f"<p>{escape(words)}</p>"
    out += f"<pre>{escape(example)}</pre>" if example else ""
    out += _table("Fields of the request", sent, parts) + _table("Fields of the answer", given, parts)
    return out + "</section>"


def _schema_of(about: Json) -> Json:
    return about.get("content", {}).get("application/json", {}).get("schema", {})


def _table(title: str, schema: Json, parts: Json) -> str:
    fields = _resolved(schema, parts).get("properties", {})
    if not fields:
        return ""
    needed = _resolved(schema, parts).get("required", ()) if title.endswith("request") else ()
    rows = "".join(
        f"<tr><th><code>{escape(name)}</code>{' <em>required</em>' if name in needed else ''}</th>"
        f"<td>{escape(_kind(one, parts))}</td><td>{escape(one.get('description', ''))}</td></tr>"
        for name, one in fields.items()
    )
    return f"<details open><summary>{title}</summary><table>{rows}</table></details>"


def _resolved(schema: Json, parts: Json) -> Json:
    return parts[schema["$ref"].rsplit("/", 1)[1]] if "$ref" in schema else schema


def _kind(schema: Json, parts: Json) -> str:
    """The type of a field, in words."""
    if branches := schema.get("anyOf"):
        return " or ".join(_kind(one, parts) for one in branches if one.get("type") != "null")
    if "enum" in schema or "const" in schema:
        return ", ".join(map(str, schema.get("enum") or [schema["const"]]))
    if "$ref" in schema:
        inner = _resolved(schema, parts)
        return (
            "{" + ", ".join(inner.get("properties", {})) + "}"
            if "properties" in inner
            else _kind(inner, parts)
        )
    kind = str(schema.get("type", "any"))
    if kind == "array":
        items = schema.get("prefixItems") or [schema.get("items", {})]
        kind = "list of " + ", ".join(f"({_kind(one, parts)})" for one in items)
    bounds = [
        words.format(schema[name])
        for name, words in _BOUNDS.items()
        if name in schema and abs(schema[name]) < _HUGE and "prefixItems" not in schema
    ]
    return ", ".join([kind, *bounds])


def _anchor(path: str) -> str:
    return escape(path.strip("/").replace("/", "-").replace("{", "").replace("}", ""))
