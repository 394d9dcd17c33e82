"""Who may do what: one table for pages, API, sockets and keys.

A scope names what is done; its right says how much it commits the organisation to; a right belongs
to roles. Pages name the right themselves, since a page often serves several scopes.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from allauth.mfa.utils import is_mfa_enabled
from django.conf import settings

from marketplace.accounts.models import PAYERS, WORKERS, ApiKey, Organisation, Role, Scope, User
from marketplace.common.errors import NotAllowed


class Right(StrEnum):
    """What a member may do in an organisation."""

    #: See the organisation's work and money.
    LOOK = "look"
    #: Change data, jobs and bids, which spends its money within its caps.
    WORK = "work"
    #: Put money in and limit how it is spent.
    PAY = "pay"
    #: Commit the organisation to others: members, nodes, payouts.
    OWN = "own"


ROLES_BY_RIGHT: Mapping[Right, frozenset[str]] = {
    Right.LOOK: frozenset(Role.values),
    Right.WORK: WORKERS,
    Right.PAY: PAYERS,
    Right.OWN: frozenset({Role.OWNER}),
}

RIGHT_BY_SCOPE: Mapping[str, Right] = {
    Scope.BIDS_READ: Right.LOOK,
    Scope.BIDS_WRITE: Right.WORK,
    Scope.DATASETS_READ: Right.LOOK,
    Scope.DATASETS_WRITE: Right.WORK,
    Scope.JOBS_READ: Right.LOOK,
    Scope.JOBS_WRITE: Right.WORK,
    Scope.MODELS_USE: Right.WORK,
    Scope.WALLET_READ: Right.LOOK,
    Scope.KEYS_READ: Right.LOOK,
    Scope.KEYS_WRITE: Right.WORK,
    Scope.MEMBERS_READ: Right.LOOK,
    Scope.MEMBERS_WRITE: Right.OWN,
    Scope.WEBHOOKS_READ: Right.LOOK,
    Scope.WEBHOOKS_WRITE: Right.WORK,
    Scope.PROVIDER_READ: Right.LOOK,
    Scope.PROVIDER_WRITE: Right.OWN,
    Scope.PAYOUTS_WRITE: Right.OWN,
}


def check_right(*, organisation: Organisation, user: User, right: Right) -> None:
    """Refuse a person whose role in the organisation does not carry the right.

    Raises
    ------
    NotAllowed
        ``second_factor_missing``, ``owners_only``, ``not_a_member`` or ``role_not_enough``.
    """
    check_second_factor(user)
    membership = organisation.memberships.filter(user=user).first()
    role = None if membership is None else membership.role
    _check_role(organisation, role, right)


def check_scope(key: ApiKey, scope: str) -> None:
    """Refuse a key that lacks the scope, or whose maker may not use it any more.

    Raises
    ------
    NotAllowed
        ``key_frozen``, ``missing_scope``, ``second_factor_missing``, ``owners_only`` or
        ``role_not_enough``.
    """
    if key.frozen_at is not None:
        raise NotAllowed(
            "key_frozen", f"The operator of this market has frozen this key: {key.frozen_reason}"
        )
    if scope not in key.scopes:
        raise NotAllowed(
            "missing_scope",
            f"This API key has no scope {scope}. Make a key that has it in the settings.",
            extra={"scope": scope},
        )
    check_second_factor(key.created_by)
    _check_role(key.organisation, key.maker_role, RIGHT_BY_SCOPE[scope])


def check_second_factor(user: User) -> None:
    """Refuse an operator without a second factor: operators grant money and see everything.

    Raises
    ------
    NotAllowed
        ``second_factor_missing``.
    """
    if lacks_second_factor(user):
        raise NotAllowed(
            "second_factor_missing",
            "Operators need a second factor. Set one up under Account, then go on.",
        )


def lacks_second_factor(user: User) -> bool:
    """Whether the person must set up a second factor before anything else."""
    return settings.OPERATORS_NEED_MFA and user.is_staff and not is_mfa_enabled(user)


def _check_role(organisation: Organisation, role: str | None, right: Right) -> None:
    if role in ROLES_BY_RIGHT[right]:
        return
    if right is Right.OWN:
        raise NotAllowed("owners_only", "Only an owner of the organisation may do this.")
    if role is None:
        raise NotAllowed("not_a_member", f"You are not a member of {organisation.name}.")
    raise NotAllowed(
        "role_not_enough",
        f"You have the role {role} in {organisation.name}, which does not allow this."
        " Ask an owner.",
    )
