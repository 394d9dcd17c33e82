"""``/api/earnings``: what an organisation earned, by line, by node and job, and by day."""

from __future__ import annotations

from datetime import UTC, date, timedelta

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.answers import Answer, Moment, Usd, page_of, usd
from marketplace.api.callers import get_caller
from marketplace.api.market import schemas
from marketplace.api.pagination import build_page, read_limit, read_number
from marketplace.api.views import MarketView
from marketplace.auction.node_work import list_node_work
from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.payments.models import Earning
from marketplace.payments.selectors import get_earnings, list_earning_days

READ = "provider:read"
#: Before it no market was.
FIRST_DAY = date(2020, 1, 1)


class EarningLineSerializer(Answer):
    # The price that its owner paid, and the bid, are not the provider's to know.
    id = s.CharField()
    kind = s.CharField(help_text="What was earned with.")
    amount = Usd(
        source="amount_micros", help_text="What was earned; below zero where it was taken back."
    )
    accrued_at = Moment(help_text="When it was earned.")
    payable_at = Moment(help_text="From then on it can be paid out.")
    payout_id = s.CharField(
        allow_null=True, help_text="The payout that it went with; null: none yet."
    )


class NodeWorkSerializer(Answer):
    cursor = s.IntegerField(source="share.pk", help_text="What the next page begins after.")
    node_id = s.CharField(source="share.node_id")
    node = s.CharField(source="share.node.name", help_text="Name of the node.")
    job_id = s.CharField(source="job.pk")
    settled_at = Moment(source="job.settled_at", allow_null=True, help_text="When it was paid.")
    steps = s.IntegerField(source="share.steps", help_text="Steps that counted.")
    units = s.IntegerField(source="share.units", help_text="Work units of those steps.")
    earned = Usd(source="share.earned_micros", help_text="Its part of what its cells cost.")
    paid = Usd(
        source="share.paid_micros", help_text="What of it was paid: less where you were at fault."
    )


class EarningsDaySerializer(Answer):
    day = s.DateField(help_text="A day of UTC; also what the next page begins after.")
    amount = Usd(source="amount_micros", help_text="What was earned on it.")
    lines = s.IntegerField(help_text="Lines of GET /api/earnings that this is.")


class EarningsView(MarketView):
    """What work earned, line by line, and what waits for a payout."""

    scopes = {"GET": READ}
    queries = {"GET": schemas.PAGE}

    @extend_schema(
        operation_id="earnings_list",
        responses={
            200: page_of(
                EarningLineSerializer,
                name="EarningsPage",
                pending=Usd("What is earned and cannot be paid out yet."),
                payable=Usd("What can be paid out."),
            )
        },
    )
    def get(self, request: Request) -> Response:
        organisation = get_caller(request).organisation
        sums = get_earnings(organisation=organisation)
        lines = Earning.objects.filter(organisation=organisation)
        found = build_page(request, lines, EarningLineSerializer.show_each)
        totals = {"pending": usd(sums.pending_micros), "payable": usd(sums.payable_micros)}
        return Response(totals | found)


class NodeWorkView(MarketView):
    """What each node did for each job that was settled, and was paid for it; the latest first.

    Exports, checks and answers are lines of GET /api/earnings only.
    """

    scopes = {"GET": READ}
    queries = {
        "GET": [
            schemas.PAGE[0],
            OpenApiParameter(
                "after", schemas.CURSOR, description="cursor of the last item of the page."
            ),
            OpenApiParameter("node_id", str, description="Only work of this node."),
            OpenApiParameter("job_id", str, description="Only work for this job."),
        ]
    }

    @extend_schema(operation_id="earnings_work", responses={200: page_of(NodeWorkSerializer)})
    def get(self, request: Request) -> Response:
        limit, asked = read_limit(request), request.query_params
        found = list_node_work(
            organisation=get_caller(request).organisation,
            limit=limit + 1,
            before=read_number(request, "after"),
            # PostgreSQL takes no NUL in a text, and no id has one.
            **{
                name: asked[name].replace("\0", "")
                for name in ("node_id", "job_id")
                if name in asked
            },
        )
        data = NodeWorkSerializer.show_each(found[:limit])
        return Response({"data": data, "has_more": len(found) > limit})


class EarningsDaysView(MarketView):
    """What was earned on each day, UTC, the latest first; also days without earnings."""

    scopes = {"GET": READ}
    queries = {
        "GET": [
            schemas.PAGE[0],
            OpenApiParameter(
                "after",
                {"type": "string", "format": "date"},
                description="day of the last item of the page; without it, the page begins today.",
            ),
        ]
    }

    @extend_schema(operation_id="earnings_days", responses={200: page_of(EarningsDaySerializer)})
    def get(self, request: Request) -> Response:
        days, has_more = list_earning_days(
            organisation=get_caller(request).organisation,
            until=_read_last_day(request.query_params.get("after")),
            days=read_limit(request),
        )
        return Response({"data": EarningsDaySerializer.show_each(days), "has_more": has_more})


def _read_last_day(after: str | None) -> date:
    """The day that a page begins with, its latest one."""
    if after is None:
        return clock.now().astimezone(UTC).date()
    try:
        day = date.fromisoformat(after)
    except ValueError:
        day = None
    if day is None:
        raise UserError("invalid_cursor", "'after' must be a day like 2026-11-28.", param="after")
    return max(day, FIRST_DAY) - timedelta(days=1)
