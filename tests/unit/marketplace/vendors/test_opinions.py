"""Second opinions: who gives them, what they say of a delivery, and the pay that waits."""

from __future__ import annotations

from datetime import timedelta

import pytest
import time_machine
from django.test import Client

from marketplace.auction.preparations import conclude_preparations
from marketplace.auction.settlement import settle_finished
from marketplace.common.errors import NotFound, UserError
from marketplace.jobs.services import cancel_job
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.maturity import mature_earnings
from marketplace.payments.selectors import get_earnings, get_wallet
from marketplace.vendors import opinions
from marketplace.vendors.acceptance import decide_dispute, refuse_delivery
from marketplace.vendors.agreement import Agreement, compute_kappa, count_agreement
from marketplace.vendors.models import (
    DataAccess,
    Dispute,
    Preparation,
    PreparationStatus,
    RowOpinion,
    VendorKind,
)
from marketplace.vendors.opinions import (
    WAITS_FOR,
    find_opinion,
    give_opinion,
    list_opinions_for,
)
from marketplace.vendors.people import RowDecision, accept_rows, decide_row, hand_in
from marketplace.vendors.selectors import can_be_disputed, is_held_up_by_owner
from tests import builders
from tests import market_builders as market
from tests import vendor_builders as build
from tests.builders import NOW
from tests.pages import read_page
from tests.vendor_builders import chat, clock, prepare_next

pytestmark = pytest.mark.django_db

LATER = clock() + timedelta(days=30)


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
    return build.vendor(zone, "Team", kind=VendorKind.HUMAN)


@pytest.fixture
def work(zone, owner, team):
    """Five rows, four of them delivered by one person, accepted by rule and paid."""
    made = build.sell_few(owner, zone)
    user = builders.owner_of(team.organisation)
    accept_rows(preparation=made, user=user, first=1, last=5, now=NOW)
    for number, decision in ((4, RowDecision.ACCEPT), (5, RowDecision.DROP)):
        decide_row(
            preparation=made, user=user, number=number, decision=decision, version=0, now=NOW
        )
    hand_in(preparation=made, user=user, now=NOW)
    assert prepare_next(clock=clock)
    assert conclude_preparations(now=clock()) == 1
    made.refresh_from_db()
    assert made.status == PreparationStatus.ACCEPTED
    return made


@pytest.fixture
def colleague(team):
    made = builders.user()
    team.organisation.memberships.create(user=made, role="member")
    return made


def give_all(user, *, wrong=0):
    """Say of each row what was delivered, of some something else."""
    for row in list_opinions_for(user):
        is_wrong = wrong > 0
        wrong -= is_wrong
        value = chat(90, price="Nothing.") if is_wrong else row.delivered
        give_opinion(opinion=row, user=user, value=value, now=clock())


def test_another_person_of_the_team_or_an_operator_gives_them_and_nobody_else(
    work, owner, team, colleague
):
    operator, biased = builders.operator(), builders.operator()
    owner.memberships.create(user=biased, role="member")
    viewer = builders.user()
    team.organisation.memberships.create(user=viewer, role="viewer")
    first, its_owner = builders.owner_of(team.organisation), builders.owner_of(owner)
    for may, person in ((5, colleague), (5, operator)):
        assert list_opinions_for(person).count() == may
    row = RowOpinion.objects.order_by("pk")[0]
    both, undoing = builders.user(), builders.user()
    for organisation in (owner, team.organisation):
        organisation.memberships.create(user=both, role="member")
    team.organisation.memberships.create(user=undoing, role="member")
    RowOpinion.objects.update(edited_by=[first.pk, undoing.pk])
    for person in (first, its_owner, biased, viewer, both, undoing, builders.user()):
        assert list_opinions_for(person).count() == 0
        for act in (
            lambda user: find_opinion(opinion_id=row.pk, user=user, now=NOW),
            lambda user: give_opinion(opinion=row, user=user, value="", now=NOW),
        ):
            with pytest.raises(NotFound):
                act(person)
    assert not RowOpinion.objects.exclude(given_at=None).exists()
    assert not DataAccess.objects.exclude(person=first).exists()
    # Nobody chooses which row is looked at.
    find_opinion(opinion_id=row.pk, user=colleague, now=NOW)
    with pytest.raises(NotFound):
        find_opinion(opinion_id=row.pk + 1, user=colleague, now=NOW)
    team.is_suspended = True
    team.save()
    assert list_opinions_for(colleague).count() == 0


