"""The durable work of this app."""

from datetime import timedelta

from marketplace.common.backoff import build_backoff
from marketplace.common.durable.kinds import WorkKind, register_kind
from marketplace.vendors.plan_making import fail_plan, load_plan, make_plan, store_plan
from marketplace.vendors.plans import MAKE
from marketplace.vendors.preparing import WALL_S

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
