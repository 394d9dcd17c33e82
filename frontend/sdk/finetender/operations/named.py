"""Any operation of the market, by its name in the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from string import Formatter
from typing import Any
from urllib.parse import quote

from finetender.calls import Call, Operation, draw_key, send, send_once
from finetender.errors import UsageError
from finetender.operation_list import OPERATIONS, Route
from finetender.values import Raw


def call(
    operation: str,
    *,
    body: Mapping[str, Any] | None = None,
    file: Path | None = None,
    idempotency_key: str | None = None,
    **values: Any,
) -> Operation[Raw]:
    """Ask for an operation that answers with JSON, and give its answer.

    Parameters
    ----------
    operation
        Such as ``webhooks_list``; ``OPERATIONS`` has all of them.
    body
        The members of the request; the fields of the form where a file goes along.
    values
        Parts of the address, such as ``job_id``, and parameters of the query.

    Raises
    ------
    UsageError
        There is no such operation, it answers with a file, or a part of the address is missing.
    """
    route = _find_route(operation)
    if route.is_file:
        raise UsageError(f"{operation} answers with a file; use download_file.")
    path, params = _fill(operation, route, values)
    key = (idempotency_key or draw_key()) if route.takes_key else None
    made = Call(
        route.method,
        path,
        params=params,
        json=None if file is not None else body if body is not None or key is None else {},
        form=None if file is None else {name: str(value) for name, value in (body or {}).items()},
        file=file,
        file_member=route.file_member,
        idempotency_key=key,
    )
    # What is neither read nor kept under a key might be done twice.
    may_repeat = route.takes_key or route.method != "POST"
    return (yield from (send if may_repeat else send_once)(made)).body


def build_file_path(operation: str, values: Mapping[str, Any]) -> str:
    """The address of the file that an operation answers with.

    Raises
    ------
    UsageError
    """
    route = _find_route(operation)
    if not route.is_file:
        raise UsageError(f"{operation} answers with JSON; use call.")
    return _fill(operation, route, values)[0]


def _find_route(operation: str) -> Route:
    found = OPERATIONS.get(operation)
    if found is None:
        near = get_close_matches(operation, OPERATIONS, n=3, cutoff=0.0)
        raise UsageError(
            f"There is no operation {operation!r}; the nearest are {', '.join(near)}. "
            "The market's documentation lists all of them, under docs/operations."
        )
    return found


def _fill(operation: str, route: Route, values: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """The address with its parts, and the values that are left for the query."""
    parts = [name for _, name, _, _ in Formatter().parse(route.path) if name]
    missing = [name for name in parts if not values.get(name)]
    if missing:
        raise UsageError(f"{operation} needs {', '.join(missing)}.")
    filled = {name: quote(str(values[name]), safe="") for name in parts}
    if any(set(text) == {"."} for text in filled.values()):
        raise UsageError("A part of an address cannot be dots alone.")
    rest = {name: str(value) for name, value in values.items() if name not in filled}
    return route.path.format(**filled), rest
