"""Owners, a provider and a vendor that want to hurt the house, alone and together: at most so much.

Random acts with cards, wallets, jobs and chargebacks run against the real services and the
stand-in for the gateway. Each day an account may cost the house the gateway's fees of what its
cards may pay, for chargebacks as well, and each provider ``HOUSE_BEARS_MICROS_PER_DAY``. Beside
that the house loses only payments that a bank takes back, which a day's limit on cards bounds.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from django.conf import settings
from django.db import connection, transaction

from marketplace.auction.endings import EndedJob
from marketplace.auction.pay_rule import Ending, HouseLimits, SoldJob, compute_settlement
from marketplace.auction.settlement import _move_money
from marketplace.common.errors import UserError
from marketplace.embedded.stripe_stand_in.payments import DISPUTE_FEE
from marketplace.jobs.executed_work import ExecutedWork, NodeWork
from marketplace.payments import stripe_doubts
from marketplace.payments import stripe_gateway as gateway
from marketplace.payments.card_limits import PAYMENTS_A_DAY
from marketplace.payments.card_payments import refresh_payment, start_payment
from marketplace.payments.card_refunds import return_to_card
from marketplace.payments.chargebacks import collect_lost_payments, record_chargeback
from marketplace.payments.holds import HoldRequest, HoldSettlement, place_holds, settle_holds
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.maturity import mature_earnings
from marketplace.payments.models import (
    MICROS_PER_CENT,
    AccountKind,
    CardPayment,
    CardRefund,
    Chargeback,
    Entry,
    GatewayMovement,
    Hold,
    PaymentPurpose,
    Posting,
)
from marketplace.payments.reconciliation import reconcile
from marketplace.payments.selectors import get_house_balances, sum_borne
from marketplace.payments.services import pay_vendor
from marketplace.payments.top_ups import start_top_up
from tests import builders
from tests.builders import NOW
from tests.durable_work import make_calls
from tests.outer_blocks import build_outer_block
from tests.stand_in import GatewayControl

pytestmark = pytest.mark.django_db

OWNERS = 2
VENDOR_PERCENT = 20
CARDS = ("pm_card_visa", "pm_card_visa", "pm_card_createDispute")
#: What the house gains or loses; everything else is somebody's money.
OWN_KINDS = (
    AccountKind.REVENUE,
    AccountKind.CONGESTION,
    AccountKind.HOUSE_FEES,
    AccountKind.REFUNDS,
    AccountKind.SLA_CREDITS,
    AccountKind.GATEWAY_FEES,
)


class Spite:
    """A market with two owners, a provider and a vendor, who act as a seed says."""

    def __init__(self, cards: GatewayControl, seed: int) -> None:
        self.cards, self.random, self.now = cards, Random(seed), NOW
        self.made = 0
        cards.control("reset")
        self.owners = [builders.organisation() for _ in range(OWNERS)]
        self.provider = builders.provider_organisation()
        self.vendor = builders.provider_organisation()

    def act(self) -> None:
        acts: tuple[Callable[[], Any], ...] = (
            self.top_up,
            self.send_back,
            self.bid_by_card,
            self.bid_by_wallet,
            self.end_a_job,
            self.end_a_job,
            self.contest,
            self.wait,
        )
        try:
            self.random.choice(acts)()
            make_calls(now=self.now)
        except UserError:
            return

    def name(self) -> str:
        self.made += 1
        return f"act_{self.made}"

    def pick(self, rows: Any) -> Any:
        found = list(rows)
        return self.random.choice(found) if found else None

    def pay(self, payment: CardPayment) -> CardPayment:
        make_calls(now=self.now)
        payment.refresh_from_db()
        secret = gateway.get_intent(payment.gateway_id or "").client_secret
        self.cards.confirm(payment.gateway_id or "", secret, self.random.choice(CARDS))
        return refresh_payment(payment=payment, now=self.now)[0]

    def top_up(self) -> None:
        owner = self.random.choice(self.owners)
        usd = self.random.choice((5, 50, 400, 1_000))
        self.pay(
            start_top_up(
                organisation=owner,
                amount_micros=usd * 1_000_000,
                asked_by=builders.owner_of(owner),
                key=self.name(),
                card_id=None,
                saves_card=False,
                now=self.now,
            )
        )

    def send_back(self) -> None:
        payment = self.pick(CardPayment.objects.filter(status="paid").order_by("pk"))
        if payment is not None:
            left = payment.received_cents
            cents = self.random.choice((1, payment.returnable_cents, left, left // 3))
            return_to_card(
                payment_id=payment.pk, amount_cents=cents, reference=self.name(), now=self.now
            )

    def bid_by_card(self) -> None:
        cents = self.random.choice((50, 700, 20_000))
        payment = self.pay(
            start_payment(
                organisation=self.random.choice(self.owners),
                purpose=PaymentPurpose.BID,
                amount_cents=cents,
                created_by=None,
                key=self.name(),
                terms={},
                now=self.now,
            )
        )
        self.win(payment.organisation_id, cents * MICROS_PER_CENT, payment.pk)

    def bid_by_wallet(self) -> None:
        amount = self.random.choice((1_000, 3_000_000, 400_000_000))
        self.win(self.random.choice(self.owners).pk, amount, None)

    def win(self, owner_id: str, amount: int, payment_id: str | None) -> None:
        reference = self.name()
        [hold] = place_holds(
            wanted=[HoldRequest(owner_id, amount, reference, payment_id)], now=self.now
        )
        if isinstance(hold, Hold):
            price = self.random.choice((amount, amount // 2, None))
            with transaction.atomic():
                settle_holds(settlements=[HoldSettlement(reference, price)], now=self.now)

    def end_a_job(self) -> None:
        """By the real rule of pay, with whatever share of work the provider says it did."""
        running = Hold.objects.filter(status="charged", distributed_at=None, charged_micros__gt=0)
        hold = self.pick(running.order_by("reference"))
        if hold is None:
            return
        price = hold.charged_micros
        vendor = self.random.choice((0, price * VENDOR_PERCENT // 100))
        pay_vendor(
            hold_reference=hold.reference,
            organisation_id=self.vendor.pk,
            amount_micros=vendor,
            disputable_until=self.now,
            now=self.now,
        )
        ending = self.random.choice(list(Ending))
        share = Fraction(1) if ending is Ending.IN_TIME else Fraction(self.random.randint(0, 4), 4)
        left = int((price - vendor) * (1 - share)) if ending is Ending.STOPPED else 0
        work = (NodeWork("node", self.provider.pk, 1, 1),) if share else ()
        at_fault = () if ending is Ending.STOPPED else (self.provider.pk,)
        today = self.now.replace(hour=0, minute=0, second=0, microsecond=0)
        borne = sum_borne(at_fault_id=self.provider.pk, since=today)
        due = compute_settlement(
            sold=SoldJob(
                owner_id=hold.organisation_id,
                payment_micros=price,
                asks_micros=price - vendor,
                vendor_micros=vendor,
                kept_micros=-(-left // 50),
                credit_percent=settings.SLA_CREDIT_PERCENT,
            ),
            work=ExecutedWork(work, share),
            ending=ending,
            at_fault=at_fault,
            limits=HouseLimits(
                left_micros={
                    pk: max(0, settings.HOUSE_BEARS_MICROS_PER_DAY - borne) for pk in at_fault
                },
                at_fault_id=at_fault[-1] if at_fault else None,
            ),
        )
        # Of the bid, money needs to know only these.
        bid: Any = SimpleNamespace(hold_reference=hold.reference, organisation=hold.organisation)
        case = EndedJob(ending, ExecutedWork(work, share), at_fault, "As it ended")
        _move_money(bid=bid, case=case, due=due, royalty=None, now=self.now)

    def contest(self) -> None:
        """A bank takes a payment back, or decides about one."""
        opened = self.pick(d for d in self.cards.find("dispute") if d["status"] != "lost")
        if opened is None:
            payment = self.pick(CardPayment.objects.filter(status="paid").order_by("pk"))
            if payment is None:
                return
            opened = self.cards.control("dispute", payment_intent=payment.gateway_id)
            if "id" not in opened:
                return
        else:
            self.cards.control("close_dispute", id=opened["id"], won=False)
        self.hear()

    def hear(self) -> None:
        """The gateway says how its chargebacks stand."""
        for dispute in self.cards.find("dispute"):
            record_chargeback(stripe_doubts.get_chargeback(dispute["id"]), now=self.now)

    def wait(self) -> None:
        hours = self.random.choice((1, 6, 24))
        self.now += timedelta(hours=hours)
        self.cards.control("advance", seconds=3600 * hours)
        mature_earnings(now=self.now)
        collect_lost_payments(now=self.now)

    def check(self) -> dict[str, float]:
        """Hold what was lost against its bounds; each as a share of its bound, and in dollars."""
        self.hear()
        make_calls(now=self.now + timedelta(hours=2))
        # Books the fees of chargebacks, which only the gateway's movements tell.
        assert reconcile(now=self.now).is_right
        check = check_ledger()
        assert check.balanced, check
        days = (self.now - NOW).days + 1
        house = get_house_balances()
        fees = self.sum_by_owner(AccountKind.GATEWAY_FEES)
        borne = sum_borne(at_fault_id=self.provider.pk, since=NOW)
        loss = -sum(house[kind] for kind in OWN_KINDS)
        assert loss <= fees.total() + borne
        contested = self.sum_by_owner(AccountKind.CHARGEBACKS)
        assert contested.total() == -house[AccountKind.CHARGEBACKS]
        # A window of a day may begin at any hour.
        card_bound = (days + 1) * settings.CARD_FIRST_CENTS * MICROS_PER_CENT
        fee_bound = days * find_fee_bound()
        # Counted by dates, as the market does, and not by days since the first act.
        dates = (self.now.date() - NOW.date()).days + 1
        bound = dates * settings.HOUSE_BEARS_MICROS_PER_DAY
        losses = {
            "an owner's fees": (max(fees.values(), default=0), fee_bound),
            "a provider's faults": (borne, bound),
            "all": (loss, OWNERS * fee_bound + bound),
            "an owner's contested payments": (max(contested.values(), default=0), card_bound),
        }
        for what, (lost, most) in losses.items():
            assert lost <= most, what
        for owner in self.owners:
            paid = CardPayment.objects.filter(organisation=owner, status="paid")
            total = sum(payment.received_cents for payment in paid)
            assert total * MICROS_PER_CENT <= card_bound
        shares = {f"{what}, of the bound": lost / most for what, (lost, most) in losses.items()}
        return shares | {f"{what}, $": lost / 1_000_000 for what, (lost, _) in losses.items()}

    def sum_by_owner(self, kind: AccountKind) -> Counter[str]:
        """What an account of the house lost by each owner's doing; a stranger's is an error."""
        payments = CardPayment.objects.filter(organisation__in=self.owners)
        owners = dict(payments.values_list("charge_id", "organisation_id"))
        owners |= payments.values_list("pk", "organisation_id")
        refunds = CardRefund.objects.filter(payment__in=payments)
        owners |= refunds.values_list("pk", "payment__organisation_id")
        chargebacks = Chargeback.objects.filter(payment__in=payments)
        owners |= chargebacks.values_list("pk", "payment__organisation_id")
        owners |= chargebacks.values_list("gateway_id", "payment__organisation_id")
        movements = dict(GatewayMovement.objects.values_list("pk", "source_id"))
        lost: Counter[str] = Counter()
        postings = Posting.objects.filter(account__kind=kind, account__organisation=None)
        for reference, amount in postings.values_list("entry__reference", "amount_micros"):
            lost[owners[movements.get(reference, reference).partition(":")[0]]] -= amount
        return lost


def find_fee_bound() -> int:
    """Micro-dollars of the gateway's fees that one new account can cause a day.

    They are 2.9 % and 30 c of each payment, and $15 for each that a bank takes back.
    """
    cents = settings.CARD_FIRST_CENTS * 29 // 1000 + (31 + DISPUTE_FEE) * PAYMENTS_A_DAY
    # Two days' limits fit around one midnight.
    return 2 * cents * MICROS_PER_CENT


#: Where the thousand courses are written as they end, a line each. Those that a file has already
#: are not run again, so that what was interrupted goes on from its seed.
KEPT = os.environ.get("SPITE_COURSES")
#: The acts that came through in some course: money went in, out and back.
KINDS = {"top_up", "card_return", "capture", "refund", "distribution", "dispute"}


@dataclass(frozen=True, slots=True)
class Course:
    """What a course cost, and the kinds of its entries; a seed and a number of acts name it."""

    seed: int
    acts: int
    lost: dict[str, float]
    kinds: list[str]


def _run_course(cards: GatewayControl, *, seed: int, acts: int) -> Course:
    with _undone():
        spite = Spite(cards, seed)
        for _ in range(acts):
            spite.act()
        kinds = Entry.objects.order_by("kind").values_list("kind", flat=True).distinct()
        return Course(seed, acts, spite.check(), list(kinds))


def _run(cards: GatewayControl, *, seeds: range, acts: int, kept: Path | None = None) -> None:
    known = _read_courses(kept)
    for seed in seeds:
        if (seed, acts) not in known:
            course = known[seed, acts] = _run_course(cards, seed=seed, acts=acts)
            if kept is not None:
                with kept.open("a") as file:
                    print(json.dumps(asdict(course)), file=file)
    courses = [known[seed, acts] for seed in seeds]
    assert {kind for course in courses for kind in course.kinds} >= KINDS
    worst = {what: max(course.lost[what] for course in courses) for what in courses[0].lost}
    # For docs/benchmarks.md: pytest -rP shows it.
    print(json.dumps({"courses": len(seeds), "first": seeds[0], "worst": worst}))


def _read_courses(kept: Path | None) -> dict[tuple[int, int], Course]:
    if kept is None or not kept.exists():
        return {}
    courses = [Course(**json.loads(line)) for line in kept.read_text().splitlines()]
    return {(course.seed, course.acts): course for course in courses}


@contextmanager
def _undone() -> Iterator[None]:
    """A transaction that leaves nothing behind, after its deferred checks were made."""
    with build_outer_block():
        yield
        with connection.cursor() as cursor:
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        transaction.set_rollback(True)


def test_spite_costs_the_house_no_more_than_its_bound(cards: GatewayControl) -> None:
    _run(cards, seeds=range(4), acts=40)


#: Courses of one test: each has a limit of its own, and the ten may run beside each other.
PART = 100


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(0, 1_000, PART))
def test_a_thousand_courses_of_spite_cost_no_more_than_the_bound(
    cards: GatewayControl, first: int
) -> None:
    kept = Path(KEPT) if KEPT else None
    _run(cards, seeds=range(first, first + PART), acts=60, kept=kept)


def test_five_times_there_and_back_costs_the_house_nothing(cards: GatewayControl) -> None:
    """The clicks that once cost the house $29,088."""
    spite = Spite(cards, seed=0)
    owner = spite.owners[0]
    for _ in range(5):
        payment = start_top_up(
            organisation=owner,
            amount_micros=20_000_000,
            asked_by=builders.owner_of(owner),
            key=spite.name(),
            card_id=None,
            saves_card=False,
            now=NOW,
        )
        make_calls(now=NOW)
        payment.refresh_from_db()
        secret = gateway.get_intent(payment.gateway_id or "").client_secret
        cards.confirm(payment.gateway_id or "", secret, "pm_card_visa")
        payment, _ = refresh_payment(payment=payment, now=NOW)
        return_to_card(
            payment_id=payment.pk,
            amount_cents=payment.returnable_cents,
            reference=spite.name(),
            now=NOW,
        )
        make_calls(now=NOW)
    house = get_house_balances()
    assert sum(house[kind] for kind in OWN_KINDS) == 0
    assert reconcile(now=NOW).is_right
