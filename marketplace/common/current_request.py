"""The request that is being answered: its id for log lines, and when it came in, for traces."""

from __future__ import annotations

import re
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime

from marketplace.common.ids import new_id

REQUEST_ID = "X-Request-Id"
_GIVEN_ID = re.compile(r"[A-Za-z0-9_.:-]{1,100}")


@dataclass(frozen=True, slots=True)
class CurrentRequest:
    """A request over HTTP."""

    request_id: str
    began_at: datetime
    #: Its method and path, without the query.
    line: str


#: Of this task of the event loop and the threads that work for it alone; not of batches.
current_request: ContextVar[CurrentRequest | None] = ContextVar("current_request", default=None)


def request_id_of(given: str) -> str:
    """The caller's id of a request, or one of ours where it gave none or an unsafe one."""
    return given if _GIVEN_ID.fullmatch(given) else new_id("req")
