"""``/api/members`` and ``/api/invitations``: who works for the organisation, and as what."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.accounts.invitation_mail import invite_by_mail
from marketplace.accounts.models import Invitation, Membership, Role
from marketplace.accounts.services import (
    change_role,
    end_membership,
    list_open_invitations,
    revoke_invitation,
)
from marketplace.api.callers import Caller, get_caller
from marketplace.api.market import schemas
from marketplace.api.market.fields import moment
from marketplace.api.market.requests import InvitationRequest, RoleRequest, check_body
from marketplace.api.pagination import build_page, show_each
from marketplace.api.views import MarketView
from marketplace.common import clock
from marketplace.common.errors import NotFound

READ, WRITE = "members:read", "members:write"
_MEMBER = schemas.shape(
    "Member",
    {
        "id": s.CharField(),
        "object": s.CharField(),
        "user_id": s.CharField(),
        "name": s.CharField(),
        "email": s.CharField(),
        "role": s.ChoiceField(Role.values),
        "joined_at": s.DateTimeField(),
    },
)
_INVITATION = schemas.shape(
    "Invitation",
    {
        "id": s.CharField(),
        "object": s.CharField(),
        "email": s.CharField(),
        "role": s.ChoiceField(Role.values),
        "created_at": s.DateTimeField(),
        "expires_at": s.DateTimeField(),
    },
)
_REFUSALS = {400: schemas.PROBLEM, 403: schemas.PROBLEM, 409: schemas.PROBLEM}


class MembersView(MarketView):
    scopes = {"GET": READ}

    @extend_schema(
        operation_id="members_list",
        parameters=schemas.PAGE[:2],
        responses={200: schemas.page_of("MemberPage", _MEMBER)},
    )
    def get(self, request: Request) -> Response:
        found = Membership.objects.filter(organisation=get_caller(request).organisation)
        return Response(build_page(request, found.select_related("user"), show_each(_show)))


class MemberView(MarketView):
    scopes = {"PATCH": WRITE, "DELETE": WRITE}

    @extend_schema(
        operation_id="members_update",
        request=RoleRequest,
        responses={200: _MEMBER, 404: schemas.PROBLEM, **_REFUSALS},
    )
    def patch(self, request: Request, member_id: str) -> Response:
        who = get_caller(request)
        member = _find(who, member_id)
        role = check_body(RoleRequest, request.data)["role"]
        changed = change_role(
            organisation=who.organisation, user_id=member.user_id, role=role, changed_by=who.user
        )
        return Response(_show(changed))

    @extend_schema(
        operation_id="members_remove",
        responses={204: None, 403: schemas.PROBLEM, 404: schemas.PROBLEM, 409: schemas.PROBLEM},
    )
    def delete(self, request: Request, member_id: str) -> Response:
        who = get_caller(request)
        member = _find(who, member_id)
        end_membership(organisation=who.organisation, user=member.user, ended_by=who.user)
        return Response(status=204)


class InvitationsView(MarketView):
    scopes = {"GET": READ, "POST": WRITE}

    @extend_schema(
        operation_id="invitations_list",
        parameters=schemas.PAGE[:2],
        responses={200: schemas.page_of("InvitationPage", _INVITATION)},
    )
    def get(self, request: Request) -> Response:
        waiting = list_open_invitations(get_caller(request).organisation, now=clock.now())
        return Response(build_page(request, waiting, show_each(_show_invitation)))

    @extend_schema(
        operation_id="invitations_create",
        request=InvitationRequest,
        responses={201: _INVITATION, **_REFUSALS},
    )
    def post(self, request: Request) -> Response:
        who = get_caller(request)
        asked = check_body(InvitationRequest, request.data)
        invitation = invite_by_mail(
            organisation=who.organisation,
            email=asked["email"],
            role=asked["role"],
            invited_by=who.user,
            now=clock.now(),
        )
        return Response(_show_invitation(invitation), status=201)


class InvitationView(MarketView):
    scopes = {"DELETE": WRITE}

    @extend_schema(
        operation_id="invitations_withdraw",
        responses={204: None, 403: schemas.PROBLEM, 404: schemas.PROBLEM, 409: schemas.PROBLEM},
    )
    def delete(self, request: Request, invitation_id: str) -> Response:
        who = get_caller(request)
        revoke_invitation(
            organisation=who.organisation,
            invitation_id=invitation_id,
            revoked_by=who.user,
            now=clock.now(),
        )
        return Response(status=204)


def _find(who: Caller, member_id: str) -> Membership:
    members = Membership.objects.filter(organisation=who.organisation).select_related("user")
    found = members.filter(pk=member_id.replace("\0", "")).first()
    if found is None:
        raise NotFound("unknown_member", "There is no such member; GET /api/members lists them.")
    return found


def _show(membership: Membership) -> dict[str, Any]:
    user = membership.user
    return {
        "id": membership.pk,
        "object": "member",
        "user_id": user.pk,
        "name": user.get_full_name(),
        "email": user.email,
        "role": membership.role,
        "joined_at": moment(membership.created_at),
    }


def _show_invitation(invitation: Invitation) -> dict[str, Any]:
    return {
        "id": invitation.pk,
        "object": "invitation",
        "email": invitation.email,
        "role": invitation.role,
        "created_at": moment(invitation.created_at),
        "expires_at": moment(invitation.expires_at),
    }
