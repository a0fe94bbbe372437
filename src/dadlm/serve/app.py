"""The HTTP application: routes, middleware, and the OpenAPI schema."""

import asyncio
import json
import mimetypes
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib.resources import files
from typing import Any, Literal

from fastapi import FastAPI, Request
from prometheus_client import generate_latest
from pydantic.json_schema import models_json_schema
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.staticfiles import StaticFiles

from dadlm.serve import answers, chat_schemas, reference, schemas
from dadlm.serve.body import read_body
from dadlm.serve.chat import NO_CHAT, ChatCompletion
from dadlm.serve.executor import DaemonExecutor
from dadlm.serve.gaps import FilledGaps
from dadlm.serve.middleware import Guard, RequestLog
from dadlm.serve.refusals import Refusal, add_handlers
from dadlm.serve.respond import Answer, respond
from dadlm.serve.routes import Completion
from dadlm.serve.service import Service

_PROMPTS = 2  # chat prompts rendered at once for a model; more would only share the interpreter
_REF = "#/components/schemas/{model}"
_ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": answers.Error, "description": "refused; `param` names the field"},
    503: {"model": answers.Error, "description": "shutting down, too busy, or past the deadline"},
}
_EVENT = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
_EVENTS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": _EVENT}}}}
_CURL = "curl http://127.0.0.1:8000%s -H 'content-type: application/json' \\\n  -d '%s'"
_EXAMPLES = {
    path: _CURL % (path, json.dumps(body))
    for path, body in {
        "/v1/completions": {"prompt": "The river", "max_tokens": 64, "seed": 1},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "What is a river?"}]},
        "/v1/fill_gaps": {"parts": ["The river", {"gap": 8}, " under the bridge."], "seed": 1},
    }.items()
}


