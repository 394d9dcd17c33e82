"""``/api/bids`` over HTTP, with a lane behind it."""

from __future__ import annotations

from datetime import datetime, timedelta
from urllib.parse import urlencode

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import transaction
from django.test import Client

from marketplace.api.market import owned
from marketplace.auction.bidding import wait
from marketplace.auction.bidding.deadlines import find_latest_deadline
from marketplace.auction.book.verify import verify_zone
from marketplace.auction.models import Bid
from marketplace.common import clock
from marketplace.jobs.models import Job, Upload
from marketplace.jobs.services import intake
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.models import Hold
from marketplace.payments.selectors import get_wallet
from tests import builders
from tests import market_builders as market
from tests.durable_work import do_at_once
from tests.unit.marketplace.api.client import ROWS, Api, assert_problem, body_of
from tests.unit.marketplace.common.threads import at_once
from workers.protocol.setting_list import list_settings

pytestmark = pytest.mark.django_db(transaction=True)


def test_bid_is_decided_in_the_same_request(api, zone, lane):
    answer = api.post("/api/bids", body_of(api, zone))
    assert answer.status_code == 201, answer.content
    bid = answer.json()
    assert answer["Location"] == f"/api/bids/{bid['id']}"
    assert bid["status"] == "admitted"
    assert bid["price"] == "5.000000"
    assert bid["decision"]["payment"] == "0.100000"
    assert bid["decision"]["price_parts"]["operational"] == "0.100000000"
    assert len(bid["decision"]["plan"]) == 1
    assert bid["job_id"] == Job.objects.get().pk
    assert api.get(f"/api/bids/{bid['id']}").json() == bid
    assert api.get(f"/api/jobs/{bid['job_id']}").json()["plan"] == bid["decision"]["plan"]
    assert get_wallet(organisation=api.owner).available_micros == 9_900_000


def test_metadata_stand_with_the_bid_and_its_job_and_make_another_request(api, zone, lane):
    pairs = {f"k{n}": "v" * 512 for n in range(15)} | {"k" * 64: ""}
    bid = api.post("/api/bids", body_of(api, zone, metadata=pairs), key="one").json()
    assert bid["metadata"] == pairs
    assert api.get(f"/api/jobs/{bid['job_id']}").json()["metadata"] == pairs
    assert Bid.objects.get().terms.metadata == Job.objects.get().terms.metadata == pairs
    body = body_of(api, zone, metadata={})
    body["dataset_id"] = bid["dataset_id"]
    assert_problem(api.post("/api/bids", body, key="one"), 409, "idempotency_key_reused")
    assert Bid.objects.count() == 1


@pytest.mark.parametrize(
    "pairs", [{str(n): "" for n in range(17)}, {"k" * 65: ""}, {"k": "v" * 513}, {"k": None}, "k"]
)
def test_metadata_that_are_too_much_are_refused_by_name(api, zone, pairs):
    body = assert_problem(
        api.post("/api/bids", body_of(api, zone, metadata=pairs)), 400, "invalid_request"
    )
    assert body["param"].startswith("metadata")
    assert not Bid.objects.exists()


def test_the_published_defaults_are_taken(api, zone, lane):
    settings = {
        group: {each.name: each.default for each in list_settings(group)}
        for group in ("adapter", "training")
    }
    bid = api.post("/api/bids", body_of(api, zone, **settings)).json()
    assert bid["status"] == "admitted", bid
    left_out = api.post("/api/bids", body_of(api, zone, adapter={}, training={})).json()
    assert (bid["adapter"], bid["training"]) == (left_out["adapter"], left_out["training"])


def test_settings_by_other_trainers_names_are_the_same_request(api, zone, lane):
    body = body_of(api, zone, adapter={"r": 4, "lora_alpha": 8}, training={"lr": 1e-4})
    bid = api.post("/api/bids", body, key="one").json()
    assert (bid["adapter"]["rank"], bid["adapter"]["alpha"]) == (4, 8.0)
    assert bid["training"]["learning_rate"] == 1e-4
    body |= {"adapter": {"rank": 4, "alpha": 8}, "training": {"learning_rate": 1e-4}}
    assert api.post("/api/bids", body, key="one").json()["id"] == bid["id"]


