"""An invitation goes to its address by mail; no page and no answer shows its secret."""

from __future__ import annotations

from datetime import datetime

from django.conf import settings
from django.core.mail import send_mail
from django.db import transaction
from django.urls import reverse
from django.views.decorators.debug import sensitive_variables

from marketplace.accounts.models import Invitation, Organisation, User
from marketplace.accounts.services import create_invitation


@sensitive_variables("secret", "address", "text")
def invite_by_mail(
    *, organisation: Organisation, email: str, role: str, invited_by: User, now: datetime
) -> Invitation:
    """Invite somebody; the mail with the address that accepts is sent after commit.

    Raises
    ------
    NotAllowed
        ``owners_only``.
    UserError
        ``invalid_email``, ``invalid_role``.
    Conflict
        ``already_a_member``, ``too_many_invitations``.
    """
    with transaction.atomic():
        invitation, secret = create_invitation(
            organisation=organisation, email=email, role=role, invited_by=invited_by, now=now
        )
        address = settings.PUBLIC_URL + reverse("invitation", args=[secret])
        text = (
            f"{invited_by.get_full_name()} invites you to {organisation.name} on Finetender,"
            f" as {invitation.role}.\n\nSign in with this address and accept:\n{address}\n\n"
            f"The invitation ends on {invitation.expires_at:%d %B %Y}.\n"
        )
        subject = f"[Finetender] Invitation to {organisation.name}"
        transaction.on_commit(
            lambda: send_mail(subject, text, None, [invitation.email]), robust=True
        )
    return invitation
