"""``/api/bids`` without a price: told, then taken or left."""

from __future__ import annotations

import pytest

from marketplace.auction.book.verify import verify_zone
from marketplace.auction.models import Bid
from marketplace.jobs.models import Job
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.selectors import get_wallet
from tests import builders
from tests import market_builders as market
from tests.unit.marketplace.api.client import Api, assert_problem, body_of

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def zone():
    """One whose slots are so long that none ends meanwhile."""
    made = market.zone(slot_s=3600)
    market.node(made)
    return made


def ask(api, zone, *, key: str | None = None, **changed):
    """Ask for a price by the beat of a quote, as a client does."""
    body = body_of(api, zone, price=None, deadline="5h")
    asked = {name: body[name] for name in ("zone", "dataset_id", "deadline", "training")}
    quote = api.post("/api/quotes", asked).json()
    return quote, api.post("/api/bids", body | {"beat": quote["beat"]} | changed, key=key)


def test_the_price_is_the_quotes_and_is_paid_if_it_is_taken(api, zone, lane):
    quote, answer = ask(api, zone)
    assert answer.status_code == 200, answer.content
    bid = answer.json()
    assert (bid["status"], bid["price"], bid["decision"], bid["job_id"]) == (
        "priced",
        None,
        None,
        None,
    )
    assert bid["offer"]["price"] == quote["posted_price"]
    assert bid["offer"]["answer_by"] > bid["created_at"]
    assert (bid["offer"]["takes"], bid["offer"]["lapse"]) == (None, None)
    assert bid["receipt"]["bid_id"] == bid["id"]
    assert get_wallet(organisation=api.owner).held_micros == 0

    other = api.post(f"/api/bids/{bid['id']}/answer", {"take": True, "price": "0.09"})
    assert_problem(other, 409, "price_changed")
    answer = {"take": True, "price": quote["posted_price"]}
    taken = api.post(f"/api/bids/{bid['id']}/answer", answer)
    assert taken.status_code == 201, taken.content
    assert taken.json()["status"] == "admitted"
    assert taken.json()["decision"]["payment"] == quote["posted_price"]
    assert taken.json()["job_id"] == Job.objects.get().pk
    assert taken.json()["price"] is None
    assert api.get(f"/api/bids/{bid['id']}").json() == taken.json()
    assert api.post(f"/api/bids/{bid['id']}/answer", answer).status_code == 201
    left = api.post(f"/api/bids/{bid['id']}/answer", {"take": False})
    assert_problem(left, 409, "price_answered")
    assert check_ledger().balanced
    assert verify_zone(zone).problems == []


def test_who_leaves_the_price_has_all_of_its_money(api, zone, lane):
    _, answer = ask(api, zone)
    left = api.post(f"/api/bids/{answer.json()['id']}/answer", {"take": False})
    assert left.status_code == 200, left.content
    body = left.json()
    assert (body["status"], body["offer"]["takes"]) == ("refused", False)
    assert (body["decision"]["reason"], body["decision"]["payment"]) == ("price", None)
    assert body["decision"]["reason_text"] == "You left the price of $0.10."
    wallet = get_wallet(organisation=api.owner)
    assert (wallet.available_micros, wallet.held_micros) == (10_000_000, 0)
    assert not Job.objects.exists()


def test_the_same_request_again_is_the_same_price(api, zone, lane):
    body = body_of(api, zone, price=None, deadline="5h")
    quote, _ = ask(api, zone)
    body["beat"] = quote["beat"]
    first, again = (api.post("/api/bids", body, key="one") for _ in range(2))
    assert first.json()["id"] == again.json()["id"]
    assert again["Idempotent-Replayed"] == "true"


def test_a_price_of_another_beat_is_not_told(api, zone, lane):
    _, answer = ask(api, zone, beat="1.0")
    body = assert_problem(answer, 409, "price_lapsed")
    assert (body["lapse"], body["bid"]["status"]) == ("beat", "cancelled")
    again = api.post(f"/api/bids/{body['bid']['id']}/answer", {"take": True})
    assert assert_problem(again, 409, "price_lapsed")["lapse"] == "beat"


def test_one_without_a_plan_is_refused_with_its_reason(api, zone, lane):
    _, answer = ask(api, zone, training={"epochs": 50})
    body = assert_problem(answer, 402, "no_window")
    assert (body["reason"], body["bid"]["offer"]["lapse"]) == ("window", "window")


def test_who_cannot_pay_is_told_what_is_short(zone, lane):
    poor = Api(builders.organisation(usd="0.04"))
    _, answer = ask(poor, zone)
    refused = poor.post(f"/api/bids/{answer.json()['id']}/answer", {"take": True})
    assert assert_problem(refused, 402, "insufficient_funds")["short_by"] == "0.060001"
    assert get_wallet(organisation=poor.owner).available_micros == 40_000


@pytest.mark.parametrize(
    "changed",
    [{"price": None, "beat": None}, {"price": "5.00"}, {"beat": "now"}, {"beat": "1"}],
    ids=["neither", "both", "no beat", "no part"],
)
def test_a_bid_names_a_price_or_a_beat(api, zone, changed):
    _, answer = ask(api, zone, **changed)
    assert answer.status_code == 400, answer.content
    found = answer.json()["code"], answer.json()["param"]
    assert found in (("no_price", "price"), ("invalid_request", "beat"))
    assert not Bid.objects.exists()


def test_a_bid_with_a_price_has_none_to_answer(api, zone, lane):
    bid = api.post("/api/bids", body_of(api, zone, deadline="5h")).json()
    assert bid["offer"] is None
    refused = api.post(f"/api/bids/{bid['id']}/answer", {"take": True})
    assert_problem(refused, 409, "not_priced")


def test_nobody_else_answers_it(api, zone, lane):
    _, answer = ask(api, zone)
    stranger = Api(builders.organisation(usd="10"))
    refused = stranger.post(f"/api/bids/{answer.json()['id']}/answer", {"take": True})
    assert_problem(refused, 404, "unknown_bid")


def test_a_bid_that_was_taken_back_is_the_same_when_it_is_sent_again(api, zone, lane):
    body = body_of(api, zone, price=None, deadline="5h")
    quote, _ = ask(api, zone)
    body["beat"] = quote["beat"]
    first = api.post("/api/bids", body, key="one").json()
    assert api.post(f"/api/bids/{first['id']}/cancel", {}).status_code == 200
    again = api.post("/api/bids", body, key="one")
    assert (again.status_code, again.json()["status"]) == (200, "cancelled")
    refused = api.post(f"/api/bids/{first['id']}/answer", {"take": True})
    assert_problem(refused, 409, "bid_cancelled")


def test_a_price_of_nothing_can_be_taken(api, lane):
    free = market.zone(slot_s=3600)
    market.node(free, ask_micros=0)
    _, answer = ask(api, free)
    told = answer.json()["offer"]["price"]
    assert told == "0.000000"
    taken = api.post(f"/api/bids/{answer.json()['id']}/answer", {"take": True, "price": told})
    assert taken.status_code == 201, taken.content
    assert taken.json()["decision"]["payment"] == "0.000000"
