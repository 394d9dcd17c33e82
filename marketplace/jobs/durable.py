"""The durable work of this app."""

from datetime import timedelta

from marketplace.common.backoff import build_backoff
from marketplace.common.durable.kinds import WorkKind, register_kind
from marketplace.jobs.reading_process import WALL_S
from marketplace.jobs.repairing import REPAIR_WALL_S
from marketplace.jobs.services.readings import (
    READ,
    discard_reading,
    fail_reading,
    load_upload,
    read_upload,
    store_reading,
)

register_kind(
    WorkKind(
        name=READ,
        load=load_upload,
        do=read_upload,
        apply=store_reading,
        fail=fail_reading,
        discard=discard_reading,
        backoff=build_backoff(first=timedelta(seconds=10), most=timedelta(minutes=10), attempts=3),
        # Each line of progress extends it.
        lease=timedelta(seconds=WALL_S + 2 * REPAIR_WALL_S + 60),
        # The other workers have slots to dispatch.
        at_once=2,
    )
)
