"""The durable work of this app."""

from datetime import timedelta

from marketplace.common.backoff import build_backoff
from marketplace.common.durable.kinds import WorkKind, register_kind
from marketplace.tracking.sending import (
    LONGEST_PAUSE,
    SEND,
    apply_batch,
    fail_batch,
    load_batch,
    send_batch,
)

register_kind(
    WorkKind(
        name=SEND,
        load=load_batch,
        do=send_batch,
        apply=apply_batch,
        fail=fail_batch,
        # Over a day in all.
        backoff=build_backoff(first=timedelta(seconds=30), most=LONGEST_PAUSE, attempts=31),
        lease=timedelta(minutes=5),
    )
)