def test_an_unknown_setting_is_refused_with_the_nearest(api, zone):
    answer = api.post("/api/bids", body_of(api, zone, training={"epoch": 1}))
    body = assert_problem(answer, 400, "invalid_hyperparameter")
    assert body["param"] == "training.epoch"
    assert body["detail"].startswith(
        "There is no setting training.epoch; the nearest is epochs; there are epochs, batch_size,"
    )
    assert not Bid.objects.exists()


def test_refused_bid_carries_its_id_its_reason_and_what_would_win(api, zone, lane):
    answer = api.post("/api/bids", body_of(api, zone, price="0.05"))
    body = assert_problem(answer, 402, "bid_below_price")
    assert body["reason"] == "price"
    assert body["posted_price"] == "0.100000"
    assert body["bid"]["id"] == Bid.objects.get().pk
    assert body["bid"]["status"] == "refused"
    assert answer["x-should-retry"] == "false"
    assert "Bid more than the posted price" in body["detail"]
    assert get_wallet(organisation=api.owner).available_micros == 10_000_000


def test_bid_that_is_not_decided_in_time_is_accepted_with_where_to_look(api, zone, monkeypatch):
    monkeypatch.setattr("marketplace.auction.bidding.wait.WAIT_S", 0.1)
    answer = api.post("/api/bids", body_of(api, zone), key="again")
    assert answer.status_code == 202
    bid = answer.json()
    assert (bid["status"], bid["decision"]) == ("pending", None)
    assert answer["Location"] == f"/api/bids/{bid['id']}"
    assert answer["Retry-After"] == "1"


def test_a_time_from_now_is_one_request_however_often_it_is_sent(api, zone, lane):
    body = body_of(api, zone, deadline="5m")
    first, again = (api.post("/api/bids", body, key="one") for _ in range(2))
    assert first.status_code == 201, first.content
    assert again.json() == first.json()
    left = datetime.fromisoformat(first.json()["deadline"]) - clock.now()
    assert timedelta(seconds=240) < left <= timedelta(seconds=300)
    assert "deadline" not in first.json()["choices"]
    other = api.post("/api/bids", body | {"deadline": "300 s"}, key="one")
    assert other.json()["id"] == first.json()["id"]
    assert_problem(
        api.post("/api/bids", body | {"deadline": "6m"}, key="one"), 409, "idempotency_key_reused"
    )


def test_a_time_from_now_beyond_what_is_on_sale_is_cut_and_the_answer_says_so(api, zone, lane):
    body = body_of(api, zone, deadline="365d")
    quote = {name: body[name] for name in body if name not in ("name", "price")}
    sweep = body | {"sweep": {"training.seed": [1, 2]}}
    for path, asked in (("/api/bids", body), ("/api/quotes", quote), ("/api/bundles", sweep)):
        before = find_latest_deadline(zone, now=clock.now())
        answer = api.post(path, asked).json()
        answer = answer["bids"][0] if "bids" in answer else answer
        after = find_latest_deadline(zone, now=clock.now())
        assert before <= datetime.fromisoformat(answer["deadline"]) <= after
        assert answer["choices"]["deadline"].startswith("The latest on sale")


def test_pending_bid_sent_again_under_its_key_is_answered_with_its_decision(
    api, zone, request, monkeypatch
):
    body = body_of(api, zone)
    monkeypatch.setattr(wait, "WAIT_S", 0.1)
    first = api.post("/api/bids", body, key="again")
    assert first.status_code == 202
    request.getfixturevalue("lane")
    monkeypatch.setattr(wait, "WAIT_S", 20)
    second = api.post("/api/bids", body, key="again")
    assert second.status_code == 201
    assert second.json()["id"] == first.json()["id"]
    assert Bid.objects.count() == 1


