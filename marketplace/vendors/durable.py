"""The durable work of this app."""

from datetime import timedelta

from marketplace.common.backoff import build_backoff
from marketplace.common.durable.kinds import WorkKind, register_kind
from marketplace.jobs.services.readings import INSPECT
from marketplace.vendors.handover import PREPARE, TELL, apply_told, load_assigned, tell_vendor
from marketplace.vendors.plan_making import fail_plan, load_plan, make_plan, store_plan
from marketplace.vendors.plans import MAKE
from marketplace.vendors.preparing import INSPECTION_WALL_S, WALL_S
from marketplace.vendors.reports import fail_report, inspect_data, load_raw_data, store_report
from marketplace.vendors.working import (
    discard_data,
    fail_preparation,
    load_preparation,
    make_data,
    store_data,
)

register_kind(
    WorkKind(
        name=PREPARE,
        load=load_preparation,
        do=make_data,
        apply=store_data,
        fail=fail_preparation,
        discard=discard_data,
        # An outage of the market is over within these forty minutes, or an operator tries again.
        backoff=build_backoff(first=timedelta(seconds=10), most=timedelta(minutes=10), attempts=10),
        # Each step extends it.
        lease=timedelta(seconds=WALL_S + 120),
        # Threads are left for all else that the workers do.
        at_once=2,
    )
)
register_kind(
    WorkKind(
        name=MAKE,
        load=load_plan,
        do=make_plan,
        apply=store_plan,
        fail=fail_plan,
        backoff=build_backoff(first=timedelta(seconds=10), most=timedelta(minutes=10), attempts=3),
        # The file is prepared, then read as an upload is.
        lease=timedelta(seconds=2 * WALL_S + 120),
        at_once_per_owner=1,
    )
)
register_kind(
    WorkKind(
        name=INSPECT,
        load=load_raw_data,
        do=inspect_data,
        apply=store_report,
        fail=fail_report,
        backoff=build_backoff(first=timedelta(seconds=10), most=timedelta(minutes=10), attempts=3),
        lease=timedelta(seconds=INSPECTION_WALL_S + 120),
    )
)
register_kind(
    WorkKind(
        name=TELL,
        load=load_assigned,
        do=tell_vendor,
        apply=apply_told,
        backoff=build_backoff(first=timedelta(seconds=5), most=timedelta(minutes=10), attempts=7),
        lease=timedelta(minutes=1),
    )
)
