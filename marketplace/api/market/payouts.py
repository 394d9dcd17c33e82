"""``/api/payouts``: how what was earned leaves, statements by month, and the account it goes to."""

from __future__ import annotations

from django.conf import settings
from django.urls import reverse
from drf_spectacular.utils import extend_schema
from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.answers import GIVEN, Answer, ConstantText, Moment, NullText, Usd, page_of
from marketplace.api.callers import get_caller
from marketplace.api.market import schemas
from marketplace.api.market.earnings import EarningLineSerializer
from marketplace.api.pagination import build_page
from marketplace.api.views import MarketView
from marketplace.common import clock
from marketplace.common.downloads import LinesDownload
from marketplace.common.errors import UserError
from marketplace.payments.models import Payout, PayoutStatus
from marketplace.payments.month_statements import EARNINGS, load_account_months
from marketplace.payments.payout_overview import PayoutOverview, load_payout_overview
from marketplace.payments.payouts import open_payout_account
from marketplace.payments.statements import load_statement, write_csv
from marketplace.payments.stripe_client import GatewayFault

READ, WRITE = "provider:read", "payouts:write"
#: Lines of a statement; the CSV has all.
EARNINGS_LISTED = 200


class PayoutSerializer(Answer):
    id = s.CharField()
    object = ConstantText("payout")
    amount = Usd(source="amount_micros", help_text="What leaves together.")
    status = s.ChoiceField(
        PayoutStatus.values,
        help_text="moving: to your account at the payment service; sent: to your bank; failed: "
        "the bank did not take it, it is tried again; returned: it is payable again.",
    )
    made_at = Moment(help_text="When it was started.")
    ended_at = Moment(allow_null=True, help_text="When it was paid or returned.")
    failure = NullText(help_text="Why the last attempt failed; null: it did not.")
    retry_at = Moment(allow_null=True, help_text="When the next attempt is due.")


class AccountMonthSerializer(Answer):
    account = s.CharField(source="label", help_text="Earnings pending, or payable.")
    opening = Usd(source="opening_micros", help_text="What it began the month with.")
    change = Usd(source="change_micros", help_text="What the month added.")
    closing = Usd(source="closing_micros", help_text="What it ended with, or has now.")


class EarningsStatementSerializer(Answer):
    object = ConstantText("statement")
    month = s.CharField(source="name", help_text="Such as 2026-11, in UTC.")
    earned = Usd(source="earned_micros", help_text="What was earned in it.")
    paid = Usd(source="paid_micros", help_text="What banks got of payouts started in it.")
    accounts = AccountMonthSerializer(many=True, source=GIVEN, help_text="What you were owed.")
    payouts = PayoutSerializer(many=True, help_text="Payouts started in it, the first one first.")
    earnings = EarningLineSerializer(
        many=True, help_text="Its first 200 lines; the CSV has all of them."
    )


class PayoutAccountSerializer(Answer):
    object = ConstantText("payout_account")
    is_set_up = s.BooleanField(help_text="It was begun: POST gives the address to go on.")
    is_ready = s.BooleanField(help_text="The payment service knows who you are and your bank.")
    needs = s.ListField(
        child=s.CharField(), help_text="What the payment service still wants to know, in its words."
    )
    currency = s.CharField(allow_null=True, help_text="What your bank is paid in.")
    is_offered = s.BooleanField(
        source="is_configured", help_text="Whether this market pays out at all."
    )
    is_test_money = s.BooleanField(help_text="The payment service moves test money only.")
    frozen = s.ListField(child=s.CharField(), help_text="Why nothing is paid out for now.")
    pending = Usd(
        source="earnings.pending_micros", help_text="Earned, and not payable before its time."
    )
    payable = Usd(source="earnings.payable_micros", help_text="What can be paid out.")
    reserve = Usd(source="reserve_micros", help_text="What of it stays of a new payee's.")
    threshold = Usd(source="threshold_micros", help_text="The least that leaves.")
    every_days = s.IntegerField(help_text="Days between payouts, at least.")
    delay_days = s.IntegerField(help_text="Days until what was earned is payable.")

    def get_is_set_up(self, overview: PayoutOverview) -> bool:
        return overview.account is not None

    def get_is_ready(self, overview: PayoutOverview) -> bool:
        return overview.account is not None and overview.account.is_ready

    def get_needs(self, overview: PayoutOverview) -> list[str]:
        return [] if overview.account is None else overview.account.needs

    def get_currency(self, overview: PayoutOverview) -> str | None:
        return None if overview.account is None else overview.account.currency

    def get_frozen(self, overview: PayoutOverview) -> list[str]:
        return [freeze.reason for freeze in overview.freezes]


