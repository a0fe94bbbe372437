"""The HTTP application: which address answers what."""

import asyncio
import mimetypes
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from prometheus_client import generate_latest
from pydantic import BaseModel
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.staticfiles import StaticFiles

from dadlm.serve.access import Access
from dadlm.serve.answers import (
    CompletionAnswer,
    ErrorAnswer,
    HealthAnswer,
    InfillAnswer,
    ModelCard,
    ModelsAnswer,
)
from dadlm.serve.body import read_body
from dadlm.serve.completions import complete
from dadlm.serve.describe import describe, json_body
from dadlm.serve.infill import fill
from dadlm.serve.limits import Limits
from dadlm.serve.log import RequestLog
from dadlm.serve.metrics import registry_of
from dadlm.serve.refusals import Refusal, add_handlers
from dadlm.serve.schemas import CompletionBody, InfillBody
from dadlm.serve.service import Service

_ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorAnswer, "description": "refused; `param` names the field"},
    503: {"model": ErrorAnswer, "description": "shutting down, or past the deadline"},
}
_EVENT = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
_EVENTS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": _EVENT}}}}


def create_app(service: Service, api_key: str | None = None) -> FastAPI:
    """The application around a service, which starts and ends with it."""

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        service.close(0)  # a server that gives grace has done so before

    # Without the framework's own documentation pages: they load scripts from elsewhere.
    app = FastAPI(title="dadlm", lifespan=life, docs_url=None, redoc_url=None)
    add_handlers(app)
    _add_api(app, service)
    _add_state(app, service)
    _add_page(app)
    _add_description(app, service)
    _add_guards(app, service, api_key)
    return app


def _add_api(app: FastAPI, service: Service) -> None:
    # Bodies are not parameters of these functions: the framework would check them on the event loop.
    turn = asyncio.Lock()

    def post(path: str, body: type[BaseModel], answer: type[BaseModel]):
        extra = {"requestBody": json_body(body)}
        return app.post(path, response_model=answer, responses=_ERRORS | _EVENTS, openapi_extra=extra)

    @post("/v1/completions", CompletionBody, CompletionAnswer)
    async def completions(http: Request) -> Response:
        """Complete prompts; OpenAI's API."""
        return await complete(service, await read_body(http, CompletionBody, turn), http)

    @post("/v1/infill", InfillBody, InfillAnswer)
    async def infill(http: Request) -> Response:
        """Fill gaps anywhere in a text."""
        return await fill(service, await read_body(http, InfillBody, turn), http)

    @app.get("/v1/models", response_model=ModelsAnswer, responses=_ERRORS)
    async def models() -> Response:
        """The models served, the default first."""
        return JSONResponse(service.cards())

    @app.get("/v1/models/{name:path}", response_model=ModelCard, responses=_ERRORS)
    async def model(name: str) -> Response:
        """One of them."""
        return JSONResponse(service.find(name).card(service.created))


def _add_state(app: FastAPI, service: Service) -> None:
    registry = registry_of(service)

    @app.get("/healthz", response_model=HealthAnswer, responses=_ERRORS)
    async def alive() -> Response:
        """The process answers, and no scheduler has given up."""
        if service.broken:
            raise Refusal(503, "a scheduler has stopped; restart the server", code="broken")
        return JSONResponse({"status": "ok"})

    @app.get("/readyz", response_model=HealthAnswer, responses=_ERRORS)
    async def ready() -> Response:
        """Requests are taken: models loaded, schedulers at work, not shutting down."""
        if not service.ready:
            raise Refusal(503, "not ready", code="not_ready")
        return JSONResponse({"status": "ready"})

    @app.get("/metrics", response_class=PlainTextResponse, responses=_ERRORS)
    async def metrics() -> Response:
        """Counters and histograms as Prometheus reads them."""
        return PlainTextResponse(generate_latest(registry), media_type="text/plain; version=0.0.4")


def _add_page(app: FastAPI) -> None:
    mimetypes.add_type("text/javascript", ".js")  # some systems name another type, and browsers refuse that
    page = str(files("dadlm.serve") / "page")
    app.mount("/static", StaticFiles(directory=page))

    @app.get("/", include_in_schema=False)
    async def playground() -> Response:
        return FileResponse(f"{page}/index.html")


def _add_description(app: FastAPI, service: Service) -> None:
    """/openapi.json with the bounds of these models, not only those of any."""
    general = app.openapi
    app.openapi = lambda: describe(general(), service)  # type: ignore[method-assign]


def _add_guards(app: FastAPI, service: Service, api_key: str | None) -> None:
    """From the inside out: what is added last sees a request first."""
    settings = service.settings
    app.add_middleware(Limits, settings=settings)
    app.add_middleware(Access, key=api_key, settings=settings)
    if settings.cors_origin:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origin,
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type"],
            expose_headers=["retry-after", "x-request-id"],
        )
    app.add_middleware(RequestLog)
