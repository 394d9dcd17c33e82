"""What the web server serves: pages, API and websockets."""

import os
from typing import Any

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter
from channels.security.websocket import AllowedHostsOriginValidator
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "marketplace.config.settings.dev")
os.environ.setdefault("DATABASE_POOL_MAX", "16")

# Django must be set up before the consumers, which import models, are.
django_application = get_asgi_application()

from marketplace.api.handler import ApiHandler  # noqa: E402
from marketplace.api.internal.body_limit import BodyLimitMiddleware  # noqa: E402
from marketplace.config.routing import websocket_router  # noqa: E402

api_application = ApiHandler()


async def http_application(scope: Any, receive: Any, send: Any) -> None:
    """The API through its own handler, everything else through Django's."""
    is_api = scope["path"].startswith("/api/")
    await (api_application if is_api else django_application)(scope, receive, send)


application = ProtocolTypeRouter(
    {
        "http": BodyLimitMiddleware(http_application),
        "websocket": AllowedHostsOriginValidator(AuthMiddlewareStack(websocket_router)),
    }
)
