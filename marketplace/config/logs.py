"""Log lines as text or JSON, each with its request's id, and a line for each answer."""

from __future__ import annotations

import json
import logging
import re
import time
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from marketplace.common import clock
from marketplace.common.current_request import (
    REQUEST_ID,
    CurrentRequest,
    current_request,
    request_id_of,
)

access = logging.getLogger("marketplace.access")
#: What follows in a path lets whoever has it in.
_SECRETS = re.compile(
    r"(/internal/v1/(?:leases|errands|questions)/|/vendor-work/|/invitations/|/links/)[^/]+"
)
_HEADER = REQUEST_ID.lower().encode()


class RequestIdFilter(logging.Filter):
    """Gives each record ``request_id``: that of the request it was written for, or ``-``."""

    def filter(self, record: logging.LogRecord) -> bool:
        request = current_request.get()
        record.request_id = request.request_id if request else "-"
        return True


class JsonFormatter(logging.Formatter):
    """One JSON object a line; what ``extra`` gives under ``facts`` are members of it."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "at": at.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "request_id": getattr(record, "request_id", "-"),
            "process": record.process,
        }
        line |= getattr(record, "facts", {})
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class RequestLogMiddleware:
    """Gives each request an id, which its answer names, and writes a line for each answer.

    A line has no query, no secret part of a path, and no address of a client.
    """

    def __init__(self, application: Any, *, writes_lines: bool) -> None:
        self._application = application
        self._writes_lines = writes_lines

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = [pair for pair in scope["headers"] if pair[0] != _HEADER]
        given = [value for name, value in scope["headers"] if name == _HEADER]
        request_id = request_id_of(given[-1].decode("latin-1") if given else "")
        scope = {**scope, "headers": [*headers, (_HEADER, request_id.encode())]}
        line = f"{scope['method']} {hide_secrets(scope['path'])}"
        current_request.set(CurrentRequest(request_id, clock.now(), line))
        begun, status = time.perf_counter(), 0

        async def note_and_send(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                named = [name for name, _ in message.get("headers", ())]
                if not any(name.lower() == _HEADER for name in named):
                    own = (_HEADER, request_id.encode())
                    message = {**message, "headers": [*message.get("headers", ()), own]}
            await send(message)

        try:
            await self._application(scope, receive, note_and_send)
        finally:
            if self._writes_lines:
                _write_line(line, status, round(1000 * (time.perf_counter() - begun), 1))


def hide_secrets(path: str) -> str:
    """Take the parts out of a path that are as good as a password.

    Examples
    --------
    >>> hide_secrets("/invitations/xyz")
    '/invitations/***'
    """
    return _SECRETS.sub(r"\1***", path)


def _write_line(line: str, status: int, took_ms: float) -> None:
    """Write how a request was answered; status 0: its client left first."""
    level = logging.ERROR if status >= HTTPStatus.INTERNAL_SERVER_ERROR else logging.INFO
    facts = {"status": status, "took_ms": took_ms}
    access.log(level, "%s %s %s ms", line, status, took_ms, extra={"facts": facts})
