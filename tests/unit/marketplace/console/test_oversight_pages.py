"""What an operator opens of others, and does to their jobs, bids and zones."""

from __future__ import annotations

import json
from io import StringIO

import pytest
import time_machine
from django.core.management import call_command
from django.db import DatabaseError, transaction
from django.db.models import Q

from marketplace.accounts.models import AuditEntry, Membership, Role
from marketplace.auction import operator_acts
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.models import Bid
from marketplace.auction.operator_acts import refund_by_operator
from marketplace.auction.settlement import settle_finished
from marketplace.common.errors import Conflict, NotAllowed, UserError
from marketplace.console.zones import GROUPS, LABELS
from marketplace.fleet.models import ZoneChange
from marketplace.fleet.policy_settings import PARAMETERS
from marketplace.fleet.services import set_policy_settings
from marketplace.jobs.models import EventKind, Job, JobEvent, JobStatus
from marketplace.jobs.services import dispatch_slots
from marketplace.payments.chargebacks import record_chargeback
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.models import CardPayment, CardRefund, Chargeback, Entry, Hold
from marketplace.payments.selectors import get_earnings, get_house_balances, get_wallet
from marketplace.payments.stripe_doubts import ChargebackState
from tests import builders
from tests import market_builders as market
from tests.audits import alter_row
from tests.builders import NOW
from tests.pages import read_page, read_text
from tests.unit.marketplace.common.threads import in_between
from workers.protocol.reports import SliceEnd

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def at_now():
    with time_machine.travel(NOW, tick=False):
        yield


@pytest.fixture
def zone():
    return market.zone()


@pytest.fixture
def owner():
    return builders.organisation(usd="10")


@pytest.fixture
def sold(zone, owner):
    market.node(zone)
    bid = market.bid(owner, zone)
    decide_pending_bids(zone=zone, now=NOW)
    bid.refresh_from_db()
    return bid, Job.objects.get(bid_id=bid.pk)


@pytest.fixture
def done(sold, zone):
    """The same, trained and settled."""
    bid, job = sold
    slot = bid.cells[0][0]
    dispatch_slots(now=market.slot_at(zone, slot))
    market.end_slice(job, status=SliceEnd.FINISHED, now=market.slot_at(zone, slot))
    assert settle_finished(now=market.slot_at(zone, slot)) == 1
    return bid, Job.objects.get(pk=job.pk)


@pytest.fixture
def operator(client):
    client.force_login(builders.operator())
    return client


def act(operator, job, **form):
    return read_text(operator.post(f"/operator/jobs/{job.pk}/act", form, follow=True))


def test_a_job_of_somebody_is_opened_and_that_is_on_record(operator, done):
    bid, job = done
    text = read_text(operator.get(f"/operator/jobs/{job.pk}"))
    assert job.name in text
    assert "0 to" in text
    entry = AuditEntry.objects.latest("pk")
    assert (entry.act, entry.done) == ("Any job", True)
    assert job.pk in f"{entry.subject}{entry.details}"
    assert read_page(operator.get(f"/operator/bids/{bid.pk}")).count(bid.pk) >= 1
    assert AuditEntry.objects.latest("pk").act == "Any bid"
    assert operator.get("/operator/jobs/nothing").status_code == 404
    assert operator.get("/operator/bids/nothing").status_code == 404


def test_its_owner_opens_none_of_it(client, sold, owner):
    bid, job = sold
    client.force_login(builders.owner_of(owner))
    for path in (f"jobs/{job.pk}", f"bids/{bid.pk}", "jobs", "zones", f"zones/{job.zone.name}"):
        assert client.get(f"/operator/{path}").status_code == 403
    assert client.post(f"/operator/jobs/{job.pk}/act", {"do": "cancel"}).status_code == 403
    job.refresh_from_db()
    assert job.status == JobStatus.QUEUED


