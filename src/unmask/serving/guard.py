"""Middleware: errors in OpenAI's format, the API key, and limits on bodies and on the number of open requests."""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from unmask.constraints.automaton import shorten
from unmask.errors import UnmaskError, is_out_of_memory
from unmask.registry import requirement
from unmask.serving.api import Limits, UnknownModel
from unmask.serving.batches import Cancelled, ClientGone
from unmask.serving.metrics import Metrics

OPEN_PATHS = ("/", "/health")
"""Paths that need no key."""
GONE = 499
"""Status of a request whose client disconnected; it is only seen in the metrics."""
NO_OBJECT = "The body must be a JSON object with the header Content-Type: application/json."
KINDS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}

log = logging.getLogger("unmask.serving")
Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


def error_body(status: int, message: str, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    """An error in OpenAI's shape."""
    kind = KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    message = message.encode("utf-8", "replace").decode()  # a request may have half a surrogate pair
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def explain(error: Exception, hide_paths: Callable[[str], str]) -> tuple[int, str, str | None]:
    """The status, message and code of an error."""
    if isinstance(error, UnknownModel):
        return 404, str(error), "model_not_found"
    if isinstance(error, UnmaskError):
        return 400, hide_paths(str(error)), None
    if isinstance(error, ClientGone):
        return GONE, "The client disconnected.", None
    if isinstance(error, Cancelled):
        return 503, str(error) or "The request was cancelled.", "cancelled"
    if (isinstance(error, RuntimeError) and is_out_of_memory(error)) or isinstance(error, MemoryError):
        return 503, "The server is out of memory; ask for fewer or shorter texts.", "out_of_memory"
    if isinstance(error, RecursionError):
        return 400, "The request is nested too deeply; simplify it.", None
    log.error("internal error", exc_info=error)
    return 500, "Internal error; the server's log says more.", "internal_error"


def add_error_handlers(app: FastAPI, hide_paths: Callable[[str], str]) -> None:
    """Answer errors in OpenAI's shape; `hide_paths` replaces folders of the server in a message."""

    async def known(request: Request, error: Exception) -> Response:
        status, message, code = explain(error, hide_paths)
        return JSONResponse(error_body(status, message, code), status)

    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        reason = requirement(str(first["msg"]).removeprefix("Value error, "))
        param = ".".join(_fields(first["loc"], error.body, missing=first["type"] == "missing"))[:80] or None
        shown = f", got {shorten(first.get('input'))}" if param and first["type"] != "missing" else ""
        if first["type"] == "value_error":
            message = f"{reason}."
        else:
            message = NO_OBJECT if param is None else f"{param} {reason}{shown}."
        return JSONResponse(error_body(400, message[:400], None, param), 400)

    async def http(request: Request, error: HTTPException) -> Response:
        path = request.url.path[:80]
        messages = {
            400: NO_OBJECT,  # of the parser of the body
            404: f"There is no endpoint {path}.",
            405: f"{path} does not answer {request.method[:10]}.",
        }
        message = messages.get(error.status_code, f"{str(error.detail).rstrip('.')}.")
        return JSONResponse(error_body(error.status_code, message), error.status_code, headers=error.headers)

    app.add_exception_handler(RequestValidationError, invalid)  # type: ignore[arg-type]
    app.add_exception_handler(HTTPException, http)  # type: ignore[arg-type]
    for kind in (UnmaskError, Cancelled, RuntimeError, MemoryError, Exception):
        app.add_exception_handler(kind, known)


def _fields(location: Sequence[Any], body: Any, missing: bool) -> list[str]:
    """The fields of the body that lead to a wrong value, without the union members that pydantic adds to them."""
    found = []
    for part in location[1:]:
        if isinstance(body, dict) and (missing or part in body):
            found.append(part)
            body = body.get(part)
        elif isinstance(body, list) and isinstance(part, int):
            found.append(str(part))
            body = body[part]
    return found


class Guard:
    """Checks the key, limits bodies and the number of open requests, and measures the answers."""

    def __init__(
        self, app: Any, limits: Limits, metrics: Metrics, api_key: str | None, hosts: Sequence[str] | None
    ) -> None:
        self.app, self.limits, self.metrics, self.api_key, self.hosts = app, limits, metrics, api_key, hosts
        self.open_requests = 0
        self.mean_seconds = 1.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        metrics, start, status = self.metrics, time.monotonic(), GONE

        async def count(message: dict[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message.get("more_body") and message.get("body") and "first" not in scope:
                scope["first"] = True
                metrics.first_event.observe(time.monotonic() - start)
            await send(message)

        works = scope["method"] == "POST"
        if works:
            self.open_requests += 1
            metrics.open_requests.set(self.open_requests)
        limits = self.limits
        answer = self._answer(scope, receive, count, full=works and self.open_requests > limits.requests)
        try:  # a client may take as long to read an answer as the server to write it
            await asyncio.wait_for(answer, limits.body_seconds + 2 * limits.seconds)
        except asyncio.TimeoutError:
            log.warning("a client did not read its answer")
        finally:
            if works:
                self.open_requests -= 1
                metrics.open_requests.set(self.open_requests)
            route = getattr(scope.get("route"), "path", "other")
            metrics.requests.labels(route, str(status)).inc()
            metrics.latency.labels(route).observe(time.monotonic() - start)
            if works and status == 200:
                self.mean_seconds += 0.1 * (time.monotonic() - start - self.mean_seconds)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, full: bool) -> None:
        async def refuse(status: int, message: str, **headers: str) -> None:
            answer = JSONResponse(error_body(status, message), status, headers=headers)
            await answer(scope, receive, send)  # type: ignore[arg-type]

        host = re.sub(r":\d*$", "", Headers(scope=scope).get("host", "")).strip("[]").lower()
        if self.hosts is not None and host not in self.hosts:
            await refuse(403, f"This server only answers for the hosts {', '.join(self.hosts)}.")
            return
        if not self._is_allowed(scope):
            await refuse(401, "This server needs a key; send it as 'Authorization: Bearer KEY'.")
            return
        if full:
            again = str(max(1, min(60, math.ceil(self.mean_seconds))))
            await refuse(429, "The server is busy; try again later.", **{"Retry-After": again})
            return
        try:
            body = await self._read_body(scope, receive)
        except ClientGone:
            return
        except asyncio.TimeoutError:
            seconds = self.limits.body_seconds
            await refuse(408, f"The body did not arrive within {seconds:g} seconds.", Connection="close")
            return
        if body is None:
            limit = self.limits.body_bytes
            await refuse(413, f"A body has at most {limit} bytes on this server; send less.", Connection="close")
            return
        sent = False

        async def replay() -> dict[str, Any]:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, replay, send)

    def _is_allowed(self, scope: Scope) -> bool:
        path = scope["path"]
        if self.api_key is None or path in OPEN_PATHS or path.startswith("/playground/"):
            return True
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        return hmac.compare_digest(given, b"Bearer " + self.api_key.encode())

    async def _read_body(self, scope: Scope, receive: Receive) -> bytes | None:
        """The whole body; None if it is too large."""
        limits, body = self.limits, bytearray()
        length = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if not length.isdigit() or int(length[:20]) > limits.body_bytes:
            return None
        deadline = time.monotonic() + limits.body_seconds
        while True:
            message = await asyncio.wait_for(receive(), max(0.0, deadline - time.monotonic()))
            if message["type"] == "http.disconnect":
                raise ClientGone
            body += message.get("body", b"")
            if len(body) > limits.body_bytes:
                return None
            if not message.get("more_body"):
                return bytes(body)
