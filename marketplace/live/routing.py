"""Websocket addresses."""

from typing import Any, cast

from django.urls import re_path

from marketplace.live.consumers import JobConsumer, MarketConsumer

websocket_urlpatterns = [
    re_path(r"^ws/jobs/(?P<job_id>[A-Za-z0-9-]{1,40})/$", cast(Any, JobConsumer.as_asgi())),
    re_path(r"^ws/market/(?P<zone_name>[a-z0-9_-]{1,40})/$", cast(Any, MarketConsumer.as_asgi())),
]