def test_same_key_and_body_is_answered_the_same_and_bids_once(api, zone, lane):
    body = body_of(api, zone)
    first = api.post("/api/bids", body, key="k1")
    second = api.post("/api/bids", body, key="k1")
    assert first.status_code == second.status_code == 201
    assert first.json() == second.json()
    assert second["Idempotent-Replayed"] == "true"
    assert Bid.objects.count() == 1


def test_same_key_with_another_body_is_a_conflict(api, zone, lane):
    body = body_of(api, zone)
    api.post("/api/bids", body, key="k1")
    answer = api.post("/api/bids", body | {"price": "6.00"}, key="k1")
    assert_problem(answer, 409, "idempotency_key_reused")
    assert Bid.objects.count() == 1


def test_same_key_in_parallel_requests_bids_once(api, zone, lane):
    body = body_of(api, zone)
    answers = at_once([lambda: api.post("/api/bids", body, key="k1")] * 6)
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert Bid.objects.count() == 1


def test_refused_bid_is_not_decided_again_under_its_key(api, zone, lane):
    body = body_of(api, zone, price="0.05")
    first = api.post("/api/bids", body, key="k1")
    second = api.post("/api/bids", body, key="k1")
    assert (first.status_code, second.status_code) == (402, 402)
    assert second.json()["bid"]["id"] == first.json()["bid"]["id"]
    assert Bid.objects.count() == 1


def test_request_that_did_nothing_may_be_put_right_under_its_key(api, zone, lane):
    body = body_of(api, zone, price="50.00")
    refused = api.post("/api/bids", body, key="k1")
    assert_problem(refused, 402, "insufficient_funds")
    builders.fund_wallet(api.owner, usd="90")
    assert api.post("/api/bids", body, key="k1").status_code == 201


@pytest.mark.parametrize("key", ["", "x" * 256, "a\tb"])
def test_keys_that_cannot_be_kept_are_refused(api, zone, key):
    headers = api.headers | {"Idempotency-Key": key}
    answer = Client().post(
        "/api/bids", data=body_of(api, zone), content_type="application/json", headers=headers
    )
    assert_problem(answer, 400, "invalid_idempotency_key")


@pytest.mark.parametrize(
    ("changed", "status", "code"),
    [
        ({"price": "0"}, 400, "invalid_price"),
        ({"price": "-1"}, 400, "invalid_price"),
        ({"price": "NaN"}, 400, "invalid_price"),
        ({"price": "1e999"}, 400, "invalid_price"),
        ({"price": "0.0000001"}, 400, "invalid_price"),
        ({"price": True}, 400, "invalid_price"),
        ({"price": []}, 400, "invalid_price"),
        ({"price": None}, 400, "no_price"),
        ({"deadline": "2020-01-01T00:00:00Z"}, 400, "invalid_deadline"),
        ({"deadline": "2100-01-01T00:00:00Z"}, 400, "invalid_deadline"),
        ({"deadline": "2026-11-21T06:00:00"}, 400, "invalid_deadline"),
        ({"deadline": "2026-13-41T06:00:00Z"}, 400, "invalid_deadline"),
        ({"deadline": "soon"}, 400, "invalid_deadline"),
        ({"deadline": "0m"}, 400, "invalid_deadline"),
        ({"deadline": "-6h"}, 400, "invalid_deadline"),
        ({"deadline": 5}, 400, "invalid_deadline"),
        ({"zone": "nowhere"}, 404, "unknown_zone"),
        ({"dataset_id": "ds_nothing"}, 404, "unknown_dataset"),
        ({"dataset_id": "a\0b"}, 400, "invalid_request"),
        ({"dataset_id": None}, 400, "invalid_request"),
        ({"training": {"epochs": 0}}, 400, "invalid_hyperparameter"),
        ({"training": "epochs"}, 400, "invalid_request"),
        ({"training": []}, 400, "invalid_request"),
        ({"adapter": {"rank": "big"}}, 400, "invalid_hyperparameter"),
        ({"dead_line": "soon"}, 400, "invalid_request"),
        ({"name": "x" * 100}, 400, "invalid_request"),
        ({"price": "50"}, 402, "insufficient_funds"),
    ],
)
def test_bids_that_cannot_be_taken_are_answered_in_words_and_leave_no_trace(
    api, zone, changed, status, code
):
    answer = api.post("/api/bids", body_of(api, zone, **changed))
    assert_problem(answer, status, code)
    assert not Bid.objects.exists()
    assert not Hold.objects.exists()


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "invalid_request"),
        (b"{", "malformed_request"),
        (b"[]", "invalid_request"),
        (b"null", "invalid_request"),
        (b'{"price": "1", "price": "2"}', "malformed_request"),
        (b'{"price": "1", "training": {"epochs": 1, "epochs": 9}}', "malformed_request"),
        (b'{"price": NaN}', "malformed_request"),
        (b'"\xff"', "malformed_request"),
        (b"[" * 100_000, "malformed_request"),
    ],
)
def test_bodies_that_are_no_bid_are_answered_in_words(api, zone, content, code):
    answer = Client().post(
        "/api/bids", data=content, content_type="application/json", headers=api.headers
    )
    assert_problem(answer, 400, code)


