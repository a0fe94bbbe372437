"""/docs: every route and field of the schema, with nothing from elsewhere."""

import re

from tests.serve.fakes import FakeScheduler, serving


def test_all_routes_and_fields_are_on_the_page() -> None:
    with serving(FakeScheduler()) as server:
        status, headers, page = server.ask("GET", "/docs")
        schema = server.ask("GET", "/openapi.json")[2]
        style = server.ask("GET", "/docs.css")
        playground = server.ask("GET", "/")[2]
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert style[0] == 200 and style[1]["content-type"].startswith("text/css")
    assert b'<a href="docs">' in playground
    text = page.decode()
    for path, methods in schema["paths"].items():
        assert f"<code>{next(iter(methods)).upper()} {path}</code>" in text
    for body in ("CompletionBody", "FillGapsBody", "Completion"):
        for name, field in schema["components"]["schemas"][body]["properties"].items():
            assert f"<code>{name}</code>" in text and field.get("description", "")[:20] in text.replace(
                "&#x27;", "'"
            ).replace("&quot;", '"').replace("&gt;", ">")
    assert "at most 63" in text, "bounds are those of the models that are served"
    linked = re.findall(r'(?:href|src)="([^"]*)"', text)
    assert "openapi.json" in linked and "./" in linked
    assert not any(":" in one or one.startswith("//") for one in linked) and "<script" not in text
    anchors = {one[1:] for one in linked if one.startswith("#")}
    assert anchors == set(re.findall(r'<section id="([^"]*)"', text))
