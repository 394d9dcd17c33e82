"""The only row locks of accounts."""

from marketplace.accounts.models import ApiKey, Invitation, Membership, Organisation


def lock_invitation(*, token_hash: str) -> Invitation | None:
    return Invitation.objects.select_for_update().filter(token_hash=token_hash).first()


def lock_memberships(*, organisation_id: str) -> list[Membership]:
    """All memberships of one organisation, so that the last owner is counted right."""
    return list(
        Membership.objects.select_for_update()
        .filter(organisation_id=organisation_id)
        .order_by("pk")
    )


def lock_api_key(key_id: str, *, organisation: Organisation) -> ApiKey | None:
    """One of an organisation's keys."""
    return ApiKey.objects.select_for_update().filter(pk=key_id, organisation=organisation).first()
