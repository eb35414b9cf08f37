# SPDX-License-Identifier: Apache-2.0
"""The page's application: static files, error responses and authentication of every route."""

from __future__ import annotations

import logging
from functools import cache
from importlib.resources import files
from typing import Any

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware.base import RequestResponseEndpoint
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from airflow_changefeed import exceptions as errors
from airflow_changefeed.connections.connection import without_secrets
from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.values import now
from airflow_changefeed.plugins.access import reading
from airflow_changefeed.plugins.actions import router as actions
from airflow_changefeed.plugins.api import router
from airflow_changefeed.plugins.connections import message_of, runs_of
from airflow_changefeed.plugins.rows import cursor_row

log = logging.getLogger(__name__)

#: Maximum length of a body; the longest that the page sends is a note.
MOST_BYTES = 64 * 1024

_FILES = files("airflow_changefeed.plugins") / "static"
_TYPES = {
    "page.css": "text/css",
    "icon.svg": "image/svg+xml",
    "icon-dark.svg": "image/svg+xml",
    **dict.fromkeys(
        (
            "page.js",
            "overview.js",
            "parts.js",
            "server.js",
            "feed.js",
            "calendar.js",
            "window.js",
            "actions.js",
            "strip.js",
            "chart.js",
            "dialogs.js",
            "troubles.js",
            "tables.js",
        ),
        "text/javascript",
    ),
}
_HEADERS = {
    # Loads nothing from other sites; only Airflow's own pages may frame it.
    "Content-Security-Policy": (
        "default-src 'self'; frame-ancestors 'self'; base-uri 'none'; form-action 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
#: HTTP status of an error: the first match.
_STATUS: tuple[tuple[type[Exception] | tuple[type[Exception], ...], int], ...] = (
    (
        (
            errors.StaleVersionError,
            errors.LeaseHeldError,
            errors.LeaseLostError,
            errors.CursorEditedError,
            errors.CursorFormatError,
        ),
        409,
    ),
    (
        (
            errors.FeedNotFoundError,
            errors.ShardNotFoundError,
            errors.ConsumerNotFoundError,
            errors.CaptureNotFoundError,
        ),
        404,
    ),
    (
        (
            errors.InvalidArgumentError,
            errors.FutureTimeError,
            errors.CursorBeyondFeedError,
            errors.PurgedError,
        ),
        422,
    ),
    (errors.TransientError, 503),
    ((errors.ConnectionNotUsableError, errors.PermissionDeniedError, errors.OutputError), 502),
    (errors.ChangefeedError, 409),
)
_LOG_IN = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Changefeed</title>
<p>Log in to <a href="../">Airflow</a>, then open this page again.</p></html>"""


@cache
def page() -> FastAPI:
    """Return the application; every route requires a user who may read."""
    app = FastAPI(
        title="Changefeed", docs_url=None, redoc_url=None, openapi_url=None, dependencies=[Depends(reading)]
    )
    app.include_router(router, prefix="/api")
    app.include_router(actions, prefix="/api")
    app.add_api_route("/", _page, response_class=HTMLResponse)
    app.add_api_route("/static/{name}", _static, response_class=Response)
    app.add_exception_handler(errors.ChangefeedError, _refused)
    app.add_exception_handler(OSError, _unreachable)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(StarletteHTTPException, _http_error)
    app.add_middleware(_Bounded)
    app.middleware("http")(_with_headers)
    return app


class _Bounded:
    """Refuses a body that is longer than any of the page, as it comes: it is read before a user is known."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        length = 0

        async def bounded() -> Message:
            nonlocal length
            message = await receive()
            length += len(message.get("body", b""))
            if length > MOST_BYTES:
                raise HTTPException(413, f"The request's body is longer than {MOST_BYTES} bytes")
            return message

        await self._app(scope, bounded, send)


def _page() -> HTMLResponse:
    return HTMLResponse((_FILES / "page.html").read_text(encoding="utf-8"))


def _static(name: str) -> Response:
    if name not in _TYPES:
        raise HTTPException(404, f"File {name!r} not found")
    return Response((_FILES / name).read_bytes(), media_type=_TYPES[name])


async def _with_headers(request: Request, call_next: RequestResponseEndpoint) -> Response:
    response = await call_next(request)
    for name, value in _HEADERS.items():
        response.headers[name] = value
    return response


def _refused(request: Request, error: Exception) -> Response:
    """Return an error's message, and the current state after a stale write."""
    status = next(status for kinds, status in _STATUS if isinstance(error, kinds))
    facts = error.facts if isinstance(error, errors.ChangefeedError) else {}
    runs = runs_of(request)
    body: dict[str, Any] = {"detail": message_of(request, error), "error": type(error).__name__}
    body |= {name: facts[name] for name in ("expected_version", "present_version") if name in facts}
    if "present" in facts:
        body["present"] = runs.in_text(str(facts["present"]))
    if isinstance(facts.get("row"), CursorRow):
        body["row"] = cursor_row(facts["row"], now(), runs)
    return JSONResponse(body, status)


def _unreachable(request: Request, error: Exception) -> Response:
    """Return the message of a file system or server that did not answer."""
    log.warning("The page failed to read a feed: %s", without_secrets(str(error)), exc_info=True)
    return JSONResponse({"detail": message_of(request, error), "error": type(error).__name__}, 503)


def _invalid(request: Request, error: Exception) -> Response:
    """Name each invalid value, without repeating it."""
    problems = error.errors() if isinstance(error, RequestValidationError) else []
    text = "; ".join(
        f"{'.'.join(map(str, one['loc'][1:])) or one['loc'][0]}: {one['msg']}" for one in problems
    )
    return JSONResponse({"detail": text, "error": "InvalidArgumentError"}, 422)


def _http_error(request: Request, error: Exception) -> Response:
    status, detail = (
        (error.status_code, error.detail) if isinstance(error, StarletteHTTPException) else (500, "")
    )
    if status == 401 and request.scope["path"].endswith("/changefeed/"):
        return HTMLResponse(_LOG_IN, status)
    return JSONResponse({"detail": detail, "error": None}, status)