def test_other_content_types_are_refused(api):
    answer = Client().post(
        "/api/bids", data=b"<bid/>", content_type="text/xml", headers=api.headers
    )
    assert_problem(answer, 415, "unsupported_media_type")


def test_bid_of_somebody_else_is_not_there(api, zone, lane):
    bid = api.post("/api/bids", body_of(api, zone)).json()
    other = Api(builders.organisation())
    assert_problem(other.get(f"/api/bids/{bid['id']}"), 404, "unknown_bid")
    assert_problem(other.post(f"/api/bids/{bid['id']}/cancel"), 404, "unknown_bid")
    assert other.get("/api/bids").json() == {"data": [], "has_more": False}


def test_pending_bid_is_taken_back(api, zone, monkeypatch):
    monkeypatch.setattr("marketplace.auction.bidding.wait.WAIT_S", 0.05)
    bid = api.post("/api/bids", body_of(api, zone)).json()
    assert api.delete(f"/api/bids/{bid['id']}").status_code == 405
    for _ in range(2):
        cancelled = api.post(f"/api/bids/{bid['id']}/cancel")
        assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
    assert get_wallet(organisation=api.owner).available_micros == 10_000_000


def test_decided_bid_is_not_taken_back(api, zone, lane):
    bid = api.post("/api/bids", body_of(api, zone)).json()
    assert_problem(api.post(f"/api/bids/{bid['id']}/cancel"), 409, "bid_already_decided")


def test_bids_are_listed_newest_first_page_by_page(api, zone, lane):
    ids = [api.post("/api/bids", body_of(api, zone, price="0.20")).json() for _ in range(5)]
    ids = [item.get("id") or item["bid"]["id"] for item in ids]
    seen, after = [], ""
    while True:
        page = api.get(f"/api/bids?limit=2{after}").json()
        assert len(page["data"]) <= 2
        seen += [item["id"] for item in page["data"]]
        if not page["has_more"]:
            break
        after = f"&after={seen[-1]}"
    assert seen == sorted(ids, reverse=True)


