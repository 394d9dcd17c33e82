"""What operators do to organisations and their keys; freezes of money stand in ``payments``."""

from __future__ import annotations

from datetime import datetime

from django.db.models import Q, QuerySet

from marketplace.accounts.models import ApiKey, Organisation, User
from marketplace.common.errors import NotAllowed, NotFound, UserError

REASON_MAX = 300


def check_operator(user: User) -> None:
    """Refuse who does not run the market.

    Raises
    ------
    NotAllowed
        ``operators_only``.
    """
    if not user.is_operator:
        raise NotAllowed("operators_only", "Only an operator of this market may do this.")


def read_reason(text: str) -> str:
    """The reason that an operator gives, which those whom it is about will read.

    Raises
    ------
    UserError
        ``invalid_reason``.
    """
    reason = text.replace("\0", "").strip()
    if not 1 <= len(reason) <= REASON_MAX:
        raise UserError(
            "invalid_reason", f"Give a reason in at most {REASON_MAX} letters.", param="reason"
        )
    return reason


def find_organisations(text: str) -> QuerySet[Organisation]:
    """Organisations by a part of their name or of a member's address, or by id; the newest first.

    Without a text, all of them.
    """
    found = Organisation.objects.filter(erased_at=None).order_by("-created_at", "-pk")
    text = text.replace("\0", "").strip()
    if not text:
        return found
    named = Q(name__icontains=text) | Q(pk=text) | Q(api_keys__pk=text)
    return found.filter(named | Q(members__email__icontains=text)).distinct()


def trust_organisation(*, organisation: Organisation, trusted_by: User, now: datetime) -> None:
    """Lift the limits of new accounts for an organisation; twice changes nothing.

    Raises
    ------
    NotAllowed
        ``operators_only``.
    """
    check_operator(trusted_by)
    Organisation.objects.filter(pk=organisation.pk, trusted_at=None).update(trusted_at=now)


def freeze_key(*, key_id: str, reason: str, frozen_by: User, now: datetime) -> ApiKey:
    """Refuse all requests with a key until that is lifted; its secret stays the same.

    Raises
    ------
    NotAllowed
        ``operators_only``.
    NotFound
        ``unknown_key``.
    UserError
        ``invalid_reason``.
    """
    check_operator(frozen_by)
    return _set_freeze(key_id, frozen_at=now, frozen_reason=read_reason(reason))


def lift_key_freeze(*, key_id: str, lifted_by: User) -> ApiKey:
    """Let a key be used again.

    Raises
    ------
    NotAllowed
        ``operators_only``.
    NotFound
        ``unknown_key``.
    """
    check_operator(lifted_by)
    return _set_freeze(key_id, frozen_at=None, frozen_reason="")


def _set_freeze(key_id: str, *, frozen_at: datetime | None, frozen_reason: str) -> ApiKey:
    found = ApiKey.objects.filter(pk=key_id.replace("\0", ""))
    if not found.update(frozen_at=frozen_at, frozen_reason=frozen_reason):
        raise NotFound("unknown_key", "There is no such API key.")
    return found.select_related("organisation").get()
