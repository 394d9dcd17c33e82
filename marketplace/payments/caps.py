"""Caps on spending: checked when money is held, with notices at 50, 80 and 100 per cent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from django.conf import settings
from django.db import transaction
from django.db.models import Case, F, Sum, When
from django.db.models.functions import Coalesce

from marketplace.accounts.models import ApiKey, Organisation
from marketplace.accounts.new_accounts import filter_new
from marketplace.common.errors import NotAllowed, NotFound, UserError
from marketplace.common.money import format_usd_exact
from marketplace.payments.locks import lock_cap
from marketplace.payments.models import CapPeriod, Hold, HoldStatus, SpendingCap
from marketplace.webhooks.news import CAP_NEAR, News
from marketplace.webhooks.outbox import add_messages

#: Shares of a cap, in percent, at which the organisation hears of it.
NOTICES = (100, 80, 50)
#: Names the cap of a new account.
_NEW_ACCOUNT = "cap_new_account"


def set_cap(
    *,
    organisation: Organisation,
    member_id: str | None,
    period: str,
    amount_micros: int | None,
    api_key_id: str | None = None,
) -> None:
    """Set what may be spent in a day or a month; ``None`` takes the cap away.

    It is a member's or an API key's, and the whole organisation's without either.

    Raises
    ------
    UserError
        ``invalid_period``.
    NotFound
        ``unknown_member`` or ``unknown_key``.
    """
    if period not in CapPeriod.values:
        raise UserError("invalid_period", "A cap is for a day or a month.", param="period")
    if member_id and not organisation.memberships.filter(user=member_id).exists():
        raise NotFound("unknown_member", "There is no such member.")
    if api_key_id and not ApiKey.objects.filter(organisation=organisation, pk=api_key_id).exists():
        raise NotFound("unknown_key", "There is no such API key.")
    which = {
        "organisation": organisation,
        "member_id": member_id or None,
        "api_key_id": api_key_id or None,
        "period": period,
    }
    if amount_micros is None:
        SpendingCap.objects.filter(**which).delete()
        return
    SpendingCap.objects.update_or_create(
        **which, defaults={"amount_micros": amount_micros, "noticed_percent": 0}
    )


def find_period_start(period: str, now: datetime) -> datetime:
    """When the day or month of a moment began, in UTC."""
    midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight if period == CapPeriod.DAY else midnight.replace(day=1)


def sum_spent(cap: SpendingCap, *, now: datetime) -> int:
    """What open bids hold and what was paid since the period began, less what was refunded."""
    holds = Hold.objects.filter(
        organisation=cap.organisation_id, held_at__gte=find_period_start(cap.period, now)
    )
    if cap.member_id is not None:
        holds = holds.filter(placed_by=cap.member_id)
    if cap.api_key_id is not None:
        holds = holds.filter(api_key=cap.api_key_id)
    counted = Case(
        When(status=HoldStatus.HELD, then=F("amount_micros")),
        default=F("charged_micros") - F("refunded_micros"),
    )
    return holds.aggregate(total=Coalesce(Sum(counted), 0))["total"]


@dataclass(slots=True)
class CapRoom:
    """What is left under the caps of some organisations, as bids are held one after the other."""

    #: Caps by organisation, each with what is left of it.
    left: dict[str, list[tuple[SpendingCap, int]]] = field(default_factory=dict)

    def take(
        self, *, organisation_id: str, member_id: str | None, api_key_id: str | None, amount: int
    ) -> NotAllowed | None:
        """Count an amount against every cap it is under, or none; why it may not be held."""
        caps = self.left.get(organisation_id, [])
        of_it = [
            cap.member_id in (None, member_id) and cap.api_key_id in (None, api_key_id)
            for cap, _ in caps
        ]
        for (cap, left), applies in zip(caps, of_it, strict=True):
            if applies and amount > left:
                return _refuse(cap, left)
        self.left[organisation_id] = [
            (cap, left - amount if applies else left)
            for (cap, left), applies in zip(caps, of_it, strict=True)
        ]
        return None


def measure_room(caps: Iterable[SpendingCap], *, now: datetime) -> CapRoom:
    """What may still be spent; call while the organisations' wallets are locked."""
    left: defaultdict[str, list[tuple[SpendingCap, int]]] = defaultdict(list)
    for cap in caps:
        spent = sum_spent(cap, now=now)
        left[cap.organisation_id].append((cap, cap.amount_micros - spent))
    return CapRoom(dict(left))


def list_new_account_caps(organisation_ids: Iterable[str], *, now: datetime) -> list[SpendingCap]:
    """What new organisations may spend in a day; these caps are stored nowhere."""
    return [
        SpendingCap(
            id=_NEW_ACCOUNT,
            organisation_id=pk,
            period=CapPeriod.DAY,
            amount_micros=settings.NEW_ACCOUNT_MICROS_PER_DAY,
        )
        for pk in sorted(filter_new(organisation_ids, now=now))
    ]


def _refuse(cap: SpendingCap, left: int) -> NotAllowed:
    if cap.pk == _NEW_ACCOUNT:
        return NotAllowed(
            "new_account_spending",
            f"In its first {settings.NEW_ACCOUNT_DAYS} days an organisation may spend"
            f" {format_usd_exact(cap.amount_micros)} a day, and {format_usd_exact(max(0, left))} is"
            " left of it. Bid less, or ask the operator of this market.",
            extra={"left_micros": max(0, left), "period": cap.period},
        )
    who = (
        "of this API key"
        if cap.api_key_id is not None
        else "of the organisation"
        if cap.member_id is None
        else "of yours"
    )
    return NotAllowed(
        "spending_cap",
        f"A cap {who} is {format_usd_exact(cap.amount_micros)} a {cap.period}, and"
        f" {format_usd_exact(max(0, left))} is left of it. Bid less, or ask who looks after money.",
        extra={"left_micros": max(0, left), "period": cap.period},
    )


def send_cap_notices(*, now: datetime) -> int:
    """Say to those who pay how far a cap is used up, once for each share of it; how many."""
    sent = 0
    for cap_id in list(SpendingCap.objects.values_list("pk", flat=True)):
        with transaction.atomic():
            sent += _notice(cap_id, now=now)
    return sent


def _notice(cap_id: str, *, now: datetime) -> bool:
    cap = lock_cap(cap_id)
    if cap is None:
        return False
    since = find_period_start(cap.period, now)
    noticed_percent = cap.noticed_percent if cap.noticed_from_at == since else 0
    spent = sum_spent(cap, now=now)
    reached = next((share for share in NOTICES if 100 * spent >= share * cap.amount_micros), 0)
    if not spent or reached <= noticed_percent:
        return False
    cap.noticed_from_at, cap.noticed_percent = since, reached
    cap.save(update_fields=["noticed_from_at", "noticed_percent"])
    who = (
        f"The API key {cap.api_key.name}"
        if cap.api_key is not None
        else cap.organisation.name
        if cap.member is None
        else cap.member.email
    )
    text = (
        f"{who} has used {reached} % of the cap of {format_usd_exact(cap.amount_micros)}"
        f" {CapPeriod(cap.period).label}: {format_usd_exact(spent)}."
    )
    data = {"id": cap.pk, "percent": reached, "message": text}
    about = f"{cap.pk}:{since:%Y-%m-%d}:{reached}"
    add_messages(news=[News(cap.organisation_id, CAP_NEAR, data, about=about)], now=now)
    return True
