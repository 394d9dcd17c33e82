"""Who works for an organisation, and what they may do."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.debug import sensitive_variables
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from marketplace.accounts.invitation_mail import invite_by_mail
from marketplace.accounts.models import Membership, Role
from marketplace.accounts.services import (
    accept_invitation,
    change_role,
    end_membership,
    list_open_invitations,
    revoke_invitation,
    transfer_ownership,
)
from marketplace.common import clock
from marketplace.common.errors import NotFound, UserError
from marketplace.web.current_organisation import CHOSEN
from marketplace.web.views.requests import (
    PageRequest,
    asks_again,
    owner_page,
    page,
    person_page,
    show_refusal,
)

ROLES = {
    Role.OWNER: "Everything, members included",
    Role.BILLING: "Cards, top-ups and caps; looks at the rest",
    Role.MEMBER: "Bids and works with the data",
    Role.VIEWER: "Looks and changes nothing",
}


@page
@require_GET
def show_members(request: PageRequest) -> HttpResponse:
    organisation = request.organisation
    members = list(organisation.memberships.select_related("user").order_by("created_at"))
    context = {
        "members": members,
        "invitations": list_open_invitations(organisation, now=clock.now()),
        "roles": [(role.value, role.label, words) for role, words in ROLES.items()],
        "is_owner": any(m.user == request.user and m.role == Role.OWNER for m in members),
        "is_personal": organisation.personal_for_id == request.user.pk,
    }
    return render(request, "web/members.html", context)


@owner_page
@asks_again
@require_POST
def invite(request: PageRequest) -> HttpResponse:
    with show_refusal(request):
        invitation = invite_by_mail(
            organisation=request.organisation,
            email=request.POST.get("email", ""),
            role=request.POST.get("role", ""),
            invited_by=request.user,
            now=clock.now(),
        )
        messages.success(request, f"An invitation is on its way to {invitation.email}.")
    return redirect("members")


@owner_page
@require_POST
def withdraw_invitation(request: PageRequest, invitation_id: str) -> HttpResponse:
    with show_refusal(request):
        revoke_invitation(
            organisation=request.organisation,
            invitation_id=invitation_id,
            revoked_by=request.user,
            now=clock.now(),
        )
        messages.success(request, "The invitation is withdrawn.")
    return redirect("members")


@sensitive_variables("secret")
@person_page
@require_http_methods(["GET", "POST"])
def answer_invitation(request: PageRequest, secret: str) -> HttpResponse:
    """Somebody who was invited looks, and accepts by a button: a link alone changes nothing."""
    if request.method == "GET":
        return render(request, "web/invitation.html", {})
    membership = accept_invitation(secret=secret, user=request.user, now=clock.now())
    request.session[CHOSEN] = membership.organisation_id
    messages.success(request, f"You work for {membership.organisation.name} now.")
    return redirect("members")


@owner_page
@asks_again
@require_POST
def set_role(request: PageRequest, user_id: str) -> HttpResponse:
    """``do=owner`` hands the organisation over; otherwise the member gets the chosen role."""
    with show_refusal(request):
        if request.POST.get("do") == "owner":
            transfer_ownership(
                organisation=request.organisation, to_user_id=user_id, by=request.user
            )
            words = "The organisation has a new owner. You are a member of it."
        else:
            change_role(
                organisation=request.organisation,
                user_id=user_id,
                role=request.POST.get("role", ""),
                changed_by=request.user,
            )
            words = "The role is changed."
        messages.success(request, words)
    return redirect("members")


@person_page
@asks_again
@require_POST
def remove_member(request: PageRequest, user_id: str) -> HttpResponse:
    """An owner removes somebody, or anybody themselves."""
    members = Membership.objects.select_related("user")
    found = members.filter(organisation=request.organisation, user=user_id.replace("\0", ""))
    membership = found.first()
    if membership is None:
        raise NotFound("unknown_member", "There is no such member.")
    try:
        end_membership(
            organisation=request.organisation, user=membership.user, ended_by=request.user
        )
    except UserError as error:
        messages.error(request, error.message)
        return redirect("members")
    messages.success(request, f"{membership.user.email} is no longer a member.")
    return redirect("job_list" if membership.user == request.user else "members")