def test_bids_are_chosen_by_name_zone_and_age_in_either_order(api, zone):
    made = [
        market.bid(api.owner, zone, name=name, price_micros=1_000_000)
        for name in ("first", "second", "second")
    ]
    ages = [clock.now() - timedelta(hours=hours) for hours in (3, 2, 1)]
    for bid, at in zip(made, ages, strict=True):
        Bid.objects.filter(pk=bid.pk).update(created_at=at)
    first, second, third = sorted(bid.pk for bid in made)

    def read(**query):
        page = api.get(f"/api/bids?{urlencode(query)}").json()
        return [item["id"] for item in page["data"]]

    assert read(order="asc") == [first, second, third]
    assert read(order="asc", after=first, limit=1) == [second]
    assert read(name="second") == [third, second]
    assert read(zone=zone.name, name="first") == [first]
    assert read(zone="elsewhere") == read(name="\0") == []
    assert read(created_after=ages[1].isoformat()) == [third, second]
    assert read(created_before=ages[1].isoformat()) == [first]
    # A plus that is not written as %2B comes as a space.
    plain = api.get(f"/api/bids?created_before={ages[1].isoformat()}").json()
    assert [item["id"] for item in plain["data"]] == [first]


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("limit=0", "invalid_limit"),
        ("limit=101", "invalid_limit"),
        ("limit=ten", "invalid_limit"),
        ("limit=²", "invalid_limit"),
        # Its first nine digits are 1.
        ("limit=00000000199999", "invalid_limit"),
        ("after=bid_nothing", "invalid_cursor"),
        ("after=%00", "invalid_cursor"),
        ("status=lost", "invalid_status"),
        ("stauts=pending", "unknown_parameter"),
        ("status=pending&status=admitted", "repeated_parameter"),
        ("order=price", "invalid_order"),
        ("created_after=yesterday", "invalid_moment"),
        ("created_before=2026-11-21T06:00:00", "invalid_moment"),
    ],
)
def test_pages_that_cannot_be_turned_to_are_refused(api, query, code):
    assert_problem(api.get(f"/api/bids?{query}"), 400, code)


def test_batch_answers_each_bid_for_itself_and_decides_in_order(api, zone, lane):
    bids = [
        body_of(api, zone),
        body_of(api, zone, price="0.01"),
        body_of(api, zone, price="NaN"),
        body_of(api, zone, zone="nowhere"),
        body_of(api, zone, price="1.00"),
    ]
    answer = api.post("/api/bids:batch", {"bids": bids}, key="b1")
    assert answer.status_code == 200, answer.content
    items = answer.json()["data"]
    assert [item["status"] for item in items] == [201, 402, 400, 404, 201]
    assert items[2]["body"]["code"] == "invalid_price"
    decided = Bid.objects.order_by("arrival")
    assert [bid.price_micros for bid in decided] == [5_000_000, 10_000, 1_000_000]
    positions = [bid.position for bid in decided]
    assert positions == sorted(positions)
    again = api.post("/api/bids:batch", {"bids": bids}, key="b1")
    assert again.json() == answer.json()
    assert Bid.objects.count() == 3
    assert verify_zone(zone).problems == []


@pytest.mark.parametrize("bids", [None, [], "all", [1], [{}] * 101])
def test_batches_that_are_none_are_refused(api, bids):
    assert_problem(api.post("/api/bids:batch", {"bids": bids}), 400, "invalid_request")


def upload_slowly(api, monkeypatch, content=ROWS):
    """A file that is stored and waits for its reader, who is given with its id."""
    left = []
    monkeypatch.setattr(intake, "enqueue_work", lambda *works: left.extend(works))
    monkeypatch.setattr(owned, "READ_WITHIN_S", 0.0)
    answer = api.form("/api/datasets", {"file": SimpleUploadedFile("talk.jsonl", content)})
    assert answer.status_code == 202, answer.content

    @transaction.atomic
    def read():
        do_at_once(*left)

    return answer.json()["id"], read