def test_a_job_is_planned_again_for_a_reason_that_its_owner_reads(operator, sold):
    _, job = sold
    assert "Its owner pays no more" in act(operator, job, do="replan", reason="Slow node.")
    job.refresh_from_db()
    assert (job.needs_replan, job.replan_reason) == (
        True,
        "The operator asked for a new plan: Slow node.",
    )
    assert JobEvent.objects.filter(job=job, kind=EventKind.REPLAN_WANTED).count() == 1
    # Once more is not once again.
    assert "waits for a new plan already" in act(operator, job, do="replan", reason="Again.")
    assert JobEvent.objects.filter(job=job, kind=EventKind.REPLAN_WANTED).count() == 1


@pytest.mark.parametrize("do", ["replan", "cancel", "refund"])
def test_without_a_reason_nothing_happens(operator, sold, do):
    _, job = sold
    assert "Give a reason" in act(operator, job, do=do, reason=" ", amount="0.01")
    job.refresh_from_db()
    assert (job.status, job.needs_replan) == (JobStatus.QUEUED, False)


def test_an_end_gives_all_back_and_says_who_ended_it(operator, sold, owner):
    bid, job = sold
    assert bid.payment_micros
    act(operator, job, do="cancel", reason="It hangs.")
    settle_finished(now=NOW)
    job.refresh_from_db()
    assert (job.status, job.fault) == (JobStatus.FAILED, "system")
    assert job.failure_reason == "The operator ended this job: It hangs."
    assert get_wallet(organisation=owner).available_micros == 10_000_000
    assert check_ledger().balanced
    assert "has ended already" in act(operator, job, do="cancel", reason="Again.")


def test_a_refund_waits_until_the_money_is_settled(operator, sold, owner):
    bid, job = sold
    before = get_wallet(organisation=owner)
    text = act(operator, job, do="refund", reason="Sorry.", amount="0.01")
    assert "once it has ended and its money is settled" in text
    assert get_wallet(organisation=owner) == before
    assert Hold.objects.get(reference=bid.hold_reference).refunded_micros == 0


def test_a_refund_is_borne_by_the_market_and_booked_once(operator, done, owner):
    bid, job = done
    wallet = get_wallet(organisation=owner).available_micros
    provider = job.slices.get().node.provider.organisation
    earned = get_earnings(organisation=provider)
    house = get_house_balances()["refunds"]
    for _ in range(2):
        act(operator, job, do="refund", reason="Sorry.", amount="0.01")
    assert get_wallet(organisation=owner).available_micros == wallet + 10_000
    assert get_earnings(organisation=provider) == earned
    assert get_house_balances()["refunds"] == house - 10_000
    told = JobEvent.objects.filter(job=job, kind=EventKind.REFUNDED)
    assert [event.message for event in told] == ["The operator gave back $0.01: Sorry."]
    # Another amount for the same reason, and more than was paid, are refused.
    assert "refused" not in act(operator, job, do="refund", reason="Sorry.", amount="0.02")
    text = act(operator, job, do="refund", reason="All.", amount="1000")
    assert "of the charge is left to refund" in text
    assert get_wallet(organisation=owner).available_micros == wallet + 10_000
    assert told.count() == 1
    assert check_ledger().balanced
    assert bid.payment_micros


def pay_by_card(owner, hold):
    """Let the hold be one that a card paid."""
    payment = CardPayment.objects.create(
        organisation=owner,
        purpose="bid",
        key="card",
        amount_cents=1_000,
        received_cents=1_000,
        status="paid",
        gateway_id="pi_1",
        created_at=NOW,
    )
    with transaction.atomic():
        alter_row(
            "UPDATE payments_hold SET card_payment_id = %s WHERE id = %s", payment.pk, hold.pk
        )
    return payment


