"""The durable work of this app."""

from datetime import timedelta

from marketplace.common.backoff import build_backoff
from marketplace.common.durable.kinds import WorkKind, register_kind
from marketplace.exports.hub import PUSH, apply_push, fail_push, load_push, send_push

register_kind(
    WorkKind(
        name=PUSH,
        load=load_push,
        do=send_push,
        apply=apply_push,
        fail=fail_push,
        backoff=build_backoff(first=timedelta(seconds=30), most=timedelta(hours=2), attempts=5),
        # A merged model may have 64 GiB.
        lease=timedelta(hours=2),
    )
)