def test_pay_waits_for_opinions_and_goes_once_they_agree(work, team, colleague):
    assert mature_earnings(now=LATER) == 0
    with pytest.raises(UserError, match="no row to train on"):
        give_opinion(opinion=RowOpinion.objects.all()[0], user=colleague, value="{", now=clock())
    # Two of five are seen otherwise, which is a matter of taste.
    give_all(colleague, wrong=2)
    # They take four rows and leave one out; they are agreed with in two and in one.
    assert count_agreement(work) == Agreement(asked=5, given=5, agreeing=3, kappa=6 / 16)
    assert not Dispute.objects.exists()
    assert mature_earnings(now=LATER) == 1
    assert get_earnings(organisation=team.organisation).payable_micros == 20_000
    # Nobody needs the owner's rows any more.
    assert not RowOpinion.objects.exclude(raw="", delivered="", value="").exists()
    assert check_ledger().balanced


def dispute_of(work, vendor, **decided):
    return Dispute.objects.create(
        preparation=work,
        vendor=vendor,
        reason="Old",
        opened_by=builders.owner_of(work.job.organisation),
        opened_at=clock(),
        **decided,
    )


def test_an_earlier_vendors_dispute_is_another_one(zone, work, owner, colleague):
    dispute_of(work, build.vendor(zone, "Earlier"), decided_at=clock(), is_for_owner=True)
    assert can_be_disputed(work, now=clock())
    give_all(colleague, wrong=3)
    assert Dispute.objects.get(decided_at=None).vendor == work.vendor


def test_pay_that_an_operator_decided_about_goes_whatever_opinions_say(work, team, colleague):
    dispute_of(work, team, decided_at=clock(), is_for_owner=False)
    give_all(colleague, wrong=5)
    assert Dispute.objects.count() == 1
    assert mature_earnings(now=LATER) == 1


def test_the_owners_words_are_added_once_to_what_opinions_dispute(work, owner, colleague):
    give_all(colleague, wrong=3)
    by = builders.owner_of(owner)
    assert can_be_disputed(work, now=clock())
    for reason in ("It is wrong.", "Again."):
        refuse_delivery(preparation=work, reason=reason, refused_by=by, now=clock())
        assert not can_be_disputed(work, now=clock())
    found = Dispute.objects.get()
    assert (found.reason.splitlines()[1:], found.opened_by) == (["It is wrong."], by)
    # It kept nobody from the data.
    Preparation.objects.update(accept_by=clock() - timedelta(seconds=1))
    decide_dispute(
        dispute=found,
        is_for_owner=False,
        words="No.",
        decided_by=builders.operator(),
        now=clock(),
    )
    assert not is_held_up_by_owner(work.job, at=clock())


def test_an_opinion_that_is_far_longer_than_its_row_is_refused(work, colleague):
    row = list_opinions_for(colleague)[0]
    with pytest.raises(UserError, match="far longer"):
        give_opinion(opinion=row, user=colleague, value=" " * 3000, now=clock())


def test_one_that_cannot_be_judged_keeps_no_other_waiting(work, monkeypatch):
    monkeypatch.setattr(opinions, "_judge", lambda *_, **__: 1 / 0)
    assert conclude_preparations(now=work.accepted_at + WAITS_FOR) == 0
    assert RowOpinion.objects.filter(given_at=None).count() == 5


@pytest.mark.parametrize("is_for_owner", [False, True])
def test_an_operator_decides_where_too_few_agree(work, owner, team, colleague, is_for_owner):
    give_all(colleague, wrong=3)
    found = Dispute.objects.get()
    assert found.reason == "Second opinions agree with 2 of 5 rows that Team delivered."
    assert work.job.events.order_by("-seq")[0].message.startswith(found.reason)
    assert mature_earnings(now=LATER) == 0
    # What else goes back of the payment is known once the job has ended.
    cancel_job(job=work.job, cancelled_by=None, now=clock())
    assert settle_finished(now=clock()) == 1
    decide_dispute(
        dispute=found,
        is_for_owner=is_for_owner,
        words="I looked at them.",
        decided_by=builders.operator(),
        now=clock(),
    )
    assert mature_earnings(now=LATER) == (0 if is_for_owner else 1)
    # Of the cells' price, 100,000, a fiftieth is kept either way.
    paid = 2_000 if is_for_owner else 22_000
    assert get_wallet(organisation=owner).available_micros == 10_000_000 - paid
    assert check_ledger().balanced


