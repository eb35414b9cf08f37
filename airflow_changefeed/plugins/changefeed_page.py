# SPDX-License-Identifier: Apache-2.0
"""The page's application: its files, its answers to errors, and that nobody gets any of it without leave."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware.base import RequestResponseEndpoint

from airflow_changefeed import exceptions as errors
from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.times import now
from airflow_changefeed.plugins.changefeed_access import reading
from airflow_changefeed.plugins.changefeed_api import router
from airflow_changefeed.plugins.changefeed_rows import cursor_row
from airflow_changefeed.plugins.changefeed_uses import without_secrets

log = logging.getLogger(__name__)

_FILES = files("airflow_changefeed.plugins") / "static"
_TYPES = {
    "page.css": "text/css",
    "icon.svg": "image/svg+xml",
    "icon-dark.svg": "image/svg+xml",
    **dict.fromkeys(
        ("page.js", "parts.js", "server.js", "feed.js", "calendar.js", "dialogs.js", "troubles.js"),
        "text/javascript",
    ),
}
_HEADERS = {
    # Everything comes from here, nothing from elsewhere, and only Airflow's own pages may frame it.
    "Content-Security-Policy": (
        "default-src 'self'; frame-ancestors 'self'; base-uri 'none'; form-action 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
#: The first that fits an error.
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
# Whose words name servers, logins and paths.
_OF_PLACES = (
    errors.ConnectionNotUsableError,
    errors.PermissionDeniedError,
    errors.OutputError,
    errors.SourceUnavailableError,
    OSError,
)
_LOG_IN = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Changefeed</title>
<p>Log in to <a href="../">Airflow</a> first, then open this page again.</p></html>"""


@cache
def page() -> FastAPI:
    """Return the application; every route of it wants a user who may read."""
    app = FastAPI(
        title="Changefeed", docs_url=None, redoc_url=None, openapi_url=None, dependencies=[Depends(reading)]
    )
    app.include_router(router, prefix="/api")
    app.add_api_route("/", _page, response_class=HTMLResponse)
    app.add_api_route("/static/{name}", _static, response_class=Response)
    app.add_exception_handler(errors.ChangefeedError, _refused)
    app.add_exception_handler(OSError, _unreachable)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(StarletteHTTPException, _http_error)
    app.middleware("http")(_with_headers)
    return app


def _page() -> HTMLResponse:
    return HTMLResponse((_FILES / "page.html").read_text(encoding="utf-8"))


def _static(name: str) -> Response:
    if name not in _TYPES:
        raise HTTPException(404, f"no file {name!r}")
    return Response((_FILES / name).read_bytes(), media_type=_TYPES[name])


async def _with_headers(request: Request, call_next: RequestResponseEndpoint) -> Response:
    response = await call_next(request)
    for name, value in _HEADERS.items():
        response.headers[name] = value
    return response


def _refused(request: Request, error: Exception) -> Response:
    """Say what was wrong, and of a stale write what there is now."""
    status = next(status for kinds, status in _STATUS if isinstance(error, kinds))
    facts = error.facts if isinstance(error, errors.ChangefeedError) else {}
    body: dict[str, Any] = {"detail": _told(request, error, facts), "error": type(error).__name__}
    body |= {
        name: facts[name] for name in ("expected_version", "present_version", "present") if name in facts
    }
    if isinstance(facts.get("row"), CursorRow):
        body["row"] = cursor_row(facts["row"], now())
    return JSONResponse(body, status)


def _told(request: Request, error: Exception, facts: Mapping[str, object] = MappingProxyType({})) -> str:
    """Return an error's words, as far as the user may know of servers, logins and paths."""
    is_told = facts.get("may_tell") or getattr(request.state, "is_told", False)
    if isinstance(error, _OF_PLACES) and not is_told:
        log.warning("the page could not read: %s", without_secrets(str(error)))
        return (
            "The database or the output cannot be used at present. Whoever may see the connection in Airflow "
            "is told why, and so is the log of the API server"
        )
    words = f"{type(error).__name__}: {error}" if isinstance(error, OSError) else str(error)
    return without_secrets(words)


def _unreachable(request: Request, error: Exception) -> Response:
    """Say that a file system or server did not answer, as far as its own words may be told."""
    log.warning("the page could not read: %s", without_secrets(str(error)), exc_info=True)
    return JSONResponse({"detail": _told(request, error), "error": type(error).__name__}, 503)


def _invalid(request: Request, error: Exception) -> Response:
    """Name each wrong value, without repeating it."""
    problems = error.errors() if isinstance(error, RequestValidationError) else []
    words = "; ".join(
        f"{'.'.join(map(str, one['loc'][1:])) or one['loc'][0]}: {one['msg']}" for one in problems
    )
    return JSONResponse({"detail": words, "error": "InvalidArgumentError"}, 422)


def _http_error(request: Request, error: Exception) -> Response:
    status, detail = (
        (error.status_code, error.detail) if isinstance(error, StarletteHTTPException) else (500, "")
    )
    if status == 401 and request.scope["path"].endswith("/changefeed/"):
        return HTMLResponse(_LOG_IN, status)
    return JSONResponse({"detail": detail, "error": None}, status)
