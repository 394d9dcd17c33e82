"""The durable work of this app."""

from datetime import timedelta

from marketplace.accounts.erasure import ERASE, apply_erasure, delete_files, load_erasure
from marketplace.common.backoff import build_backoff
from marketplace.common.durable.kinds import WorkKind, register_kind

register_kind(
    WorkKind(
        name=ERASE,
        load=load_erasure,
        do=delete_files,
        apply=apply_erasure,
        # What was asked to be deleted is tried for ever; the operator sees what fails.
        backoff=build_backoff(first=timedelta(minutes=1), most=timedelta(hours=1), attempts=None),
        lease=timedelta(minutes=30),
        # One after the other: nodes read the hashes of deleted files in their order.
        at_once=1,
    )
)