def test_an_upload_that_is_being_read_is_quoted_and_bid_for_once_it_is(
    api, tokenizer_zone, lane, monkeypatch
):
    upload, read = upload_slowly(api, monkeypatch)
    body = body_of(api, tokenizer_zone, dataset_id=upload)
    quote = {name: body[name] for name in body if name not in ("name", "price")}
    for path, asked in (("/api/bids", body), ("/api/quotes", quote)):
        refused = assert_problem(api.post(path, asked, key="k"), 409, "upload_not_read")
        assert (refused["upload_id"], refused["param"]) == (upload, "dataset_id")
        assert refused["retry"] is True
    assert not Bid.objects.exists()
    read()
    dataset = Upload.objects.get(pk=upload).dataset_id
    assert api.post("/api/quotes", quote).json()["posted_price"] is not None
    bid = api.post("/api/bids", body, key="k")
    assert (bid.status_code, bid.json()["dataset_id"]) == (201, dataset)
    batch = api.post("/api/bids:batch", {"bids": [body, body | {"dataset_id": "up_none"}]}).json()
    assert [item["status"] for item in batch["data"]] == [201, 404]


def test_a_bid_for_an_upload_that_is_no_data_names_the_lines(api, zone, monkeypatch):
    upload, read = upload_slowly(api, monkeypatch, b'{"messages": []}\n{"mess\n')
    read()
    answer = api.post("/api/bids", body_of(api, zone, dataset_id=upload))
    assert assert_problem(answer, 400, "invalid_dataset")["errors"][0]["line"] == 1
    other = Api(builders.organisation())
    answer = other.post("/api/bids", body_of(other, zone, dataset_id=upload))
    assert_problem(answer, 404, "unknown_upload")
    assert not Bid.objects.exists()


def test_books_balance_after_a_crowd_of_parallel_bids(api, zone, lane):
    others = [Api(builders.organisation(usd="10")) for _ in range(4)]
    bodies = [body_of(one, zone, price="0.50") for one in others for _ in range(3)]
    answers = at_once(
        [
            lambda one=one, body=body: one.post("/api/bids", body)
            for one, body in zip([one for one in others for _ in range(3)], bodies, strict=True)
        ]
    )
    assert {answer.status_code for answer in answers} <= {201, 402}
    assert Bid.objects.exclude(status="pending").count() == 12
    assert check_ledger().balanced
    assert verify_zone(zone).problems == []


def test_a_bundle_is_quoted_placed_and_read_and_a_refused_one_says_why(api, zone, lane):
    body = body_of(api, zone, sweep={"training.seed": [1, 2]})
    price = body.pop("price")
    quoted = {name: value for name, value in body.items() if name != "name"}
    quote = api.post("/api/bundles/quotes", quoted).json()
    assert quote["posted_price"] == "0.200000"
    assert [job["posted_price"] for job in quote["jobs"]] == ["0.100000"] * 2
    answer = api.post("/api/bundles", body | {"price": price}, key="once")
    assert answer.status_code == 201, answer.content
    bundle = answer.json()
    assert answer["Location"] == f"/api/bundles/{bundle['id']}"
    assert (bundle["status"], bundle["payment"]) == ("admitted", "0.200000")
    assert [bid["bundle_id"] for bid in bundle["bids"]] == [bundle["id"]] * 2
    assert {bid["job_id"] for bid in bundle["bids"]} == {job.pk for job in Job.objects.all()}
    assert api.get(f"/api/bundles/{bundle['id']}").json() == bundle
    assert api.post("/api/bundles", body | {"price": price}, key="once").json() == bundle
    assert Job.objects.count() == 2
    refused = assert_problem(
        api.post("/api/bundles", body | {"price": "0.2"}), 402, "bid_below_price"
    )
    assert refused["bundle"]["posted_price"] == "0.200000"
    assert [bid["status"] for bid in refused["bundle"]["bids"]] == ["refused"] * 2
    for more, why in (
        ({"preparation": {}}, "A vendor prepares data for one job."),
        ({"model": "warm:offer"}, "A warm start is for one job."),
    ):
        answer = api.post("/api/bundles", body | {"price": price} | more)
        assert answer.status_code == 400
        assert why in answer.json()["detail"]
    body["sweep"] = {"training.seed": 1}
    assert_problem(api.post("/api/bundles", body | {"price": price}), 400, "invalid_request")
    assert get_wallet(organisation=api.owner).available_micros == 9_800_000
    assert verify_zone(zone).problems == []
