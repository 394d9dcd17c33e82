"""The durable work of this app."""

from datetime import timedelta

from marketplace.auction.witnesses.days import ASK, fetch_signature, load_promise, store_signature
from marketplace.common.backoff import build_backoff
from marketplace.common.durable.kinds import WorkKind, register_kind

register_kind(
    WorkKind(
        name=ASK,
        load=load_promise,
        do=fetch_signature,
        apply=store_signature,
        # For half a day.
        backoff=build_backoff(first=timedelta(seconds=10), most=timedelta(minutes=30), attempts=30),
        lease=timedelta(minutes=1),
    )
)