@pytest.mark.parametrize("won", [None, False, True])
def test_what_a_bank_took_back_is_not_given_back_again(operator, done, owner, won):
    bid, job = done
    hold = Hold.objects.get(reference=bid.hold_reference)
    left = hold.charged_micros - hold.refunded_micros
    payment = pay_by_card(owner, hold)
    taken = -(-left // 10_000) - 1
    Chargeback.objects.create(
        gateway_id="dp_1", payment=payment, amount_cents=taken, opened_at=NOW, won=won
    )
    repayable = left if won else left - taken * 10_000
    assert operator.get(f"/operator/jobs/{job.pk}").context["refundable"] == repayable
    more = f"{(repayable + 1) / 1_000_000:.6f}"
    text = act(operator, job, do="refund", reason="Sorry.", amount=more)
    assert ("the bank of the card took back what is left" in text) is (won is not True)
    assert not JobEvent.objects.filter(job=job, kind=EventKind.REFUNDED).exists()
    # Said twice it is one refund.
    for _ in range(2):
        act(operator, job, do="refund", reason="Sorry.", amount=f"{repayable / 1_000_000:.6f}")
    hold.refresh_from_db()
    assert hold.charged_micros - hold.refunded_micros == left - repayable
    # Only a card of which its bank took nothing back gets it.
    assert CardRefund.objects.exists() is (won is True)


@pytest.mark.django_db(transaction=True)
def test_no_chargeback_comes_between_what_may_go_back_and_the_refund(done, owner, monkeypatch):
    bid, _ = done
    hold = Hold.objects.get(reference=bid.hold_reference)
    payment = pay_by_card(owner, hold)
    left = hold.charged_micros - hold.refunded_micros
    contested = ChargebackState("dp_1", "ch_1", "pi_1", -(-left // 10_000), "fraudulent", None)

    def contest():
        with transaction.atomic():
            record_chargeback(contested, now=NOW)

    refund = operator_acts.refund_charge
    with in_between(contest) as start:

        def contest_first(**terms):
            heard.append(start())
            refund(**terms)

        heard = []
        monkeypatch.setattr(operator_acts, "refund_charge", contest_first)
        assert refund_by_operator(
            bid=bid,
            amount_micros=20_000,
            reason="Sorry.",
            refunded_by=builders.operator(),
            now=NOW,
        )
    assert heard[0].result() is None
    # It went to the card that had paid, before its bank took anything back: not to the wallet.
    assert CardRefund.objects.get().amount_cents == 2
    assert Chargeback.objects.get().payment == payment
    assert check_ledger().balanced


def test_a_refund_that_was_made_before_is_not_told_as_made(operator, done):
    _, job = done
    assert "$0.01 went back to its owner." in act(
        operator, job, do="refund", reason="Sorry.", amount="0.01"
    )
    assert "went back to its owner before; nothing more did now" in act(
        operator, job, do="refund", reason="Sorry.", amount="0.01"
    )


def test_two_long_reasons_that_begin_alike_are_two_refunds(operator, done, owner):
    _, job = done
    wallet = get_wallet(organisation=owner).available_micros
    for words in ("one", "two", "two"):
        act(operator, job, do="refund", reason="x" * 290 + words, amount="0.01")
    assert get_wallet(organisation=owner).available_micros == wallet + 20_000
    assert check_ledger().balanced


def test_a_refund_waits_for_cells_that_wait_to_be_sold_again(operator, done, owner):
    """What their nodes are paid for room that stayed idle comes out of what is left."""
    bid, job = done
    wallet = get_wallet(organisation=owner)
    Bid.objects.filter(pk=bid.pk).update(rent_due_micros=1)
    text = act(operator, job, do="refund", reason="Sorry.", amount="0.01")
    assert "once it has ended and its money is settled" in text
    assert "its money is being settled" in text
    assert get_wallet(organisation=owner) == wallet


@pytest.mark.parametrize("do", ["cancel", "refund"])
def test_an_operator_gives_no_money_to_its_own_organisation(client, request, owner, do):
    _, job = request.getfixturevalue("sold" if do == "cancel" else "done")
    own = builders.operator()
    Membership.objects.create(organisation=owner, user=own, role=Role.VIEWER, created_at=NOW)
    client.force_login(own)
    wallet, status = get_wallet(organisation=owner), job.status
    text = act(client, job, do=do, reason="Mine.", amount="0.01")
    assert "Let another operator give its money back" in text
    job.refresh_from_db()
    assert (get_wallet(organisation=owner), job.status) == (wallet, status)


def test_a_bids_page_lists_each_entry_of_its_money(operator, done):
    bid, job = done
    act(operator, job, do="refund", reason="Sorry.", amount="0.01")
    shown = operator.get(f"/operator/bids/{bid.pk}").context["entries"]
    named = Q(reference=bid.hold_reference) | Q(hold_reference=bid.hold_reference)
    assert [entry.pk for entry in shown] == list(
        Entry.objects.filter(named).order_by("pk").values_list("pk", flat=True)
    )
    assert {entry.kind for entry in shown} >= {"charge", "distribution", "refund"}


def test_who_is_no_operator_refunds_nothing(done, owner):
    bid, _ = done
    with pytest.raises(NotAllowed):
        refund_by_operator(
            bid=bid,
            amount_micros=1,
            reason="Mine.",
            refunded_by=builders.owner_of(owner),
            now=NOW,
        )
    assert Hold.objects.get(reference=bid.hold_reference).refunded_micros == 0


def test_the_command_does_the_same_and_is_on_record(sold):
    _, job = sold
    who = builders.operator()
    options = ("--operator", who.email, "--reason", "Slow node.")
    call_command("job_act", job.pk, "replan", *options, stdout=StringIO())
    job.refresh_from_db()
    assert job.needs_replan
    assert AuditEntry.objects.latest("pk").act == "manage.py job_act"


def test_the_list_is_by_state_and_finds_by_name_id_and_organisation(operator, sold, owner):
    _, job = sold
    path = f"/operator/jobs/{job.pk}"
    assert path in read_page(operator.get("/operator/jobs"))
    assert path not in read_page(operator.get("/operator/jobs?show=failed"))
    for words in (job.name, job.pk[-6:], owner.name, job.bid_id):
        assert path in read_page(operator.get("/operator/jobs", {"show": "all", "find": words}))
    assert path not in read_page(operator.get("/operator/jobs?show=all&find=nothing"))
    older = read_page(operator.get(f"/operator/jobs?show=all&before={job.pk}"))
    assert path not in older


def zone_form(zone, *, shown=None, **fields):
    """A zone's form as its page sends it, once the difference of ``shown`` was seen."""
    seen = {"seen": json.dumps(zone.settings, sort_keys=True)}
    return seen | fields | {"shown": json.dumps(shown or {}, sort_keys=True)}


def test_every_parameter_has_a_field_with_its_words(operator, zone):
    page = operator.get(f"/operator/zones/{zone.name}").content.decode()
    assert {name for _, names, _ in GROUPS for name in names} == set(PARAMETERS) == set(LABELS)
    assert all(f'name="{name}"' in page for name in PARAMETERS)


def test_a_change_is_shown_before_it_is_set(operator, zone):
    form = zone_form(zone, fee_per_unit="2.5", growth="0.2")
    text = read_text(operator.post(f"/operator/zones/{zone.name}", form | {"do": "review"}))
    assert "This would change" in text
    assert "House fee as built 2.5" in text
    # On the first day of a zone's log.
    assert "This would change at once" in text
    zone.refresh_from_db()
    assert zone.settings == {}
    assert ZoneChange.objects.count() == 0


def test_a_change_is_set_with_who_when_and_why_and_can_be_undone_once(operator, zone):
    path = f"/operator/zones/{zone.name}"
    shown = {"fee_per_unit": 2.5}
    form = zone_form(zone, shown=shown, fee_per_unit="2.5", do="set", reason="Costs rose.")
    text = read_text(operator.post(path, form, follow=True))
    assert "Costs rose." in text
    zone.refresh_from_db()
    assert zone.settings == {"fee_per_unit": 2.5}
    change = ZoneChange.objects.get()
    assert (change.before, change.after, change.set_at) == ({}, {"fee_per_unit": 2.5}, NOW)
    assert change.set_by is not None
    undo = f"{path}/changes/{change.pk}"
    operator.post(undo)
    zone.refresh_from_db()
    assert zone.settings == {}
    # Sent twice, it undoes nothing else.
    assert "changed these settings meanwhile" in read_text(operator.post(undo, follow=True))
    assert ZoneChange.objects.count() == 2


def test_what_was_changed_after_the_difference_was_shown_is_shown_first(operator, zone):
    form = zone_form(zone, shown={"growth": 0.2}, growth="2", do="set", reason="Mine.")
    text = read_text(operator.post(f"/operator/zones/{zone.name}", form, follow=True))
    assert "This would change" in text
    assert "Price growth as built 2" in text
    zone.refresh_from_db()
    assert (zone.settings, ZoneChange.objects.count()) == ({}, 0)


def test_only_the_last_change_is_undone_though_an_earlier_set_the_same(operator, zone):
    for growth in (1.0, 2.0, 1.0):
        set_policy_settings(zone=zone, settings={"growth": growth}, now=NOW)
    first = ZoneChange.objects.earliest("pk")
    undo = f"/operator/zones/{zone.name}/changes/{first.pk}"
    assert "changed these settings meanwhile" in read_text(operator.post(undo, follow=True))
    zone.refresh_from_db()
    assert (zone.settings, ZoneChange.objects.count()) == ({"growth": 1.0}, 3)


def test_a_form_does_not_overwrite_what_somebody_changed_meanwhile(operator, zone):
    form = zone_form(zone, shown={"growth": 0.2}, growth="0.2", do="set", reason="Mine.")
    set_policy_settings(zone=zone, settings={"fee_per_unit": 1.0}, now=NOW)
    text = read_text(operator.post(f"/operator/zones/{zone.name}", form, follow=True))
    assert "changed these settings meanwhile" in text
    zone.refresh_from_db()
    assert zone.settings == {"fee_per_unit": 1.0}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"growth": "11"}, "from 0 to 10"),
        ({"growth": "nan"}, "from 0 to 10"),
        ({"futures": "1.5"}, "whole number"),
        ({"posts_rates": "perhaps"}, "true or false"),
        ({"most_tasks": "1" + "0" * 400}, "from 1 to 20,000"),
        ({"ask_cap_micros": "1e308"}, "from 0 to 1,000,000"),
        ({"growth": "1"}, "Give a reason"),
    ],
)
def test_what_a_setting_cannot_be_changes_nothing(operator, zone, fields, words):
    form = zone_form(zone, shown={"growth": 1.0}, do="set", **fields)
    assert words in read_text(operator.post(f"/operator/zones/{zone.name}", form, follow=True))
    zone.refresh_from_db()
    assert zone.settings == {}
    assert ZoneChange.objects.count() == 0


