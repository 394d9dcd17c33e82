"""The durable work of this app."""

from datetime import timedelta

from marketplace.common.backoff import build_backoff
from marketplace.common.durable.kinds import WorkKind, register_kind
from marketplace.jobs.loss_curves import (
    ARCHIVE,
    discard_loss_curve,
    load_points,
    replace_points,
    store_loss_curve,
)
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
register_kind(
    WorkKind(
        name=ARCHIVE,
        load=load_points,
        do=store_loss_curve,
        apply=replace_points,
        discard=discard_loss_curve,
        # Nothing is lost while it waits; the operator sees what fails.
        backoff=build_backoff(first=timedelta(minutes=1), most=timedelta(hours=6), attempts=None),
        lease=timedelta(minutes=5),
    )
)
