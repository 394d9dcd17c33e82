"""Why an organisation may not bid, nor be paid out, for now. Bids in flight are finished."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from marketplace.accounts.models import Organisation, User
from marketplace.accounts.oversight import check_operator, read_reason
from marketplace.common.errors import NotAllowed, NotFound
from marketplace.common.ids import new_id
from marketplace.payments.models import Freeze


def freeze_organisation(
    *, organisation_id: str, reference: str, reason: str, now: datetime
) -> Freeze:
    """Refuse new bids and payouts of an organisation, for one reason, until that ends."""
    freeze, _ = Freeze.objects.get_or_create(
        reference=reference,
        defaults={"organisation_id": organisation_id, "reason": reason, "since_at": now},
    )
    return freeze


def freeze_by_operator(
    *, organisation: Organisation, reason: str, frozen_by: User, now: datetime
) -> Freeze:
    """Refuse new bids and payouts of an organisation until an operator lifts that.

    Raises
    ------
    NotAllowed
        ``operators_only``.
    UserError
        ``invalid_reason``.
    """
    check_operator(frozen_by)
    return Freeze.objects.create(
        organisation=organisation,
        reference=new_id("operator"),
        reason=read_reason(reason),
        since_at=now,
        made_by=frozen_by,
    )


def end_freeze(*, reference: str, now: datetime) -> None:
    """The reason is gone by itself."""
    Freeze.objects.filter(reference=reference, ended_at=None).update(ended_at=now)


def lift_freeze(*, freeze_id: str, lifted_by: User, now: datetime) -> Freeze:
    """Let an organisation bid, and be paid out, again.

    Raises
    ------
    NotAllowed
        ``operators_only``.
    NotFound
        ``unknown_freeze``.
    """
    check_operator(lifted_by)
    freeze = Freeze.objects.select_related("organisation").filter(pk=freeze_id).first()
    if freeze is None:
        raise NotFound("unknown_freeze", "There is no such entry.")
    if freeze.ended_at is None:
        freeze.ended_at, freeze.ended_by = now, lifted_by
        freeze.save(update_fields=["ended_at", "ended_by"])
    return freeze


def list_freezes(organisation_ids: Iterable[str]) -> list[Freeze]:
    """Why these organisations may not bid, the earliest reason first."""
    open_now = Freeze.objects.filter(organisation__in=list(organisation_ids), ended_at=None)
    return list(open_now.order_by("since_at"))


def check_not_frozen(organisation: Organisation, *, refused: str) -> None:
    """Refuse what an organisation may not do while it is frozen.

    Raises
    ------
    NotAllowed
        ``organisation_frozen``.
    """
    if freezes := list_freezes([organisation.pk]):
        raise build_refusal(freezes[0], refused=refused)


def build_refusal(freeze: Freeze, *, refused: str = "New bids") -> NotAllowed:
    return NotAllowed(
        "organisation_frozen",
        f"{refused} are refused: {freeze.reason} Write to the operator of this market.",
        extra={"reference": freeze.reference},
    )
