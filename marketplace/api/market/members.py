"""``/api/members`` and ``/api/invitations``: who works for the organisation, and as what."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.accounts.invitation_mail import invite_by_mail
from marketplace.accounts.models import Membership, Role
from marketplace.accounts.services import (
    change_role,
    end_membership,
    list_open_invitations,
    revoke_invitation,
)
from marketplace.api.answers import Answer, ConstantText, Moment, page_of
from marketplace.api.callers import Caller, get_caller
from marketplace.api.market import schemas
from marketplace.api.market.requests import check_body
from marketplace.api.market.workspace_requests import InvitationRequest, RoleRequest
from marketplace.api.pagination import build_page
from marketplace.api.views import MarketView
from marketplace.common import clock
from marketplace.common.errors import NotFound

READ, WRITE = "members:read", "members:write"
_REFUSALS = {400: schemas.PROBLEM, 403: schemas.PROBLEM, 409: schemas.PROBLEM}


class MemberSerializer(Answer):
    id = s.CharField()
    object = ConstantText("member")
    user_id = s.CharField()
    name = s.CharField(help_text="First and last name.")
    email = s.CharField(source="user.email", help_text="Address of the member's mail.")
    role = s.ChoiceField(Role.values, help_text="What the member may do.")
    joined_at = Moment(source="created_at", help_text="When the member joined.")

    def get_name(self, membership: Membership) -> str:
        return membership.user.get_full_name()


class InvitationSerializer(Answer):
    id = s.CharField()
    object = ConstantText("invitation")
    email = s.CharField(help_text="Address that the invitation went to.")
    role = s.ChoiceField(Role.values, help_text="What who accepts it may do.")
    created_at = Moment()
    expires_at = Moment(help_text="Until then it can be accepted.")


class MembersView(MarketView):
    scopes = {"GET": READ}
    queries = {"GET": schemas.PAGE}

    @extend_schema(
        operation_id="members_list",
        responses={200: page_of(MemberSerializer)},
    )
    def get(self, request: Request) -> Response:
        found = Membership.objects.filter(organisation=get_caller(request).organisation)
        return Response(
            build_page(request, found.select_related("user"), MemberSerializer.show_each)
        )


class MemberView(MarketView):
    scopes = {"PATCH": WRITE, "DELETE": WRITE}

    @extend_schema(
        operation_id="members_update",
        request=RoleRequest,
        responses={200: MemberSerializer, 404: schemas.PROBLEM, **_REFUSALS},
    )
    def patch(self, request: Request, member_id: str) -> Response:
        who = get_caller(request)
        member = _find(who, member_id)
        role = check_body(RoleRequest, request.data)["role"]
        changed = change_role(
            organisation=who.organisation, user_id=member.user_id, role=role, changed_by=who.user
        )
        return Response(MemberSerializer.show(changed))

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
    queries = {"GET": schemas.PAGE}

    @extend_schema(
        operation_id="invitations_list",
        responses={200: page_of(InvitationSerializer)},
    )
    def get(self, request: Request) -> Response:
        waiting = list_open_invitations(get_caller(request).organisation, now=clock.now())
        return Response(build_page(request, waiting, InvitationSerializer.show_each))

    @extend_schema(
        operation_id="invitations_create",
        request=InvitationRequest,
        responses={201: InvitationSerializer, **_REFUSALS},
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
        return Response(InvitationSerializer.show(invitation), status=201)


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
