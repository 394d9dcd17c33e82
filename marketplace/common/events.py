"""Telling browsers what happened, after it is committed and never before."""

import atexit
import os
import re
from functools import cache
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal
from channels.layers import get_channel_layer
from django.db import transaction

#: What the channel layer accepts as a group's name.
STREAM = re.compile(r"[A-Za-z0-9_.-]{1,99}")
#: The consumers' handler is ``stream_event``.
MESSAGE_TYPE = "stream.event"


def publish_on_commit(*, stream: str, event: dict[str, Any]) -> None:
    """Sends ``event`` to everyone who follows ``stream`` once the transaction commits.

    Streams are ``job.<id>`` and ``market.<zone name>``. ``event["seq"]`` rises by one within a
    stream, so a browser that missed one sees the gap and fetches a snapshot; therefore a lost
    message costs nothing, and a broken channel layer must not undo, or even fail, what was
    committed.
    """
    if not STREAM.fullmatch(stream):
        raise ValueError(f"{stream!r} cannot name a stream")
    if "seq" not in event:
        raise ValueError("an event carries its seq")
    message = {"type": MESSAGE_TYPE, "stream": stream, "event": event}

    def publish() -> None:
        _portal(os.getpid()).call(get_channel_layer().group_send, stream, message)  # type: ignore[union-attr]

    transaction.on_commit(publish, robust=True)


@cache
def _portal(pid: int) -> BlockingPortal:
    """This process's way into an event loop that stays, and keeps its Redis connections.

    ``async_to_sync`` would make a loop and a connection for each event. A fork makes its own.
    """
    running = start_blocking_portal(name="events")
    portal = running.__enter__()

    def stop() -> None:
        if os.getpid() == pid:
            running.__exit__(None, None, None)

    atexit.register(stop)
    return portal
