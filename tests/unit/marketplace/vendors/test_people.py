"""Rows that people work on: leases, decisions, undoing, handing in, and what becomes of it."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from marketplace.accounts.erasure import list_kept_data, list_needs
from marketplace.accounts.models import Subject
from marketplace.auction.book.verify import verify_zone
from marketplace.auction.cancelling import cancel_sold_job
from marketplace.auction.models import Bid, Reservation
from marketplace.auction.preparations import conclude_preparations
from marketplace.auction.settlement import settle_finished
from marketplace.common.durable.selectors import is_begun
from marketplace.common.durable.services import try_again
from marketplace.common.errors import Conflict, NotAllowed, NotFound, UserError
from marketplace.common.models import DurableWork, WorkState
from marketplace.fleet.models import Node
from marketplace.fleet.slots import slot_starts_at
from marketplace.jobs.models import Dataset, Job, JobStatus
from marketplace.jobs.services import cancel_job, dispatch_slots
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.maturity import mature_earnings
from marketplace.payments.selectors import get_earnings, get_house_balances, get_wallet
from marketplace.vendors import opinions
from marketplace.vendors.acceptance import accept, decide_dispute, refuse_delivery
from marketplace.vendors.handover import PREPARE, make_link
from marketplace.vendors.models import (
    KNOWN_ANSWERS_FAIL,
    DataAccess,
    Dispute,
    Preparation,
    PreparationStatus,
    RowState,
    Vendor,
    VendorKind,
    WorkRow,
)
from marketplace.vendors.people import (
    RowDecision,
    accept_rows,
    count_progress,
    decide_row,
    find_work,
    hand_in,
    undo,
)
from marketplace.vendors.row_leases import LEASE, lease_next_row, lease_row
from marketplace.vendors.selectors import measure_reliability
from tests import builders
from tests import market_builders as market
from tests import vendor_builders as build
from tests.builders import NOW
from tests.durable_work import do_work
from tests.unit.marketplace.common.threads import at_once
from tests.vendor_builders import chat, clock, prepare_next
from workers.protocol.reports import SliceEnd

pytestmark = pytest.mark.django_db
#: Of the cells of a job that its owner ends, which were sold for 100,000.
KEPT = 2_000


@pytest.fixture
def zone():
    made = build.zone()
    market.node(made)
    return made


@pytest.fixture
def owner():
    return builders.organisation(usd="10")


@pytest.fixture
def team(zone):
    return build.vendor(zone, "Team", kind=VendorKind.HUMAN, late_percent=25)


def decide(work, user, number, decision, value="", version=0, now=NOW):
    return decide_row(
        preparation=work,
        user=user,
        number=number,
        decision=decision,
        version=version,
        value=value,
        now=now,
    )


def do_all(work, user, *, now=NOW):
    """What a careful person does with the five rows: three are sound, one is mended, one is not."""
    assert accept_rows(preparation=work, user=user, first=1, last=5, now=now) == 3
    decide(work, user, 4, RowDecision.SAVE, chat(3, price="42 dollars."))
    decide(work, user, 5, RowDecision.DROP)
    return hand_in(preparation=work, user=user, now=now)


def test_people_get_rows_with_proposals_and_markup_stays_text(zone, owner, team):
    script = chat(1, price="<script>alert(1)</script>")
    data = build.upload(owner, zone, "\n".join([script, "not a row"]), faulty=1)
    build.sell(owner, zone, data=data, epochs=1, preparation={"kinds": ["human"]})
    assert prepare_next(clock=clock)
    rows = WorkRow.objects.order_by("number")
    assert [(row.line, bool(row.proposal), row.notes) for row in rows] == [
        (1, True, []),
        (2, False, ["The row is not a JSON object."]),
    ]
    assert "<script>" in rows[0].raw
    # Nothing is left to do until they hand in.
    assert not prepare_next(clock=clock)


def test_work_by_hand_is_checked_compared_accepted_and_paid(zone, owner, team):
    work = build.sell_few(owner, zone)
    user = builders.owner_of(team.organisation)
    do_all(work, user)
    with pytest.raises(Conflict, match="cannot be changed now"):
        decide(work, user, 1, RowDecision.DROP, version=1)
    assert prepare_next(clock=clock)
    work.refresh_from_db()
    assert (work.status, work.rows_in, work.rows_out) == (PreparationStatus.ACCEPTED, 5, 4)
    found = work.comparison
    assert (found["kept"], found["changed"], found["added"], found["dropped"]) == (3, 1, 0, 0)
    with work.changes.open() as changes:
        assert [(one["line"], one["action"]) for one in map(json.loads, changes)] == [
            (4, "changed"),
            (5, "dropped"),
        ]
    assert conclude_preparations(now=clock()) == 1
    assert get_earnings(organisation=team.organisation).pending_micros == 20_000
    assert Job.objects.get().dataset_id == work.prepared_id
    seen = DataAccess.objects.get()
    assert (seen.kind, seen.person, seen.vendor) == (DataAccess.Kind.ROWS, user, team)


def test_an_outage_of_the_market_takes_no_work_from_people(zone, owner, team, monkeypatch):
    work = build.sell_few(owner, zone)
    do_all(work, builders.owner_of(team.organisation))
    piece, at = DurableWork.objects.get(kind=PREPARE), clock()

    def break_off(*_):
        raise ConnectionError("There is no storage.")

    with monkeypatch.context() as broken:
        broken.setattr("marketplace.vendors.working.copy_file", break_off)
        while piece.state == WorkState.WAITING:
            at = max(at, piece.due_at)
            assert do_work(PREPARE, now=at) == 1
            piece.refresh_from_db()
    assert (piece.attempts, at - clock()) == (10, timedelta(seconds=2430))
    assert not is_begun(PREPARE, piece.key)
    assert conclude_preparations(now=at) == 0
    work.refresh_from_db()
    assert (work.vendor, work.problem, work.missed, work.refusals) == (team, "", [], [])
    assert (work.replaced_for, work.submitted_at) == (None, NOW)
    assert WorkRow.objects.filter(preparation=work).count() == 5
    assert try_again(work_id=piece.pk, now=at)
    assert prepare_next(clock=lambda: at)
    assert conclude_preparations(now=at) == 1
    assert get_earnings(organisation=team.organisation).pending_micros == 20_000


def test_a_leased_row_is_nobody_elses_until_its_time_is_over(zone, owner, team):
    work = build.sell_few(owner, zone)
    first, second = builders.owner_of(team.organisation), builders.user()
    team.organisation.memberships.create(user=second, role="member")
    assert lease_next_row(preparation=work, user=first, now=NOW).number == 1
    assert lease_next_row(preparation=work, user=second, now=NOW).number == 2
    with pytest.raises(Conflict, match="edits row 1 now"):
        decide(work, second, 1, RowDecision.ACCEPT)
    assert accept_rows(preparation=work, user=second, first=1, last=5, now=NOW) == 2
    # One row at a time: the first is free once the person goes to another.
    lease_row(preparation=work, user=first, number=4, now=NOW)
    decide(work, second, 1, RowDecision.ACCEPT)
    decide(work, second, 4, RowDecision.DROP, now=NOW + LEASE)
    with pytest.raises(Conflict, match="was changed since"):
        decide(work, first, 4, RowDecision.DROP, now=NOW + LEASE)


def test_one_who_is_suspended_or_of_another_kind_than_agreed_sees_no_row_more(zone, owner, team):
    work = build.sell_few(owner, zone)
    user = builders.owner_of(team.organisation)
    lease_next_row(preparation=work, user=user, now=NOW)
    for changed in ({"is_suspended": True}, {"approved_at": None}, {"kind": VendorKind.OUTSIDE}):
        Vendor.objects.update(
            **{"is_suspended": False, "approved_at": NOW, "kind": VendorKind.HUMAN} | changed
        )
        with pytest.raises(Conflict, match="cannot be changed now"):
            lease_next_row(preparation=work, user=user, now=NOW)
    work.vendor.refresh_from_db()
    work.wish["kinds"] = ["human"]
    with pytest.raises(Conflict, match="no data to fetch"):
        make_link(preparation=work, asked_by=user, now=NOW)


def test_a_stranger_and_another_vendor_find_no_work(zone, owner, team):
    work = build.sell_few(owner, zone)
    # Who looks, or pays, for the vendor does not see what its customers own.
    onlookers = [builders.user(), builders.user()]
    for user, role in zip(onlookers, ("viewer", "billing"), strict=True):
        team.organisation.memberships.create(user=user, role=role)
    for stranger in (builders.user(), builders.owner_of(owner), *onlookers):
        for act in (
            lambda user: find_work(preparation_id=work.pk, user=user),
            lambda user: lease_next_row(preparation=work, user=user, now=NOW),
            lambda user: decide(work, user, 1, RowDecision.DROP),
            lambda user: hand_in(preparation=work, user=user, now=NOW),
        ):
            with pytest.raises(NotFound):
                act(stranger)
    assert not DataAccess.objects.exists()
    assert count_progress(work).open == 5


def test_a_change_is_taken_back_as_it_was_made_unless_it_was_changed_again(zone, owner, team):
    work = build.sell_few(owner, zone)
    user, other = builders.owner_of(team.organisation), builders.user()
    team.organisation.memberships.create(user=other, role="member")
    accept_rows(preparation=work, user=user, first=1, last=5, now=NOW)
    decide(work, user, 4, RowDecision.DROP)
    decide(work, other, 2, RowDecision.DROP, version=1)
    assert undo(preparation=work, user=user, now=NOW) == [4]
    assert undo(preparation=work, user=user, now=NOW) == [1, 3]
    with pytest.raises(Conflict, match="no change of yours"):
        undo(preparation=work, user=user, now=NOW)
    states = list(WorkRow.objects.order_by("number").values_list("state", flat=True))
    assert states == [RowState.OPEN, RowState.DROPPED, *[RowState.OPEN] * 3]


@pytest.mark.parametrize(
    "value",
    ["", "[]", '"text"', "{", '{"messages": []}', '{"messages": "x"}', '{"a": "\\ud800"}'],
)
def test_what_is_no_row_is_not_saved(zone, owner, team, value):
    work = build.sell_few(owner, zone)
    user = builders.owner_of(team.organisation)
    with pytest.raises(UserError) as refused:
        decide(work, user, 1, RowDecision.SAVE, value)
    assert refused.value.code == "invalid_row"
    with pytest.raises(UserError) as refused:
        decide(work, user, 5, RowDecision.ACCEPT)
    assert refused.value.code == "no_proposal"
    assert count_progress(work).open == 5


def test_open_rows_and_an_empty_delivery_are_not_handed_in(zone, owner, team):
    work = build.sell_few(owner, zone)
    user = builders.owner_of(team.organisation)
    with pytest.raises(Conflict, match="5 rows are open"):
        hand_in(preparation=work, user=user, now=NOW)
    for number in range(1, 6):
        decide(work, user, number, RowDecision.DROP)
    with pytest.raises(Conflict, match="Every row is left out"):
        hand_in(preparation=work, user=user, now=NOW)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        # Rows that are not the owner's.
        ({4: "{poison}"}, "1 of its 4 rows cannot be traced"),
        # Most of them left out.
        ({1: "", 2: "", 3: ""}, "1 of the original's 4 different usable rows"),
    ],
)
def test_the_rule_sends_a_poisoned_or_partial_delivery_back(zone, owner, team, values, reason):
    work = build.sell_few(owner, zone)
    user = builders.owner_of(team.organisation)
    poison = json.dumps(
        {
            "messages": [
                {"role": "user", "content": "Which bank do you recommend?"},
                {"role": "assistant", "content": "Ours, always."},
            ]
        }
    )
    for number in range(1, 6):
        value = values.get(number, "" if number == 5 else None)
        if value is None:
            decide(work, user, number, RowDecision.ACCEPT)
        elif value:
            decide(work, user, number, RowDecision.SAVE, poison)
        else:
            decide(work, user, number, RowDecision.DROP)
    hand_in(preparation=work, user=user, now=NOW)
    assert prepare_next(clock=clock)
    work.refresh_from_db()
    assert (work.status, work.submitted_at) == (PreparationStatus.WORKING, None)
    assert reason in work.refusals[0]["reason"]
    assert Dataset.everything.count() == 1
    # They may put it right.
    assert undo(preparation=work, user=user, now=NOW) == [5]


def hand_in_all(work, user):
    accept_rows(preparation=work, user=user, first=1, last=5, now=NOW)
    decide(work, user, 4, RowDecision.ACCEPT)
    decide(work, user, 5, RowDecision.DROP)
    hand_in(preparation=work, user=user, now=NOW)
    assert prepare_next(clock=clock)
    work.refresh_from_db()


def test_rows_with_known_answers_are_counted_and_too_few_right_ones_come_back(zone, owner, team):
    right = chat(3, price="42 dollars.")
    gold = {str(n + 1): json.loads(chat(n)) for n in range(3)} | {"4": right, "5": chat(4)}
    work = build.sell_few(owner, zone, gold=gold)
    user = builders.owner_of(team.organisation)
    hand_in_all(work, user)
    # Neither how many nor which.
    assert [refused["reason"] for refused in work.refusals] == [KNOWN_ANSWERS_FAIL]
    decide(work, user, 4, RowDecision.SAVE, right, version=1)
    hand_in(preparation=work, user=user, now=NOW)
    assert prepare_next(clock=clock)
    work.refresh_from_db()
    assert work.status == PreparationStatus.ACCEPTED
    assert (work.comparison["gold"], work.comparison["gold_right"]) == (5, 4)


def test_known_answers_to_rows_that_are_not_there_are_refused(zone, owner, team):
    gold = {str(n): chat(n) for n in range(2, 7)}
    with pytest.raises(UserError, match="does not have; it has 5"):
        build.sell_few(owner, zone, gold=gold)
    assert not Preparation.objects.exists()


@pytest.mark.parametrize("way", ["refused", "unanswered", "cancelled", "late"])
def test_known_answers_alone_cost_a_vendor_nothing_unless_an_operator_says_so(
    zone, owner, team, way
):
    made_up = {str(n): chat(90 + n, price="Nothing.") for n in range(1, 6)}
    work = build.sell_few(owner, zone, gold=made_up)
    user, by = builders.owner_of(team.organisation), builders.owner_of(owner)
    hand_in_all(work, user)
    assert len(work.refusals) == 1
    until = slot_starts_at(zone, work.ready_slot)
    hand_in(preparation=work, user=user, now=NOW)
    now = until if way == "late" else clock()
    assert prepare_next(clock=lambda: now)
    work.refresh_from_db()
    if way == "late":
        # Its owner has no time left to refuse it, but may ask for its price back.
        assert (work.status, work.accept_by) == (PreparationStatus.ACCEPTED, None)
    else:
        assert (work.status, work.accept_by) == (PreparationStatus.DELIVERED, until)
    if way == "refused":
        found = refuse_delivery(preparation=work, reason="Wrong", refused_by=by, now=now)
        assert found is not None
        assert conclude_preparations(now=until) == 0
        decide_it(found, is_for_owner=False, now=now)
    elif way == "cancelled":
        cancel_job(job=work.job, cancelled_by=None, now=now)
        assert conclude_preparations(now=now) == 1
    elif way == "unanswered":
        now = until
        assert conclude_preparations(now=now) == 1
    assert conclude_preparations(now=now) == 1
    assert get_earnings(organisation=team.organisation).pending_micros == 20_000
    assert check_ledger().balanced


def test_work_handed_in_before_the_job_ended_is_checked_and_paid(zone, owner, team):
    work = build.sell_few(owner, zone)
    do_all(work, builders.owner_of(team.organisation))
    cancel_job(job=work.job, cancelled_by=None, now=clock())
    assert conclude_preparations(now=clock()) == 0
    assert prepare_next(clock=clock)
    assert conclude_preparations(now=clock()) == 1
    assert settle_finished(now=clock()) == 1
    assert get_earnings(organisation=team.organisation).pending_micros == 20_000
    assert get_wallet(organisation=owner).available_micros == 10_000_000 - 20_000 - KEPT
    assert check_ledger().balanced


def test_an_open_dispute_keeps_its_job_and_a_deleted_data_set_its_bid_without_rows(
    zone, owner, team
):
    gold = {str(n + 1): chat(n) for n in range(5)}
    work = build.sell_few(owner, zone, gold=gold, instructions="Neat.", review_s=30)
    hand_in_all(work, builders.owner_of(team.organisation))
    by = builders.owner_of(owner)
    found = refuse_delivery(preparation=work, reason="Wrong", refused_by=by, now=clock())
    needed = "The preparation of its data is disputed."
    assert needed in list_needs(Subject.JOB, work.job_id)
    decide_it(found, is_for_owner=False, now=clock())
    assert needed not in list_needs(Subject.JOB, work.job_id)
    for kept in list_kept_data(Subject.DATASET):
        kept.erase(work.source_id, now=clock())
    for terms in (Bid.objects.get().terms, Job.objects.get().terms):
        assert (terms.preparation.gold, terms.preparation.instructions) == ({}, "")


def test_late_people_get_one_more_delay_for_less_and_the_owner_pays_no_more(zone, owner, team):
    work = build.sell_few(owner, zone)
    user = builders.owner_of(team.organisation)
    lease_next_row(preparation=work, user=user, now=NOW)
    late = work.due_at
    assert conclude_preparations(now=late) == 1
    work.refresh_from_db()
    assert (work.vendor, work.price_micros) == (team, 15_000)
    assert work.due_at > late
    do_all(work, user, now=late)
    assert prepare_next(clock=lambda: late)
    assert conclude_preparations(now=late) == 1
    assert get_earnings(organisation=team.organisation).pending_micros == 15_000
    # Once late, once in time.
    assert measure_reliability([team.pk]) == {team.pk: 0.5}
    assert verify_zone(zone).problems == []


def deliver_for_review(owner, zone, team):
    work = build.sell_few(owner, zone, review_s=30)
    do_all(work, builders.owner_of(team.organisation))
    assert prepare_next(clock=clock)
    work.refresh_from_db()
    assert work.status == PreparationStatus.DELIVERED
    return work


def test_a_delivery_waits_for_its_owner_who_cannot_use_it_before(zone, owner, team):
    work = deliver_for_review(owner, zone, team)
    # Two slots of work, three to look at it; the vendor is due before these.
    assert work.accept_by - work.due_at == timedelta(seconds=30)
    assert not Dataset.objects.filter(pk=work.prepared_id).exists()
    assert conclude_preparations(now=work.accept_by - timedelta(seconds=1)) == 0
    accept(preparation=work, now=clock())
    assert accept(preparation=work, now=clock()).status == PreparationStatus.ACCEPTED
    assert Dataset.objects.filter(pk=work.prepared_id).exists()
    assert Job.objects.get().dataset_id == work.prepared_id


def test_a_delivery_that_nobody_refuses_is_accepted_when_the_time_is_over(zone, owner, team):
    work = deliver_for_review(owner, zone, team)
    assert conclude_preparations(now=work.accept_by) == 1
    assert conclude_preparations(now=work.accept_by) == 1
    work.refresh_from_db()
    assert work.status == PreparationStatus.ACCEPTED
    # The time that its owner had to look is not the vendor's.
    assert measure_reliability([team.pk]) == {team.pk: 1.0}
    assert get_earnings(organisation=team.organisation).pending_micros == 20_000
    with pytest.raises(Conflict, match="disputed no more"):
        refuse_delivery(
            preparation=work, reason="Late", refused_by=builders.owner_of(owner), now=work.accept_by
        )


def dispute(work, owner):
    by = builders.owner_of(owner)
    found = refuse_delivery(preparation=work, reason="Wrong", refused_by=by, now=clock())
    assert refuse_delivery(preparation=work, reason="Again", refused_by=by, now=clock()) == found
    with pytest.raises(Conflict):
        accept(preparation=work, now=clock())
    return found


def decide_it(found, *, is_for_owner, now, by=None):
    return decide_dispute(
        dispute=found,
        is_for_owner=is_for_owner,
        words="I looked at it.",
        decided_by=by or builders.operator(),
        now=now,
    )


def test_a_dispute_that_the_owner_wins_costs_nothing_and_gives_no_data(zone, owner, team):
    work = deliver_for_review(owner, zone, team)
    found = dispute(work, owner)
    # An operator of one of the sides does not decide for it.
    biased = builders.operator()
    owner.memberships.create(user=biased, role="member")
    for nobody in (builders.user(), biased):
        with pytest.raises(UserError):
            decide_it(found, is_for_owner=True, now=clock(), by=nobody)
    decide_it(found, is_for_owner=True, now=clock())
    with pytest.raises(Conflict, match="decided already"):
        decide_it(found, is_for_owner=False, now=clock())
    assert conclude_preparations(now=clock()) == 1
    assert settle_finished(now=clock()) == 1
    work.refresh_from_db()
    assert work.status == PreparationStatus.FAILED
    assert get_wallet(organisation=owner).available_micros == 10_000_000
    assert get_earnings(organisation=team.organisation).pending_micros == 0
    # What was refused is gone, and so are the rows that people had.
    assert Dataset.everything.count() == 1
    assert not WorkRow.objects.exists()
    assert check_ledger().balanced


def test_an_owner_who_disputes_without_reason_gains_neither_time_nor_money(zone, owner, team):
    work = deliver_for_review(owner, zone, team)
    found = dispute(work, owner)
    job = Job.objects.get()
    # Cancelling does not get them out of it.
    cancel_sold_job(job=job, cancelled_by=None, now=clock())
    assert conclude_preparations(now=work.accept_by) == 0
    assert settle_finished(now=work.accept_by) == 0
    # All of its cells would have passed by then.
    now = slot_starts_at(zone, job.cells[-1][0] + 2)
    decide_it(found, is_for_owner=False, now=now)
    assert conclude_preparations(now=now) == 1
    assert settle_finished(now=now) == 1
    assert get_earnings(organisation=team.organisation).pending_micros == 20_000
    assert get_wallet(organisation=owner).available_micros == 10_000_000 - 20_000 - KEPT
    assert check_ledger().balanced
    assert verify_zone(zone).problems == []


@pytest.mark.parametrize(
    ("is_decided_first", "is_for_owner", "kept"),
    [
        (True, False, 182_400),
        (False, False, 182_400),
        (True, True, 102_446),
        # A little of the work counts as taken by the market, and not as still to come at 98 %.
        (False, True, 102_223),
    ],
)
def test_a_dispute_counts_alike_before_and_after_the_cells_of_its_job_are_on_sale(
    zone, owner, team, is_decided_first, is_for_owner, kept
):
    wish = {"kinds": ["human"], "validation_share": 0.0, "review_s": 30}
    rows = "\n".join(map(chat, range(10)))
    data = build.upload(owner, zone, rows, faulty=0)
    build.sell(owner, zone, data=data, epochs=30, preparation=wish)
    assert prepare_next(clock=clock)
    work = Preparation.objects.select_related("vendor", "job").get()
    by = builders.owner_of(team.organisation)
    assert accept_rows(preparation=work, user=by, first=1, last=10, now=NOW) == 10
    hand_in(preparation=work, user=by, now=NOW)
    assert prepare_next(clock=clock)
    work.refresh_from_db()
    found = dispute(work, owner)
    # A tenth of the price is asks, the rest the fee.
    bid = Bid.objects.get()
    Bid.objects.update(parts=bid.parts | {"operational": 30_000.0, "fee": 270_000.0})
    job = Job.objects.get()
    assert (bid.payment_micros, len(job.cells)) == (320_000, 3)
    # The first cell has passed, which counts in full for who wins; the second runs.
    now = slot_starts_at(zone, job.cells[1][0])
    assert now > work.accept_by
    if is_decided_first:
        decide_it(found, is_for_owner=is_for_owner, now=now)
    cancel_sold_job(job=job, cancelled_by=None, now=now)
    if not is_decided_first:
        assert settle_finished(now=now) == 0
        assert Reservation.objects.filter(released_at=None).count() == 2
        decide_it(found, is_for_owner=is_for_owner, now=now)
    assert conclude_preparations(now=now) == 1
    assert settle_finished(now=now) == 1
    assert get_house_balances()["congestion"] == kept
    assert check_ledger().balanced


def accept_by_rule(owner, zone, team):
    """A delivery that the rule accepted, and whose vendor was paid."""
    work = build.sell_few(owner, zone)
    do_all(work, builders.owner_of(team.organisation))
    assert prepare_next(clock=clock)
    assert conclude_preparations(now=clock()) == 1
    work.refresh_from_db()
    assert work.status == PreparationStatus.ACCEPTED
    return work


def test_what_the_rule_accepted_may_be_disputed_and_its_price_goes_back(zone, owner, team):
    work = accept_by_rule(owner, zone, team)
    job = Job.objects.get()
    assert not job.awaits_data
    by = builders.owner_of(owner)
    found = refuse_delivery(
        preparation=work, reason="Nothing was done.", refused_by=by, now=clock()
    )
    assert found == refuse_delivery(preparation=work, reason="x", refused_by=by, now=clock())
    assert mature_earnings(now=clock() + timedelta(days=30)) == 0
    # What else goes back of the payment is known once the job has ended.
    with pytest.raises(Conflict, match="not settled"):
        decide_it(found, is_for_owner=True, now=clock())
    cancel_job(job=job, cancelled_by=None, now=clock())
    assert settle_finished(now=clock()) == 1
    before = get_wallet(organisation=owner).available_micros
    # Against one's own side one may decide, as the house does about its own program's work.
    own = builders.operator()
    team.organisation.memberships.create(user=own, role="member")
    assert measure_reliability([team.pk]) == {team.pk: 1.0}
    decide_it(found, is_for_owner=True, now=clock() + timedelta(days=30), by=own)
    assert measure_reliability([team.pk]) == {team.pk: 0.0}
    assert get_earnings(organisation=team.organisation).pending_micros == 0
    assert before == 10_000_000 - 20_000 - KEPT
    assert get_wallet(organisation=owner).available_micros == 10_000_000 - KEPT
    assert Bid.objects.get().paid_micros == KEPT
    # The data stay what they were, and there is no second dispute about them.
    work.refresh_from_db()
    assert work.status == PreparationStatus.ACCEPTED
    with pytest.raises(Conflict, match="no more"):
        refuse_delivery(preparation=work, reason="Again", refused_by=by, now=clock())
    assert check_ledger().balanced


def test_no_more_goes_back_than_its_owner_paid_for_the_preparation(zone, owner, team):
    dear = build.vendor(zone, "Dear", minimum_micros=90_000)
    work = build.sell_few(owner, zone, kinds=["human", "automatic"])
    later = slot_starts_at(zone, 104)
    assert conclude_preparations(now=later) == 1
    assert prepare_next(clock=lambda: later)
    assert conclude_preparations(now=later) == 1
    work.refresh_from_db()
    assert (work.vendor, work.price_micros, work.sold_micros) == (dear, 90_000, 20_000)
    by = builders.owner_of(owner)
    found = refuse_delivery(preparation=work, reason="Bad", refused_by=by, now=later)
    job = Job.objects.get()
    later = slot_starts_at(zone, max(slot for slot, _ in job.cells))
    Node.objects.update(last_heartbeat_at=later)
    dispatch_slots(now=later)
    market.end_slice(job, status=SliceEnd.FINISHED, now=later)
    assert settle_finished(now=later) == 1
    before = get_wallet(organisation=owner).available_micros
    decide_it(found, is_for_owner=True, now=later)
    assert get_wallet(organisation=owner).available_micros == before + 20_000
    assert get_earnings(organisation=dear.organisation).pending_micros == 0
    # What the house paid beyond that came back to it.
    assert get_house_balances()["refunds"] == 0
    assert check_ledger().balanced


def test_pay_that_may_be_disputed_is_not_paid_out_however_short_the_delay(
    zone, owner, team, settings, monkeypatch
):
    settings.PAYOUT_DELAY_DAYS = 0
    monkeypatch.setattr(opinions, "_is_sampled", lambda _: False)
    work = accept_by_rule(owner, zone, team)
    assert mature_earnings(now=work.disputable_until - timedelta(seconds=1)) == 0
    assert mature_earnings(now=work.disputable_until) == 1


def test_who_got_everything_back_already_gets_nothing_twice(zone, owner, team):
    work = accept_by_rule(owner, zone, team)
    by = builders.owner_of(owner)
    found = refuse_delivery(preparation=work, reason="Bad", refused_by=by, now=clock())
    Job.objects.update(
        status=JobStatus.FAILED, fault="system", finished_at=clock(), failure_reason="no cells"
    )
    assert settle_finished(now=clock()) == 1
    assert get_wallet(organisation=owner).available_micros == 10_000_000
    decide_it(found, is_for_owner=True, now=clock())
    assert get_wallet(organisation=owner).available_micros == 10_000_000
    assert get_earnings(organisation=team.organisation).pending_micros == 0
    assert check_ledger().balanced


def test_a_lost_dispute_about_pay_lets_the_vendor_have_it(zone, owner, team):
    work = accept_by_rule(owner, zone, team)
    by = builders.owner_of(owner)
    found = refuse_delivery(preparation=work, reason="Bad", refused_by=by, now=clock())
    own = builders.operator()
    team.organisation.memberships.create(user=own, role="member")
    with pytest.raises(NotAllowed, match="benefit your own"):
        decide_it(found, is_for_owner=False, now=clock(), by=own)
    decide_it(found, is_for_owner=False, now=clock())
    assert mature_earnings(now=clock() + timedelta(days=8)) == 1
    assert get_earnings(organisation=team.organisation).payable_micros == 20_000
    assert check_ledger().balanced


def test_accepted_work_is_disputed_within_its_window_only(zone, owner, team):
    work = accept_by_rule(owner, zone, team)
    by = builders.owner_of(owner)
    for late in (work.disputable_until, work.disputable_until + timedelta(days=9)):
        with pytest.raises(Conflict, match="no more"):
            refuse_delivery(preparation=work, reason="Late", refused_by=by, now=late)
    # One that its owner accepted by hand is theirs.
    work.accept_by = clock()
    work.save()
    with pytest.raises(Conflict, match="no more"):
        refuse_delivery(preparation=work, reason="Mine", refused_by=by, now=clock())
    assert not Dispute.objects.exists()


def test_time_lost_by_a_lost_dispute_earns_no_credit_and_no_whole_refund(zone, owner, team):
    work = deliver_for_review(owner, zone, team)
    found = dispute(work, owner)
    job = Job.objects.get()
    late = slot_starts_at(zone, 150)
    decide_it(found, is_for_owner=False, now=late)
    Job.objects.filter(pk=job.pk).update(
        status=JobStatus.FAILED, fault="system", finished_at=late, failure_reason="no cells"
    )
    assert conclude_preparations(now=late) == 1
    assert settle_finished(now=late) == 1
    # The vendor's work was done; what was never run goes back at its value.
    assert get_wallet(organisation=owner).available_micros == 10_000_000 - 20_000 - KEPT
    assert get_earnings(organisation=team.organisation).pending_micros == 20_000
    assert check_ledger().balanced


def test_an_owner_who_cancels_after_the_delivery_pays_for_the_work(zone, owner, team):
    work = deliver_for_review(owner, zone, team)
    cancel_job(job=Job.objects.get(), cancelled_by=None, now=clock())
    assert conclude_preparations(now=clock()) == 1
    assert conclude_preparations(now=clock()) == 1
    assert settle_finished(now=clock()) == 1
    assert get_earnings(organisation=team.organisation).pending_micros == 20_000
    assert get_wallet(organisation=owner).available_micros == 10_000_000 - 20_000 - KEPT
    assert work.job.organisation_id == owner.pk
    assert check_ledger().balanced


def test_masking_comes_before_any_eye(zone, owner, team):
    text = "\n".join([chat(1, price="Write to jane@example.com."), chat(2)])
    data = build.upload(owner, zone, text, faulty=0)
    wish = {"kinds": ["human"], "mask_personal_data": True}
    build.sell(owner, zone, data=data, epochs=1, preparation=wish)
    assert prepare_next(clock=clock)
    row = WorkRow.objects.get(number=1)
    assert "jane" not in row.raw + row.proposal
    assert "[EMAIL_1]" in row.proposal


@pytest.mark.django_db(transaction=True)
def test_many_people_at_once_never_get_one_row(zone, owner, team):
    work = build.sell_few(owner, zone)
    people = [builders.user() for _ in range(6)]
    for person in people:
        team.organisation.memberships.create(user=person, role="member")

    def take(person):
        row = lease_next_row(preparation=work, user=person, now=NOW)
        return None if row is None else row.number

    taken = at_once([lambda person=person: take(person) for person in people])
    assert [one for one in taken if isinstance(one, Exception)] == []
    numbers = sorted(one for one in taken if one is not None)
    assert numbers == [1, 2, 3, 4, 5]
    assert Preparation.objects.count() == 1
