"""The durable work of this app."""

from datetime import timedelta

from marketplace.common.backoff import build_backoff
from marketplace.common.durable.kinds import WorkKind, register_kind
from marketplace.payments.webhooks import APPLY_EVENT, apply_event, ask_about_event, load_event

register_kind(
    WorkKind(
        name=APPLY_EVENT,
        load=load_event,
        do=ask_about_event,
        apply=apply_event,
        backoff=build_backoff(first=timedelta(seconds=2), most=timedelta(hours=1), attempts=None),
        # Longer than the calls of one event may take.
        lease=timedelta(minutes=5),
    )
)