def test_opinions_that_nobody_gives_hold_pay_up_for_a_week_at_most(work, colleague):
    give_opinion(
        opinion=RowOpinion.objects.order_by("pk")[0], user=colleague, value="", now=clock()
    )
    over = work.accepted_at + WAITS_FOR
    conclude_preparations(now=over - timedelta(seconds=1))
    assert mature_earnings(now=LATER) == 0
    conclude_preparations(now=over)
    # The one that was given says otherwise; it is asked about and the others are not.
    assert RowOpinion.objects.count() == 1
    assert Dispute.objects.get().reason.startswith("Second opinions agree with 0 of 1 rows")
    assert mature_earnings(now=LATER) == 0


def test_pay_goes_after_a_week_without_any_opinion(work):
    conclude_preparations(now=work.accepted_at + WAITS_FOR)
    assert not RowOpinion.objects.exists()
    assert mature_earnings(now=LATER) == 1


def test_later_deliveries_are_sampled_by_chance(zone, owner, team, monkeypatch, tmp_path):
    monkeypatch.setattr(opinions, "FIRST_DELIVERIES", 0)
    drawn = {"": 1}
    monkeypatch.setattr(opinions, "_draw", lambda _, what: drawn.get(what, 9))
    made = build.sell_few(owner, zone)
    assert opinions.draw_sample(made, rows=iter(()), delivered=tmp_path) == ()
    assert opinions._is_sampled(made) is False
    drawn[""] = opinions.SAMPLED_OF
    assert opinions._is_sampled(made) is True


@pytest.mark.parametrize(
    ("one", "other", "agree"),
    [
        ("", "", True),
        (chat(1), "", False),
        (chat(1, price="a b " * 50_000), chat(1, price="b a " * 40_000), True),
        (chat(1), chat(1), True),
        (chat(1), chat(1, price="Nothing at all."), False),
        (chat(1, price="It is ten dollars a piece today."), chat(1, price="Dollars."), False),
        (
            '{"text": "a fine day", "label": "good"}',
            '{"text": "a fine day", "label": "bad"}',
            False,
        ),
        (
            '{"text": "A fine  day", "label": "good"}',
            '{"text": "a fine day", "label": "good"}',
            True,
        ),
    ],
)
def test_rows_agree_with_equal_labels_and_texts_that_are_alike(one, other, agree):
    assert opinions._agree(one, other) is agree


@pytest.mark.parametrize(
    ("counts", "kappa"),
    [
        # Cohen 1960, table 1, of 200 cases.
        (
            {
                ("a", "a"): 88,
                ("a", "b"): 14,
                ("a", "c"): 18,
                ("b", "a"): 10,
                ("b", "b"): 40,
                ("b", "c"): 10,
                ("c", "a"): 2,
                ("c", "b"): 6,
                ("c", "c"): 12,
            },
            pytest.approx((0.70 - 0.41) / (1 - 0.41)),
        ),
        ({("a", "b"): 1, ("b", "a"): 1}, -1),
        ({("a", "a"): 1, ("b", "b"): 2}, 1),
        ({("a", "a"): 5}, None),
        ({}, None),
    ],
)
def test_agreement_beyond_chance_is_cohens_kappa(counts, kappa):
    assert compute_kappa(counts) == kappa


def test_the_page_shows_what_was_found_and_not_what_was_delivered(work, team, colleague):
    row = RowOpinion.objects.get(number=1)
    RowOpinion.objects.filter(pk=row.pk).update(delivered=chat(0, price="Secret price."))
    client = Client()
    client.force_login(colleague)
    with time_machine.travel(clock(), tick=False):
        assert "5 delivered rows wait" in read_page(client.get("/vendor"))
        reply = client.get("/vendor/opinions/next")
        text = read_page(client.get(reply.url))
        assert "What does item 0 cost" in text
        assert "Secret" not in text
        for row in RowOpinion.objects.order_by("pk"):
            said = {"do": "drop"} if row.number == 5 else {"do": "save", "value": row.proposal}
            client.post(f"/vendor/opinions/{row.pk}", said)
        assert client.get("/vendor/opinions/next").url == "/vendor"
        assert "4 of 5" in read_page(client.get("/vendor"))
    assert DataAccess.objects.filter(person=colleague, kind="rows").count() == 1
