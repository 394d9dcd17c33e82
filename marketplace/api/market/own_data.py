"""``/api/deletions``, ``/api/retention`` and ``/api/archive``: what is kept, and for how long."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.accounts.erasure import ERASED_WITHIN, RETAIN_DAYS_MIN
from marketplace.accounts.models import Deletion, Organisation, Subject
from marketplace.accounts.own_data import build_archive
from marketplace.accounts.services import set_retention
from marketplace.api.answers import Answer, Constant, Moment, page_of
from marketplace.api.callers import get_caller
from marketplace.api.market import schemas
from marketplace.api.market.requests import check_body
from marketplace.api.market.workspace_requests import RetentionRequest
from marketplace.api.pagination import build_page
from marketplace.api.views import AlwaysJson, MarketView
from marketplace.common.downloads import PartsDownload


class DeletionSerializer(Answer):
    id = s.CharField(source="pk")
    object = Constant("deletion")
    subject = s.ChoiceField(Subject.values, help_text="What kind of thing was deleted.")
    subject_id = s.CharField(help_text="Id of what was deleted.")
    by_retention = s.BooleanField(help_text="Nobody asked for it: its time was over.")
    asked_at = Moment(help_text="When it was asked for.")
    waits_for = s.CharField(help_text="What still needs the content; empty: nothing.")
    erased_at = Moment(
        allow_null=True, help_text="When the content was gone. Hashes and accounts stay."
    )

    def get_by_retention(self, deletion: Deletion) -> bool:
        return not deletion.asked_by_id


class RetentionSerializer(Answer):
    retain_days = s.IntegerField(
        allow_null=True,
        help_text="Days after which what nobody used is deleted; null: it is kept.",
    )
    retain_days_min = s.IntegerField(help_text="The fewest days that may be set.")
    erased_within_hours = s.IntegerField(
        help_text="From when nothing needs the content to when it is gone everywhere."
    )

    def get_retain_days_min(self, _organisation: Organisation) -> int:
        return RETAIN_DAYS_MIN

    def get_erased_within_hours(self, _organisation: Organisation) -> int:
        return int(ERASED_WITHIN.total_seconds() // 3600)


class DeletionsView(MarketView):
    """What was deleted, the latest first: data sets, adapters and jobs."""

    scopes = {"GET": "datasets:read"}
    queries = {"GET": schemas.PAGE}

    @extend_schema(
        operation_id="deletions_list",
        responses={200: page_of(DeletionSerializer)},
    )
    def get(self, request: Request) -> Response:
        mine = Deletion.objects.filter(organisation_id=get_caller(request).organisation.pk)
        return Response(build_page(request, mine, DeletionSerializer.show_each))


class RetentionView(MarketView):
    """For how long data sets and results are kept that nobody uses."""

    scopes = {"GET": "datasets:read", "PUT": "members:write"}

    @extend_schema(operation_id="retention_read", responses={200: RetentionSerializer})
    def get(self, request: Request) -> Response:
        return Response(RetentionSerializer.show(get_caller(request).organisation))

    @extend_schema(
        operation_id="retention_set",
        request=RetentionRequest,
        responses={200: RetentionSerializer, 400: schemas.PROBLEM},
    )
    def put(self, request: Request) -> Response:
        who = get_caller(request)
        asked = check_body(RetentionRequest, request.data)
        set_retention(
            organisation=who.organisation, retain_days=asked["retain_days"], set_by=who.user
        )
        return Response(RetentionSerializer.show(who.organisation))


class ArchiveView(MarketView):
    """All that an organisation has here, as one ZIP file."""

    content_negotiation_class = AlwaysJson
    scopes = {"GET": "members:write"}

    @extend_schema(
        operation_id="archive_read",
        responses={(200, *schemas.build_file_types("application/zip")): schemas.FILE},
    )
    def get(self, request: Request) -> PartsDownload:
        organisation = get_caller(request).organisation
        return PartsDownload(
            build_archive(subject=Subject.ORGANISATION, subject_id=organisation.pk),
            content_type="application/zip",
            name=f"{organisation.pk}.zip",
        )