def test_the_same_settings_are_no_change(zone):
    set_policy_settings(zone=zone, settings={}, now=NOW)
    assert ZoneChange.objects.count() == 0
    with pytest.raises(UserError):
        set_policy_settings(zone=zone, settings={"growth": 11}, now=NOW)
    with pytest.raises(Conflict):
        set_policy_settings(zone=zone, settings={"growth": 1.0}, now=NOW, expected={"growth": 2.0})
    assert ZoneChange.objects.count() == 0


def test_a_change_on_record_stays_as_it_was(zone):
    set_policy_settings(zone=zone, settings={"growth": 1.0}, now=NOW)
    with pytest.raises(DatabaseError), transaction.atomic():
        ZoneChange.objects.update(reason="Another.")
    with pytest.raises(DatabaseError), transaction.atomic():
        ZoneChange.objects.all().delete()


def test_ids_of_the_overview_are_links(operator, sold):
    bid, _ = sold
    page = read_page(operator.get("/operator"))
    assert f'href="/operator/bids/{bid.pk}"' in page
    assert f'href="/operator/organisations/{bid.organisation_id}"' in page
    assert f'href="/operator/zones/{bid.zone.name}"' in page
    assert f'href="/operator/nodes/{bid.cells[0][1]}"' in page
    assert Bid.objects.count() == 1
