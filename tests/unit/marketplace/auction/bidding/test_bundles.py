"""Bundles in the market: placed whole, decided as one, their money and jobs a bid's each."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import timedelta
from typing import Any

import pytest

from marketplace.accounts.models import Organisation
from marketplace.auction.bidding.bundle_quotes import make_bundle_quote
from marketplace.auction.bidding.bundles import NewBundle, place_bundle
from marketplace.auction.bidding.cancel import cancel_bid
from marketplace.auction.book.verify import verify_zone
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.enter import enter_lane
from marketplace.auction.lane.sequence_bids import receive_bids
from marketplace.auction.models import Bid, BidStatus, Bundle, LogEntry
from marketplace.auction.settlement import settle_finished
from marketplace.common.errors import Conflict, NotAllowed, PaymentRequired, UserError
from marketplace.fleet.models import Node, Zone
from marketplace.jobs.models import Job
from marketplace.payments.caps import set_cap, sum_spent
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.models import Entry, Hold, SpendingCap
from marketplace.payments.selectors import Wallet, get_wallet
from tests import builders
from tests import market_builders as market
from tests.builders import NOW

pytestmark = pytest.mark.django_db
SEEDS = {"training.seed": [1, 2, 3]}


@pytest.fixture
def zone() -> Zone:
    return market.zone()


@pytest.fixture(autouse=True)
def node(zone: Zone) -> Node:
    return market.node(zone)


@pytest.fixture
def owner() -> Organisation:
    return builders.organisation(usd="10")


def bundle(owner: Organisation, zone: Zone, **changed: Any) -> Bundle:
    """Three jobs of one cell each, ten slots from now, worth a dollar together."""
    return place_bundle(asked=asked(owner, zone, **changed), now=NOW)


def asked(owner: Organisation, zone: Zone, **changed: Any) -> NewBundle:
    terms: dict[str, Any] = {
        "organisation": owner,
        "placed_by": builders.owner_of(owner),
        "zone": zone,
        "dataset": changed.pop("data", None) or market.dataset(owner, zone),
        "name": "a sweep",
        "sweep": SEEDS,
        "all_or_none": True,
        "price_micros": 1_000_000,
        "deadline_at": market.slot_at(zone, 111),
        "idempotency_key": None,
        **market.job_terms(),
    }
    return NewBundle(**terms | changed)


def statuses(made: Bundle) -> list[str]:
    return list(made.bids.order_by("arrival").values_list("status", flat=True))


def kinds(zone: Zone) -> list[str]:
    return list(
        LogEntry.objects.filter(zone=zone).order_by("position").values_list("kind", flat=True)
    )


def test_a_bundle_that_wins_has_a_job_and_a_charge_for_each_and_the_rest_comes_back(
    zone: Zone, owner: Organisation
) -> None:
    made = bundle(owner, zone)
    assert get_wallet(organisation=owner) == Wallet(
        available_micros=9_000_000, held_micros=1_000_000
    )
    assert sum(bid.price_micros for bid in made.bids.all()) == 1_000_000
    decide_pending_bids(zone=zone, now=NOW)
    assert kinds(zone)[-5:] == ["BidsReceived", "BundleArrived", *["BidArrived"] * 3]
    made.refresh_from_db()
    assert (made.payment_micros, made.refusal) == (3 * market.CELL_MICROS, "")
    assert statuses(made) == [BidStatus.ADMITTED] * 3
    jobs = Job.objects.order_by("name")
    assert [job.name for job in jobs] == [f"a sweep, seed {n}" for n in (1, 2, 3)]
    assert [job.terms.training.seed for job in jobs] == [1, 2, 3]
    # Side by side: all of them end in the first slot.
    assert {tuple(map(tuple, job.cells)) for job in jobs} == {((101, Node.objects.get().pk),)}
    assert get_wallet(organisation=owner) == Wallet(available_micros=9_700_000, held_micros=0)
    assert check_ledger().balanced
    assert verify_zone(zone).problems == []


def test_a_part_of_the_limit_may_be_below_what_its_job_pays(
    zone: Zone, owner: Organisation
) -> None:
    # A cell does 100 units: the short job uses 90 of one, the long one all of nine.
    made = bundle(owner, zone, sweep={"training.epochs": [1, 10]}, price_micros=1_000_001)
    decide_pending_bids(zone=zone, now=NOW)
    made.refresh_from_db()
    assert made.payment_micros == 10 * market.CELL_MICROS
    short, long = made.bids.order_by("arrival")
    assert (short.payment_micros, long.payment_micros) == (100_000, 900_000)
    assert (short.price_micros, long.price_micros) == (90_909, 909_092)
    assert verify_zone(zone).problems == []


def test_a_bundle_at_its_price_loses_whole_and_everything_is_released(
    zone: Zone, owner: Organisation
) -> None:
    made = bundle(owner, zone, price_micros=3 * market.CELL_MICROS)
    decide_pending_bids(zone=zone, now=NOW)
    made.refresh_from_db()
    assert (made.refusal, made.winning_price_micros) == ("price", 3 * market.CELL_MICROS)
    assert statuses(made) == [BidStatus.REFUSED] * 3
    assert not Job.objects.exists()
    assert get_wallet(organisation=owner) == Wallet(available_micros=10_000_000, held_micros=0)
    assert verify_zone(zone).problems == []
    # A micro-dollar more wins.
    better = bundle(owner, zone, price_micros=3 * market.CELL_MICROS + 1)
    decide_pending_bids(zone=zone, now=NOW)
    assert statuses(better) == [BidStatus.ADMITTED] * 3
    assert verify_zone(zone).problems == []


def test_jobs_of_a_sweep_that_stand_for_themselves_win_one_by_one(
    zone: Zone, owner: Organisation
) -> None:
    # Four run side by side in the one slot there is; the others find no room.
    made = bundle(
        owner,
        zone,
        all_or_none=False,
        sweep={"training.seed": [1, 2, 3, 4, 5]},
        price_micros=100_001,
        deadline_at=market.slot_at(zone, 102),
    )
    assert get_wallet(organisation=owner).held_micros == 5 * 100_001
    decide_pending_bids(zone=zone, now=NOW)
    assert kinds(zone)[-6:] == ["BidsReceived", *["BidArrived"] * 5]
    assert statuses(made) == [BidStatus.ADMITTED] * 4 + [BidStatus.REFUSED]
    assert get_wallet(organisation=owner) == Wallet(available_micros=9_600_000, held_micros=0)
    # All or none: none.
    whole = bundle(owner, zone, sweep={"training.seed": [*range(16)]}, price_micros=9_000_000,
                   deadline_at=market.slot_at(zone, 104))  # fmt: skip
    decide_pending_bids(zone=zone, now=NOW)
    whole.refresh_from_db()
    assert (whole.refusal, set(statuses(whole))) == ("capacity", {BidStatus.REFUSED})
    assert verify_zone(zone).problems == []


def test_a_bundle_is_received_whole_whatever_the_limit_of_a_batch_is(
    zone: Zone, owner: Organisation
) -> None:
    first = market.bid(owner, zone, price_micros=1_000_000)
    made = bundle(owner, zone)
    with enter_lane(zone=zone, now=NOW) as lane:
        assert receive_bids(lane, limit=2) == 4
    cancel_bid(bid=made.bids.order_by("arrival")[1], now=NOW)
    decide_pending_bids(zone=zone, now=NOW)
    first.refresh_from_db()
    assert (first.status, statuses(made)) == (BidStatus.ADMITTED, [BidStatus.CANCELLED] * 3)
    assert get_wallet(organisation=owner) == Wallet(available_micros=9_900_000, held_micros=0)
    assert verify_zone(zone).problems == []


def test_a_job_of_a_bundle_is_settled_as_any_other(zone: Zone, owner: Organisation) -> None:
    made = bundle(owner, zone)
    decide_pending_bids(zone=zone, now=NOW)
    job = Job.objects.get(bid_id=made.bids.order_by("arrival")[0].pk)
    Job.objects.filter(pk=job.pk).update(
        status="failed", fault="system", failure_reason="its node died", finished_at=NOW
    )
    settle_finished(now=NOW)
    assert get_wallet(organisation=owner).available_micros == 9_800_000
    assert check_ledger().balanced
    assert verify_zone(zone).problems == []


def test_the_quote_of_a_bundle_is_what_it_pays_in_all_and_for_each(
    zone: Zone, owner: Organisation
) -> None:
    of = asked(owner, zone, sweep={"training.epochs": [1, 2]})
    quote = make_bundle_quote(asked=of, now=NOW)
    assert quote.price_micros == 3 * market.CELL_MICROS
    assert [(job.label, job.price_micros) for job in quote.jobs] == [
        ("epochs 1", 100_000),
        ("epochs 2", 200_000),
    ]
    assert [point.price_micros for point in quote.curve] == [3 * market.CELL_MICROS]
    assert quote.curve[0].deadline_at == market.slot_at(zone, 103) - timedelta(seconds=1)
    made = place_bundle(asked=of, now=NOW)
    decide_pending_bids(zone=zone, now=NOW)
    made.refresh_from_db()
    assert made.payment_micros == quote.price_micros


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"sweep": {}}, "invalid_sweep"),
    ({"sweep": {"training.seed": [1]}}, "invalid_sweep"),
    ({"sweep": {"training.seed": [*range(17)]}}, "invalid_sweep"),
    ({"sweep": {"training.seed": [1, 1]}}, "invalid_sweep"),
    ({"sweep": {"training.seed": []}}, "invalid_sweep"),
    ({"sweep": {"training.sequence_length": [64, 128]}}, "invalid_sweep"),
    ({"sweep": {"adapter.rank": [8, -1]}}, "invalid_hyperparameter"),
    ({"model": "warm:offer"}, "invalid_sweep"),
    ({"price_micros": 0}, "invalid_price"),
    ({"price_micros": 2}, "invalid_price"),
]


def test_a_bundle_that_cannot_be_is_refused_and_leaves_no_trace(
    zone: Zone, owner: Organisation
) -> None:
    data = market.dataset(owner, zone)
    for changed, code in REFUSED:
        with pytest.raises(UserError) as caught:
            bundle(owner, zone, data=data, **changed)
        assert caught.value.code == code
        assert_no_trace(owner)


def test_data_that_a_vendor_must_prepare_are_prepared_for_one_job_first(
    zone: Zone, owner: Organisation
) -> None:
    data = market.dataset(owner, zone)
    data.needs_preparation = True
    for attempt in (
        lambda: bundle(owner, zone, data=data),
        lambda: make_bundle_quote(asked=asked(owner, zone, data=data), now=NOW),
    ):
        with pytest.raises(UserError, match="Bid for one job with a preparation first") as refused:
            attempt()
        assert (refused.value.code, refused.value.param) == ("needs_preparation", "dataset_id")
    assert_no_trace(owner)


def test_one_file_is_held_out_of_all_jobs_and_another_file_is_another_request(
    zone: Zone, owner: Organisation
) -> None:
    data = market.dataset(owner, zone)
    first, second = (market.dataset(owner, zone, texts=[word]) for word in ("cat", "dog"))
    made = bundle(owner, zone, data=data, validation=first, idempotency_key="k")
    assert [bid.validation_dataset for bid in made.bids.all()] == [first] * 3
    with pytest.raises(Conflict):
        bundle(owner, zone, data=data, validation=second, idempotency_key="k")


def test_a_bundle_needs_all_of_its_money(zone: Zone, owner: Organisation) -> None:
    for changed in (
        {"price_micros": 10_000_001},
        {"price_micros": 4_000_000, "all_or_none": False},
    ):
        with pytest.raises(PaymentRequired):
            bundle(owner, zone, **changed)
        assert_no_trace(owner)


def assert_no_trace(owner: Organisation) -> None:
    assert not Bid.objects.exists()
    assert not Bundle.objects.exists()
    assert not Hold.objects.exists()
    assert Entry.objects.count() == 1  # the grant of the wallet
    assert get_wallet(organisation=owner) == Wallet(available_micros=10_000_000, held_micros=0)


def test_the_same_key_is_the_same_bundle_and_another_request_under_it_a_conflict(
    zone: Zone, owner: Organisation
) -> None:
    data = market.dataset(owner, zone)
    first = bundle(owner, zone, data=data, idempotency_key="k")
    assert bundle(owner, zone, data=data, idempotency_key="k") == first
    assert Bid.objects.count() == 3
    with pytest.raises(Conflict):
        bundle(owner, zone, data=data, idempotency_key="k", all_or_none=False)


def test_verify_finds_an_altered_bundle(zone: Zone, owner: Organisation) -> None:
    made = bundle(owner, zone)
    decide_pending_bids(zone=zone, now=NOW)
    Bundle.objects.filter(pk=made.pk).update(payment_micros=1)
    [problem] = verify_zone(zone).problems
    assert f"payment_micros is 1, the log has {3 * market.CELL_MICROS}" in problem


def test_what_a_bundle_paid_counts_for_the_caps_that_it_was_placed_under(
    zone: Zone, owner: Organisation
) -> None:
    key, _ = builders.api_key(owner)
    person = builders.owner_of(owner)
    for member_id, key_id in ((person.pk, None), (None, key.pk)):
        set_cap(
            organisation=owner,
            member_id=member_id,
            api_key_id=key_id,
            period="day",
            amount_micros=1_000_000,
        )
    bundle(owner, zone, placed_by=person, api_key_id=key.pk)
    decide_pending_bids(zone=zone, now=NOW)
    caps = SpendingCap.objects.all()
    assert [sum_spent(cap, now=NOW) for cap in caps] == [3 * market.CELL_MICROS] * 2
    for spender in ({"placed_by": person}, {"api_key_id": key.pk}):
        with pytest.raises(NotAllowed, match=r"\$0.70 is left of it"):
            bundle(owner, zone, **{"placed_by": None} | spender)
    bundle(owner, zone, placed_by=None)


def test_every_field_of_what_a_bundle_asks_for_counts(zone: Zone, owner: Organisation) -> None:
    first = asked(owner, zone, validation=market.dataset(owner, zone, rows=20), verified_only=False)
    changed: dict[str, Any] = {
        "zone": market.zone(),
        "dataset": market.dataset(owner, zone, rows=30),
        "name": "other",
        "adapter": {"rank": 2},
        "training": {"epochs": 7},
        "sweep": {"training.seed": [1, 2]},
        "all_or_none": False,
        "price_micros": 1,
        "deadline_at": NOW,
        "validation": None,
        "preparation": {},
        "model": "ft:other",
        "verified_only": True,
        "metadata": {"run": "7"},
        "deadline_s": 60.0,
    }
    for name, value in changed.items():
        assert replace(first, **{name: value}).request_hash != first.request_hash, name
    beside = {"organisation", "placed_by", "api_key_id", "idempotency_key", "is_deadline_cut"}
    assert {each.name for each in fields(NewBundle)} - beside == set(changed)
    assert replace(first, idempotency_key="two").request_hash == first.request_hash
