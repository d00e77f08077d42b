"""The application: routes, errors, the page, and the guard around all of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from keepad.errors import KeepADError
from keepad.serve import routes, routes_v2
from keepad.serve.assets import ASSETS, read_asset
from keepad.serve.errors import RefusedError, refusal_of
from keepad.serve.guard import Guard
from keepad.serve.service import Service
from keepad.version import __version__


def create_app(service: Service) -> ASGIApp:
    """The application of a service; its lifespan ends the service."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title="KeepAD",
        version=__version__,
        summary="Visual anomaly detection that drops patch tokens and keeps the defect.",
        lifespan=lifespan,
        docs_url=None,  # would load scripts from another host
        redoc_url=None,
    )
    # Only described here; the guard asks for it, before any route is looked for.
    bearer = Security(HTTPBearer(auto_error=False, description="The token of the service."))
    closed = [bearer] if service.settings.token is not None else []
    app.include_router(routes.routes(service), dependencies=closed)
    app.include_router(routes_v2.routes(service), dependencies=closed)
    app.include_router(routes.health(service))
    _add_page(app)
    _add_errors(app, service)

    def observe(route: str, status: int, seconds: float) -> None:
        service.metrics.requests.labels(route, str(status)).inc()
        service.metrics.request_seconds.labels(route).observe(seconds)

    return Guard(app, service.settings, observe)


def _add_page(app: FastAPI) -> None:
    for path, (name, media_type) in ASSETS.items():
        app.add_route(path, _sender(read_asset(name), media_type), methods=["GET"], include_in_schema=False)


def _sender(content: bytes, media_type: str) -> Callable[[Request], Response]:
    return lambda request: Response(content, media_type=media_type)


def _add_errors(app: FastAPI, service: Service) -> None:
    """Every error is JSON with one sentence under `error`."""

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, RefusedError | KeepADError)
        refusal = refusal_of(error) if isinstance(error, KeepADError) else error
        return JSONResponse({"error": refusal.sentence}, refusal.status, refusal.headers)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return JSONResponse({"error": _sentence(error.errors())}, 400)

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        sentence = {
            404: "there is nothing at this address; /openapi.json lists all of them.",
            405: "this address does not take this method; /openapi.json says which.",
        }.get(error.status_code, f"{str(error.detail)[:200]}.")
        return JSONResponse({"error": sentence}, error.status_code, error.headers)

    async def broken(request: Request, error: Exception) -> Response:
        service.say(f"{request.method} {request.scope['path']!r:.100} failed: {type(error).__name__}: {error}")
        return JSONResponse({"error": "the service could not do this; its log says why."}, 500)

    app.add_exception_handler(RefusedError, refused)
    app.add_exception_handler(KeepADError, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, broken)


def _sentence(errors: Any) -> str:
    """The first validation error for people."""
    first = errors[0]
    where = ".".join(str(part) for part in first["loc"][1:]) or "the request"
    return f"{where[:100]}: {str(first['msg'])[:200]}."
