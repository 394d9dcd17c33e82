"""The only row locks of accounts."""

from marketplace.accounts.models import Invitation, Membership


def lock_invitation(*, token_hash: str) -> Invitation | None:
    return Invitation.objects.select_for_update().filter(token_hash=token_hash).first()


def lock_memberships(*, organisation_id: str) -> list[Membership]:
    """All memberships of one organisation, so that the last owner is counted right."""
    return list(
        Membership.objects.select_for_update()
        .filter(organisation_id=organisation_id)
        .order_by("pk")
    )
