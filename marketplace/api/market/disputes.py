"""``/api/jobs/ID/dispute``: an owner says that a result is not what was trained."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.answers import Answer, Moment
from marketplace.api.callers import get_caller
from marketplace.api.market.owned import get_job
from marketplace.api.market.requests import DisputeRequest, check_body
from marketplace.api.views import MarketView
from marketplace.auction.result_disputes import open_result_dispute
from marketplace.common import clock


class ResultDisputeSerializer(Answer):
    """Open until ``decided_at``; an event of the job tells how it was decided."""

    id = s.CharField()
    reason = s.CharField(help_text="What is wrong, in its owner's words.")
    opened_at = Moment(help_text="When it was opened.")
    decided_at = Moment(allow_null=True, help_text="When it was decided; null: it is open.")
    is_for_owner = s.BooleanField(
        allow_null=True, help_text="Whether the owner was right; null: it is open."
    )
    words = s.CharField(help_text="Why it was decided so; empty while it is open.")


class JobDisputeView(MarketView):
    """Dispute a result: another provider's node measures it, or an operator decides."""

    scopes = {"POST": "jobs:write"}

    @extend_schema(request=DisputeRequest, responses={200: ResultDisputeSerializer})
    def post(self, request: Request, job_id: str) -> Response:
        who = get_caller(request)
        dispute = open_result_dispute(
            job=get_job(who.organisation, job_id),
            reason=check_body(DisputeRequest, request.data)["reason"],
            opened_by=who.user,
            now=clock.now(),
        )
        return Response(ResultDisputeSerializer.show(dispute))
