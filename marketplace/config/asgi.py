"""What the web server serves: pages, API and websockets."""

import asyncio
import os
import signal
import threading
from typing import Any

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter
from channels.security.websocket import AllowedHostsOriginValidator
from django.conf import settings
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "marketplace.config.settings.dev")
os.environ.setdefault("DATABASE_POOL_MAX", "16")

# Django must be set up before the consumers, which import models, are.
django_application = get_asgi_application()

from marketplace.api.handler import ApiHandler  # noqa: E402
from marketplace.api.internal.body_limit import BodyLimitMiddleware  # noqa: E402
from marketplace.api.internal.plans import waiting_nodes  # noqa: E402
from marketplace.api.internal.questions import waiting_answerers  # noqa: E402
from marketplace.api.market.job_stream import shutdown as streams_shutdown  # noqa: E402
from marketplace.config.alert_thread import start_watching  # noqa: E402
from marketplace.config.logs import RequestLogMiddleware  # noqa: E402
from marketplace.live.routing import websocket_router  # noqa: E402
from workers.protocol.generation import PATH_NEXT_QUESTIONS  # noqa: E402
from workers.protocol.plan_queue import PATH_NEXT_PLAN  # noqa: E402

api_application = ApiHandler()


async def http_application(scope: Any, receive: Any, send: Any) -> None:
    """The API, and nodes' waits, through a handler without threads; the rest through Django's."""
    path = scope["path"]
    waits = path.startswith(("/api/", "/v1/")) or path in (PATH_NEXT_PLAN, PATH_NEXT_QUESTIONS)
    await (api_application if waits else django_application)(scope, receive, send)


async def lifespan_application(_scope: Any, receive: Any, send: Any) -> None:
    """The server's start and end.

    It stops once all requests are answered, so nodes that wait are answered, and streams of events
    end, when it is asked to.
    """
    await receive()
    if threading.current_thread() is threading.main_thread():
        _call_before_stop(asyncio.get_running_loop(), signal.SIGTERM, signal.SIGINT)
    watching = start_watching()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    watching.set()
    await send({"type": "lifespan.shutdown.complete"})


def _call_before_stop(loop: asyncio.AbstractEventLoop, *numbers: signal.Signals) -> None:
    """Put the end of the nodes' waits before what the server does on these signals."""
    for number in numbers:
        handle = signal.getsignal(number)

        def stop(*arguments: Any, handle: Any = handle) -> None:
            # The signal may have come while a lock was held: on the event loop, none is.
            loop.call_soon_threadsafe(waiting_nodes.stop)
            loop.call_soon_threadsafe(waiting_answerers.stop)
            loop.call_soon_threadsafe(streams_shutdown.stop)
            if callable(handle):
                handle(*arguments)

        signal.signal(number, stop)


_for_browsers = AllowedHostsOriginValidator(AuthMiddlewareStack(websocket_router))


async def websocket_application(scope: Any, receive: Any, send: Any) -> None:
    """Browsers by their session, from our own pages; programs by their key.

    A page of somebody else's can make a browser send cookies, but no ``Authorization``.
    """
    has_key = any(name == b"authorization" for name, _ in scope["headers"])
    await (websocket_router if has_key else _for_browsers)(scope, receive, send)


application = ProtocolTypeRouter(
    {
        "http": RequestLogMiddleware(
            BodyLimitMiddleware(http_application), writes_lines=settings.ACCESS_LOG
        ),
        "lifespan": lifespan_application,
        "websocket": websocket_application,
    }
)
