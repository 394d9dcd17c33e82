"""The durable work of this app."""

from datetime import timedelta

from marketplace.accounts.erasure import ERASE, apply_erasure, delete_files, load_erasure
from marketplace.accounts.lock_mail import (
    LOCK_MAIL,
    apply_lock_mail,
    load_lock_mail,
    send_lock_mail,
)
from marketplace.common.backoff import build_backoff
from marketplace.common.durable.kinds import WorkKind, register_kind

register_kind(
    WorkKind(
        name=LOCK_MAIL,
        load=load_lock_mail,
        do=send_lock_mail,
        apply=apply_lock_mail,
        backoff=build_backoff(first=timedelta(seconds=30), most=timedelta(minutes=10), attempts=5),
        lease=timedelta(minutes=2),
    )
)
register_kind(
    WorkKind(
        name=ERASE,
        load=load_erasure,
        do=delete_files,
        apply=apply_erasure,
        # What was asked to be deleted is tried for ever; the operator sees what fails.
        backoff=build_backoff(first=timedelta(minutes=1), most=timedelta(hours=1), attempts=None),
        lease=timedelta(minutes=30),
    )
)
