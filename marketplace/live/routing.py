"""Websocket addresses."""

from http import HTTPStatus
from typing import Any, cast

from channels.routing import URLRouter
from django.urls import re_path

from marketplace.live.consumers import CLOSE_OFFSET, JobConsumer, MarketConsumer


async def refuse_unknown(_scope: Any, receive: Any, send: Any) -> None:
    """Close a websocket at an unknown address; without this it would count as our fault."""
    await receive()
    await send({"type": "websocket.close", "code": CLOSE_OFFSET + HTTPStatus.NOT_FOUND})


websocket_urlpatterns = [
    re_path(r"^ws/jobs/(?P<job_id>[A-Za-z0-9-]{1,40})/$", cast(Any, JobConsumer.as_asgi())),
    re_path(r"^ws/market/(?P<zone_name>[a-z0-9_-]{1,40})/$", cast(Any, MarketConsumer.as_asgi())),
    re_path(r"", cast(Any, refuse_unknown)),
]
websocket_router = URLRouter(websocket_urlpatterns)
