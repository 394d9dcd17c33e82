"""How money comes into a wallet: an operator's grant on request, or demo money."""

from __future__ import annotations

from datetime import datetime

from django.conf import settings
from django.db import IntegrityError, transaction

from marketplace.accounts.models import Organisation, User
from marketplace.common.errors import Conflict, NotAllowed, NotFound, UserError
from marketplace.common.money import format_usd_exact
from marketplace.payments.locks import lock_funds_request
from marketplace.payments.models import Entry, EntryKind, FundsRequest
from marketplace.payments.services import credit_demo_money, grant_money

#: A hundred thousand dollars: more is talked about before it is asked for.
REQUEST_MAX_MICROS = 100_000_000_000


def request_funds(
    *, organisation: Organisation, amount_micros: int, asked_by: User, now: datetime
) -> FundsRequest:
    """Ask the operator for money; asked again before the answer, the new amount counts.

    Raises
    ------
    UserError
        ``invalid_amount``: nothing, or more than ``REQUEST_MAX_MICROS``.
    """
    if not 0 < amount_micros <= REQUEST_MAX_MICROS:
        most = format_usd_exact(REQUEST_MAX_MICROS)
        raise UserError("invalid_amount", f"Ask for more than $0.00 and up to {most}.", param="usd")
    asked = {"amount_micros": amount_micros, "asked_by": asked_by, "asked_at": now}
    waiting = FundsRequest.objects.filter(organisation=organisation, is_granted__isnull=True)
    if not waiting.update(**asked):
        try:
            with transaction.atomic():
                return FundsRequest.objects.create(organisation=organisation, **asked)
        except IntegrityError:
            waiting.update(**asked)
    return waiting.get()


def grant_funds(
    *, request_id: str, amount_micros: int, granted_by: User, now: datetime
) -> FundsRequest:
    """Put the requested amount into the wallet; a request is granted once.

    Raises
    ------
    NotAllowed
        ``operators_only``.
    NotFound
        ``unknown_funds_request``.
    Conflict
        ``funds_request_changed``: another amount is asked for by now.
        ``funds_request_answered``: it was declined before.
    """
    with transaction.atomic():
        found = _lock(request_id, answered_by=granted_by)
        if found.is_granted is False:
            raise Conflict("funds_request_answered", "This request was declined already.")
        if found.amount_micros != amount_micros:
            asked = format_usd_exact(found.amount_micros)
            raise Conflict("funds_request_changed", f"By now {asked} is asked for. Look again.")
        grant_money(
            organisation=found.organisation,
            amount_micros=found.amount_micros,
            granted_by=granted_by,
            reference=found.pk,
            now=now,
        )
        _answer(found, is_granted=True, answered_by=granted_by, now=now)
    return found


def decline_funds(*, request_id: str, declined_by: User, now: datetime) -> FundsRequest:
    """Answer no; the organisation may ask again.

    Raises
    ------
    NotAllowed
        ``operators_only``.
    NotFound
        ``unknown_funds_request``.
    Conflict
        ``funds_request_answered``: it was granted before.
    """
    with transaction.atomic():
        found = _lock(request_id, answered_by=declined_by)
        if found.is_granted:
            raise Conflict("funds_request_answered", "This request was granted already.")
        _answer(found, is_granted=False, answered_by=declined_by, now=now)
    return found


def list_open_funds_requests() -> list[FundsRequest]:
    """What the operator has not answered yet, oldest first."""
    waiting = FundsRequest.objects.filter(is_granted__isnull=True).order_by("asked_at")
    return list(waiting.select_related("organisation", "asked_by"))


def find_funds_request(*, organisation: Organisation) -> FundsRequest | None:
    """The organisation's latest request."""
    return FundsRequest.objects.filter(organisation=organisation).order_by("-asked_at").first()


def can_take_demo_money(*, organisation: Organisation) -> bool:
    reference = _demo_reference(organisation)
    return settings.DEMO_MONEY_MICROS > 0 and not (
        Entry.objects.filter(kind=EntryKind.GRANT, reference=reference).exists()
    )


def take_demo_money(*, organisation: Organisation, taken_by: User, now: datetime) -> Entry:
    """Money that buys nothing outside this market, once for each organisation.

    Raises
    ------
    NotAllowed
        ``no_demo_money``: this market gives none.
    """
    if settings.DEMO_MONEY_MICROS <= 0:
        raise NotAllowed("no_demo_money", "This market gives no demo money.")
    return credit_demo_money(
        organisation=organisation,
        amount_micros=settings.DEMO_MONEY_MICROS,
        reference=_demo_reference(organisation),
        actor=taken_by,
        now=now,
    )


def _demo_reference(organisation: Organisation) -> str:
    return f"demo:{organisation.pk}"


def _lock(request_id: str, *, answered_by: User) -> FundsRequest:
    if not answered_by.is_operator:
        raise NotAllowed("operators_only", "Only an operator may answer a request for money.")
    found = lock_funds_request(request_id)
    if found is None:
        raise NotFound("unknown_funds_request", "There is no such request.")
    return found


def _answer(request: FundsRequest, *, is_granted: bool, answered_by: User, now: datetime) -> None:
    if request.is_granted is None:
        request.is_granted, request.answered_by, request.answered_at = is_granted, answered_by, now
        request.save(update_fields=["is_granted", "answered_by", "answered_at"])
