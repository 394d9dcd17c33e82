"""The web server's entrance: pages, API and websockets."""

import os

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter
from channels.security.websocket import AllowedHostsOriginValidator
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "marketplace.config.settings.dev")
os.environ.setdefault("DATABASE_POOL_MAX", "16")

# Django must be set up before the consumers, which import models, are.
django_application = get_asgi_application()

from marketplace.api.internal.body_limit import BodyLimitMiddleware  # noqa: E402
from marketplace.api.market.entrance import BidEntrance  # noqa: E402
from marketplace.config.routing import websocket_router  # noqa: E402

application = ProtocolTypeRouter(
    {
        "http": BidEntrance(BodyLimitMiddleware(django_application)),
        "websocket": AllowedHostsOriginValidator(AuthMiddlewareStack(websocket_router)),
    }
)
