"""Whether a lease is current, asked in one way everywhere."""

from __future__ import annotations

from datetime import datetime

from marketplace.common.errors import UserError
from marketplace.fleet.models import Node
from marketplace.jobs import locks
from marketplace.jobs.models import Job, Slice, SliceStatus


class LeaseLost(UserError):
    """The lease is not, or no longer, this node's: it must drop the job and upload nothing."""

    default_status = 410

    def __init__(self) -> None:
        super().__init__(
            "lease_lost", "This lease is not current. Drop the job and wait for the next plan."
        )


def is_current(held: Slice, *, node: Node, now: datetime) -> bool:
    """Whether the node may still act on the slice."""
    return (
        held.status == SliceStatus.OPEN and held.node_id == node.pk and now < held.lease_expires_at
    )


def lock_current_slice(*, lease_token: str, node: Node, now: datetime) -> tuple[Job, Slice]:
    """The job and slice of a current lease, locked.

    Raises
    ------
    LeaseLost
    """
    found = locks.lock_slice(lease_token)
    if found is None or not is_current(found[1], node=node, now=now):
        raise LeaseLost
    return found


def get_current_slice(*, lease_token: str, node: Node, now: datetime) -> Slice:
    """The slice of a current lease, not locked: a first look before long work.

    Raises
    ------
    LeaseLost
    """
    held = (
        Slice.objects.select_related("job__zone", "job__dataset", "job__validation_dataset")
        .filter(lease_token=lease_token)
        .first()
    )
    if held is None or not is_current(held, node=node, now=now):
        raise LeaseLost
    return held
