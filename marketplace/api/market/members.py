"""``/api/members``: who works for the organisation. Inviting and removing are on the page."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema, inline_serializer
from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.accounts.models import Membership, Role
from marketplace.api.callers import get_caller
from marketplace.api.market import schemas
from marketplace.api.market.fields import moment
from marketplace.api.pagination import build_page, show_each
from marketplace.api.views import MarketView

_MEMBER = inline_serializer(
    name="Member",
    fields={
        "id": s.CharField(),
        "object": s.CharField(),
        "user_id": s.CharField(),
        "name": s.CharField(),
        "email": s.CharField(),
        "role": s.ChoiceField(Role.values),
        "joined_at": s.DateTimeField(),
    },
)
_PAGE = inline_serializer(
    name="MemberPage", fields={"data": s.ListField(child=_MEMBER), "has_more": s.BooleanField()}
)


class MembersView(MarketView):
    scopes = {"GET": "members:read"}

    @extend_schema(operation_id="members_list", parameters=schemas.PAGE[:2], responses={200: _PAGE})
    def get(self, request: Request) -> Response:
        found = Membership.objects.filter(organisation=get_caller(request).organisation)
        return Response(build_page(request, found.select_related("user"), show_each(_show)))


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
