"""The durable work of this app."""

from datetime import timedelta

from marketplace.common.backoff import build_backoff
from marketplace.common.durable.kinds import WorkKind, register_kind
from marketplace.webhooks.delivery import (
    AT_ONCE,
    AT_ONCE_PER_ORGANISATION,
    compute_wait,
    deliver_message,
    load_message,
    record_delivery,
    record_failed_delivery,
)
from marketplace.webhooks.notices import MAIL, load_notice, mail_notice, record_mail
from marketplace.webhooks.outbox import DELIVER

register_kind(
    WorkKind(
        name=MAIL,
        load=load_notice,
        do=mail_notice,
        apply=record_mail,
        backoff=build_backoff(first=timedelta(seconds=30), most=timedelta(hours=1), attempts=20),
        # The mail server may be slow; another worker sends nothing again.
        lease=timedelta(minutes=5),
    )
)
register_kind(
    WorkKind(
        name=DELIVER,
        load=load_message,
        do=deliver_message,
        apply=record_delivery,
        fail=record_failed_delivery,
        backoff=compute_wait,
        # A batch, eight messages at a time, takes three times the 15 s of one at most.
        lease=timedelta(seconds=60),
        batch=AT_ONCE,
        at_once=AT_ONCE,
        at_once_per_owner=AT_ONCE_PER_ORGANISATION,
    )
)
