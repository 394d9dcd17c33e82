"""Tell providers of nodes that fell silent."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F, Q
from django.db.models.functions import Coalesce

from marketplace.common.clock import format_moment
from marketplace.fleet.models import Node, NodeStatus
from marketplace.webhooks.news import NODE_SILENT, News
from marketplace.webhooks.outbox import add_messages

#: A node that is started again is back before this.
TOLD_AFTER = timedelta(minutes=5)


def note_silent_nodes(*, now: datetime) -> int:
    """Tell of nodes that are silent for ``TOLD_AFTER``, once for each silence; of how many."""
    heard = Node.objects.annotate(heard_at=Coalesce("last_heartbeat_at", "joined_at"))
    silent = heard.filter(
        Q(silence_told_at=None) | Q(silence_told_at__lt=F("heard_at")),
        status=NodeStatus.OFFLINE,
        heard_at__lte=now - TOLD_AFTER,
    )
    told = 0
    for node in silent.select_related("provider").order_by("pk"):
        with transaction.atomic():
            # The filter is asked again: another worker may have told of it meanwhile.
            if silent.filter(pk=node.pk).update(silence_told_at=now):
                heard_at = node.last_heartbeat_at or node.joined_at
                add_messages(news=[_build_news(node, heard_at)], now=now)
                told += 1
    return told


def _build_news(node: Node, heard_at: datetime) -> News:
    text = (
        f"It was heard at {format_moment(heard_at)} for the last time. "
        "Its jobs are planned again on other nodes, and it earns nothing until it is back."
    )
    data = {"id": node.pk, "name": node.name, "heard_at": heard_at.isoformat(), "message": text}
    return News(
        node.provider.organisation_id,
        NODE_SILENT,
        data,
        name=node.name,
        about=f"{node.pk}:{heard_at.isoformat()}",
    )
