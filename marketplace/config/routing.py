"""Websocket addresses."""

from channels.routing import URLRouter

from marketplace.live.routing import websocket_urlpatterns

websocket_router = URLRouter(websocket_urlpatterns)