class OnboardingSerializer(Answer):
    object = ConstantText("payout_account.link")
    url = s.CharField(source=GIVEN, help_text="Open it in a browser within minutes; it works once.")


class PayoutsView(MarketView):
    """Your payouts, the latest first."""

    scopes = {"GET": READ}
    queries = {"GET": schemas.PAGE}

    @extend_schema(operation_id="payouts_list", responses={200: page_of(PayoutSerializer)})
    def get(self, request: Request) -> Response:
        payouts = Payout.objects.filter(organisation=get_caller(request).organisation)
        return Response(build_page(request, payouts, PayoutSerializer.show_each))


class StatementView(MarketView):
    """What you earned and were paid in a month."""

    scopes = {"GET": READ}

    @extend_schema(
        operation_id="payouts_statement",
        responses={200: EarningsStatementSerializer, 404: schemas.PROBLEM},
    )
    def get(self, request: Request, month: str) -> Response:
        organisation = get_caller(request).organisation
        statement = load_statement(organisation=organisation, month=month, limit=EARNINGS_LISTED)
        owed = load_account_months(organisation=organisation, kinds=EARNINGS, month=month)
        accounts = AccountMonthSerializer.show_each(owed.accounts)
        return Response(EarningsStatementSerializer.show(statement, accounts=accounts))


class StatementCsvView(MarketView):
    """The same as CSV, with each line of it."""

    scopes = {"GET": READ}

    @extend_schema(
        operation_id="payouts_statement_csv",
        responses={
            (200, *schemas.build_file_types("text/csv")): schemas.FILE,
            404: schemas.PROBLEM,
        },
    )
    def get(self, request: Request, month: str) -> LinesDownload:
        statement = load_statement(organisation=get_caller(request).organisation, month=month)
        return LinesDownload(
            write_csv(statement),
            content_type="text/csv; charset=utf-8",
            name=f"statement-{statement.name}.csv",
        )


class PayoutAccountView(MarketView):
    """The account that you are paid to, what waits for a payout, and when it leaves."""

    scopes = {"GET": READ, "POST": WRITE}
    throttle_kind = throttle_kind_of_reads = "acts"

    @extend_schema(operation_id="payouts_account", responses={200: PayoutAccountSerializer})
    def get(self, request: Request) -> Response:
        organisation = get_caller(request).organisation
        overview = load_payout_overview(organisation=organisation, now=clock.now())
        return Response(PayoutAccountSerializer.show(overview))

    @extend_schema(
        operation_id="payouts_account_open",
        request=None,
        responses={
            200: OnboardingSerializer,
            400: schemas.PROBLEM,
            403: schemas.PROBLEM,
            503: schemas.PROBLEM,
        },
    )
    def post(self, request: Request) -> Response:
        """Give the address where the payment service asks who you are and where your bank is."""
        try:
            url = open_payout_account(
                organisation=get_caller(request).organisation,
                now=clock.now(),
                return_url=f"{settings.PUBLIC_URL}{reverse('payouts')}",
            )
        except GatewayFault as fault:
            raise UserError(
                "gateway_unavailable",
                "The payment service does not answer. Try again in a minute.",
                status=503,
            ) from fault
        return Response(OnboardingSerializer.show(None, url=url))
