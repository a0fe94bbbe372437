"""The bounds of the models that are served, written into the description of the API."""

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from dadlm.serve.schemas import MAX_ID, MAX_TOKENS, CompletionBody, InfillBody
from dadlm.serve.service import Service

_REF = "#/components/schemas/{model}"


def json_body(body: type[BaseModel]) -> dict[str, Any]:
    """An operation's request body, described as the framework describes a parameter of a model's type."""
    schema = {"$ref": _REF.format(model=body.__name__)}
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def describe(schema: dict[str, Any], service: Service) -> dict[str, Any]:
    """Names of models, and the largest token id and the longest text that one of them takes."""
    configs = [served.model.config for served in service.served.values()]
    bounds: dict[tuple[str, float], int] = {
        ("maximum", MAX_TOKENS): max(config.context for config in configs) - 1,
        ("maxItems", MAX_TOKENS): max(config.context for config in configs) - 1,
        ("exclusiveMaximum", MAX_ID): max(config.mask_id for config in configs),
    }
    asked = [(CompletionBody, "validation"), (InfillBody, "validation")]
    described = models_json_schema(asked, ref_template=_REF)[1]["$defs"] | schema["components"]["schemas"]
    bodies = {name: _bounded(body, bounds) for name, body in described.items()}
    for name in ("CompletionBody", "InfillBody"):
        bodies[name]["properties"]["model"] |= {"anyOf": [{"enum": list(service.served)}, {"type": "null"}]}
    return schema | {"components": schema["components"] | {"schemas": bodies}}


def _bounded(part: Any, bounds: dict[tuple[str, float], int]) -> Any:
    if isinstance(part, dict):
        return {
            key: bounds.get((key, value), value)
            if isinstance(value, int | float)
            else _bounded(value, bounds)
            for key, value in part.items()
        }
    return [_bounded(one, bounds) for one in part] if isinstance(part, list) else part