def create_app(service: Service, api_key: str | None = None) -> FastAPI:
    """The application; the service starts and ends with it."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        service.close(0)  # `Server` has already waited for running texts

    # The framework's documentation pages load scripts from elsewhere: /docs is our own.
    app = FastAPI(title="dadlm", lifespan=lifespan, docs_url=None, redoc_url=None)
    add_handlers(app)
    _add_decoding(app, service)
    _add_routes(app, service)
    mimetypes.add_type("text/javascript", ".js")  # some systems map it to a type that browsers refuse
    page = str(files("dadlm.serve") / "page")
    app.mount("/static", StaticFiles(directory=page))
    app.get("/", include_in_schema=False, response_class=FileResponse)(lambda: f"{page}/index.html")
    _add_docs(app)
    # Made once, because it takes long and anyone may ask for it; after all routes, each of which resets it.
    app.openapi_schema = _with_bodies(app.openapi(), service)
    # From the inside out: the last one sees a request first.
    app.add_middleware(Guard, key=api_key, settings=service.settings)
    if service.settings.cors_origin:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=service.settings.cors_origin,
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type"],
            expose_headers=["retry-after", "x-request-id"],
        )
    app.add_middleware(RequestLog)
    return app


def _add_decoding(app: FastAPI, service: Service) -> None:
    """The routes that decode."""
    lock, limits = asyncio.Lock(), service.settings
    chats = {name: DaemonExecutor(_PROMPTS, limits.deadline) for name in service.schedulers}

    def post(path: str, schema: type[schemas.Decoding], plan: Callable[..., Answer], **about: Any) -> None:
        async def handle(http: Request) -> Response:
            if schema is chat_schemas.ChatBody and not service.chats:
                raise Refusal(404, NO_CHAT, code="chat_not_supported")  # whatever the body says
            # The body is not a parameter: the framework would check it on the event loop.
            body = await read_body(http, schema, lock)
            # In a thread: the first request for a mode has its scheduler made, which takes a GPU seconds.
            name, scheduler = await asyncio.to_thread(service.find, body.model, body.mode)
            work = partial(plan, name, scheduler.model, body, limits)
            if schema is chat_schemas.ChatBody:
                planned = await chats[name].run("the prompt", work)  # the template came with the model
            else:
                planned = await asyncio.to_thread(work)
            return await respond(scheduler, planned, http, bool(body.stream))

        content = {"application/json": {"schema": {"$ref": _REF.format(model=schema.__name__)}}}
        about |= {"openapi_extra": {"requestBody": {"required": True, "content": content}}}
        app.post(path, responses=_ERRORS | _EVENTS, **about)(handle)

    about: Any = {"response_model": answers.Completion, "summary": "Complete prompts (OpenAI's API)"}
    post("/v1/completions", schemas.CompletionBody, Completion, **about)
    about = {"response_model": chat_schemas.ChatCompletion, "summary": "Answer a conversation (OpenAI's API)"}
    post("/v1/chat/completions", chat_schemas.ChatBody, ChatCompletion, **about)
    about = {"response_model": answers.FilledGaps, "summary": "Fill gaps anywhere in a text"}
    post("/v1/fill_gaps", schemas.FillGapsBody, FilledGaps, **about)
    about |= {"summary": "The former name of /v1/fill_gaps", "deprecated": True}
    post("/v1/infill", schemas.FillGapsBody, partial(FilledGaps, kind="infill"), **about)


def _add_routes(app: FastAPI, service: Service) -> None:
    """The routes about the server itself: models, health, metrics."""
    samplers = schemas.describe_samplers()

    @app.get("/v1/models", response_model=answers.Models, responses=_ERRORS)
    async def models() -> Response:
        """The models served, the default first, and the samplers."""
        cards = [service.card(name) for name in service.schedulers]
        return JSONResponse({"object": "list", "data": cards, "dadlm": {"samplers": samplers}})

    @app.get("/v1/models/{name:path}", response_model=answers.ModelCard, responses=_ERRORS)
    async def model(name: str) -> Response:
        return JSONResponse(service.card(name))

    @app.get("/healthz", response_model=dict[Literal["status"], Literal["ok"]], responses=_ERRORS)
    async def alive() -> Response:
        """The process answers, and no scheduler has stopped."""
        if service.broken:
            raise Refusal(503, "a scheduler has stopped; restart the server", code="broken")
        return JSONResponse({"status": "ok"})

    @app.get("/readyz", response_model=dict[Literal["status"], Literal["ready"]], responses=_ERRORS)
    async def ready() -> Response:
        """Requests are accepted: models loaded, schedulers running, not shutting down."""
        if not service.ready:
            raise Refusal(503, "not ready", code="not_ready")
        return JSONResponse({"status": "ready"})

    @app.get("/metrics", response_class=PlainTextResponse, responses=_ERRORS)
    async def metrics() -> Response:
        """Counters and histograms for Prometheus."""
        return PlainTextResponse(generate_latest(service.registry), media_type="text/plain; version=0.0.4")


def _add_docs(app: FastAPI) -> None:
    """The schema as a page."""

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(reference.render(app.openapi(), _EXAMPLES))

    @app.get("/docs.css", include_in_schema=False)
    async def style() -> Response:
        return PlainTextResponse(reference.STYLE, media_type="text/css")


def _with_bodies(schema: dict[str, Any], service: Service) -> dict[str, Any]:
    """The OpenAPI schema with the request bodies, their bounds those of the served models."""
    configs = [scheduler.model.config for scheduler in service.schedulers.values()]
    longest = max(config.context for config in configs) - 1
    bounds: dict[tuple[str, float], int] = {
        ("maximum", schemas.MAX_TOKENS): longest,
        ("maxItems", schemas.MAX_TOKENS): longest,
        ("exclusiveMaximum", schemas.MAX_ID): max(config.mask_id for config in configs),
    }
    kinds = (schemas.CompletionBody, chat_schemas.ChatBody, schemas.FillGapsBody)
    wanted: Any = [(kind, "validation") for kind in kinds]
    bodies = models_json_schema(wanted, ref_template=_REF)[1]["$defs"]

    def bounded(part: dict[str, Any]) -> dict[str, Any]:
        numbers = {key: value for key, value in part.items() if isinstance(value, int | float)}
        return part | {key: bounds.get((key, value), value) for key, value in numbers.items()}

    parts = json.loads(json.dumps(bodies | schema["components"]["schemas"]), object_hook=bounded)
    for kind in kinds:
        names = {"enum": list(service.schedulers)}
        parts[kind.__name__]["properties"]["model"] |= {"anyOf": [names, {"type": "null"}]}
    return schema | {"components": schema["components"] | {"schemas": parts}}
