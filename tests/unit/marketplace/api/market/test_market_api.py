"""The rest of ``/api``: keys, quotes, zones, data sets, jobs, limits."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.core.cache import cache
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from marketplace.api.kept_answers import sweep_records
from marketplace.api.models import IdempotencyRecord
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.lane.sweep import refresh_zone
from marketplace.auction.models import LogEntry, MarketHead
from marketplace.auction.settlement import settle_finished
from marketplace.common import clock
from marketplace.jobs.models import Dataset, Job
from marketplace.jobs.services import dispatch_slots
from tests import builders
from tests import market_builders as market
from tests.pages import read_download
from tests.unit.marketplace.api.client import ROWS, Api, assert_problem, body_of
from workers.protocol.reports import SliceEnd, TextSample

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _no_counters():
    cache.clear()


def sold(api, zone):
    now = clock.now()
    bid = market.bid(api.owner, zone, slots=30, epochs=3, now=now)
    decide_pending_bids(zone=zone, now=now)
    bid.refresh_from_db()
    return bid, Job.objects.get(bid_id=bid.pk)


def test_schema_is_openapi_3_1_and_names_every_address():
    answer = Client().get("/api/schema")
    assert answer.status_code == 200
    document = answer.json()
    assert document["openapi"] == "3.1.0"
    assert set(document["paths"]) >= {
        "/api/bids",
        "/api/bids:batch",
        "/api/bids/{bid_id}",
        "/api/quotes",
        "/api/datasets",
        "/api/jobs",
        "/api/jobs/{job_id}/events",
        "/api/zones",
        "/api/market/{zone_name}",
    }
    assert set(document["paths"]["/api/bids"]["post"]["responses"]) >= {"201", "202", "402"}


def test_unknown_addresses_answer_with_a_problem():
    assert_problem(Client().get("/api/nothing"), 404, "not_found")
    assert_problem(Client().post("/api/v9/bids"), 404, "not_found")


def test_other_methods_are_refused(api):
    assert_problem(api.delete("/api/zones"), 405, "method_not_allowed")


def test_request_id_of_the_caller_comes_back_unless_it_is_hostile(api):
    given = Client().get("/api/zones", headers={"X-Request-Id": "mine-1"})
    assert given["X-Request-Id"] == "mine-1"
    hostile = Client().get("/api/zones", headers={"X-Request-Id": "a b" * 200})
    assert hostile["X-Request-Id"].startswith("req_")


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (None, "not_signed_in"),
        ("Bearer ft_wrong_key", "invalid_api_key"),
        ("Bearer ", "invalid_api_key"),
        ("Basic abc", "invalid_api_key"),
    ],
)
def test_without_a_good_key_nothing_is_shown(header, code):
    headers = {} if header is None else {"Authorization": header}
    answer = Client().get("/api/bids", headers=headers)
    assert_problem(answer, 401, code)
    assert answer["WWW-Authenticate"].startswith("Bearer")


def test_key_needs_the_scope(zone):
    reader = Api(builders.organisation(usd="10"), scopes=["bids:read"])
    assert reader.get("/api/bids").status_code == 200
    body = assert_problem(reader.post("/api/bids", body_of(reader, zone)), 403, "missing_scope")
    assert body["scope"] == "bids:write"
    assert_problem(reader.get("/api/jobs"), 403, "missing_scope")


def test_session_acts_for_its_person_and_needs_the_csrf_token(zone):
    owner = builders.organisation(usd="10")
    person = builders.owner_of(owner)
    client = Client(enforce_csrf_checks=True)
    client.force_login(person)
    headers = {"Finetender-Organisation": owner.pk}
    assert client.get("/api/bids", headers=headers).status_code == 200
    answer = client.post("/api/bids", data={}, content_type="application/json", headers=headers)
    assert_problem(answer, 403, "not_allowed")
    theirs = builders.organisation()
    answer = client.get("/api/bids", headers={"Finetender-Organisation": theirs.pk})
    assert_problem(answer, 403, "not_a_member")


def test_too_many_requests_are_told_when_to_come_back(api, settings):
    settings.API_REQUESTS_PER_MINUTE = settings.API_REQUESTS_PER_MINUTE | {"read": 2}
    first = api.get("/api/bids")
    assert first["RateLimit-Policy"] == '"read";q=2;w=60'
    assert first["RateLimit"].startswith('"read";r=1;t=')
    assert first["x-ratelimit-limit-requests"] == "2"
    assert first["x-ratelimit-remaining-requests"] == "1"
    assert first["x-ratelimit-reset-requests"] == first["RateLimit"].rpartition("t=")[2] + "s"
    api.get("/api/bids")
    answer = api.get("/api/bids")
    assert_problem(answer, 429, "too_many_requests")
    assert 1 <= int(answer["Retry-After"]) <= 61
    other = Api(builders.organisation())
    assert other.get("/api/bids").status_code == 200


def test_more_keys_do_not_raise_an_organisations_limit(api, settings):
    settings.API_REQUESTS_PER_MINUTE = settings.API_REQUESTS_PER_MINUTE | {"read": 1}
    assert api.get("/api/bids").status_code == 200
    assert_problem(Api(api.owner).get("/api/jobs"), 429, "too_many_requests")


def test_cancellations_have_a_limit_of_their_own(api, zone, settings):
    of_kinds = {"cancels": 1, "quotes": 1}
    settings.API_REQUESTS_PER_MINUTE = settings.API_REQUESTS_PER_MINUTE | of_kinds
    _, job = sold(api, zone)
    asked = f"/api/jobs/{job.pk}/cancel"
    # Each may search for a price; a refused one counts.
    assert_problem(api.post(asked, {"refund_at_least": "9"}), 409, "refund_changed")
    assert_problem(api.post(asked), 429, "too_many_requests")
    assert api.get(asked).json()["can_cancel"] is True
    assert_problem(api.get(asked), 429, "too_many_requests")
    assert api.get(f"/api/jobs/{job.pk}").json()["status"] == "queued"


def test_a_transcript_can_be_fetched_less_often_than_other_pages(api, zone, settings, client):
    sold(api, zone)
    settings.API_REQUESTS_PER_MINUTE = settings.API_REQUESTS_PER_MINUTE | {"transcripts": 1}
    page, address = f"/market/{zone.name}/transcript", f"/api/market/{zone.name}/transcript"
    assert client.get(page).status_code == 200
    refused = client.get(page)
    assert refused.status_code == 429
    assert "Too many requests from your address" in refused.content.decode()
    assert client.get(f"/market/{zone.name}").status_code == 200
    assert api.get(address).status_code == 200
    assert_problem(api.get(address), 429, "too_many_requests")


def test_a_cursor_does_not_tell_whether_somebody_else_has_such_a_row(api, zone):
    theirs = market.bid(builders.organisation(usd="10"), zone)
    found = api.get(f"/api/bids?after={theirs.pk}")
    nothing = api.get(f"/api/bids?after=bid_{'0' * 26}")
    assert (found.status_code, nothing.status_code) == (200, 200)
    assert found.json() == nothing.json() == {"data": [], "has_more": False}


def test_quote_gives_price_plan_curve_and_where_it_holds(api, zone):
    refresh_zone(zone=zone, now=clock.now())
    body = body_of(api, zone, price=None, name=None)
    asked_at = clock.now().isoformat()
    answer = api.post("/api/quotes", body)
    assert answer.status_code == 200, answer.content
    quote = answer.json()
    assert quote["posted_price"] == "0.100000"
    assert len(quote["plan"]) == 1
    assert quote["curve"][0]["price"] == "0.100000"
    assert quote["work"]["samples"] == 90
    assert quote["head_hash"] == MarketHead.objects.get().head_hash
    assert quote["expires_at"] > asked_at
    assert quote["reason"] is None


def test_quote_for_what_does_not_fit_says_why(api, zone):
    refresh_zone(zone=zone, now=clock.now())
    body = body_of(api, zone, price=None, name=None, training={"epochs": 50, "batch_size": 8})
    quote = api.post("/api/quotes", body).json()
    assert quote["posted_price"] is None
    assert quote["reason"] == "window"
    assert quote["reason_text"]


def test_zones_and_market_are_public_and_hold_no_bids(api, zone):
    bid, _ = sold(api, zone)
    [shown] = Client().get("/api/zones").json()["data"]
    assert (shown["name"], shown["nodes_on_sale"]) == (zone.name, 1)
    now = Client().get(f"/api/market/{zone.name}")
    assert now.status_code == 200
    text = now.content.decode()
    assert bid.pk in text
    assert str(bid.price_micros) not in text
    assert "5.000000" not in text
    assert api.owner.pk not in text
    assert now.json()["decisions"][0]["payment"] == "0.300000"
    assert_problem(Client().get("/api/market/nowhere"), 404, "unknown_zone")


def test_log_shows_what_others_bid_only_where_that_is_published(api, zone, settings):
    bid, _ = sold(api, zone)
    path = f"/api/market/{zone.name}/transcript"

    def lines():
        return [json.loads(line) for line in read_download(api.get(path)).splitlines()]

    closed = lines()
    assert len(closed) == 1 + LogEntry.objects.count()
    assert closed[0]["bids_left_out"] is True
    assert closed[-1]["hash"] == MarketHead.objects.get().head_hash
    tasks = [line["event"]["task"] for line in closed[1:] if "task" in line["event"]]
    assert [("bid" in task, len(task["bid_commitment"])) for task in tasks] == [(False, 64)]
    assert "salt" not in json.dumps(closed)

    settings.PUBLISH_BIDS = True
    opened = lines()
    assert opened[0]["bids_left_out"] is False
    tasks = [line["event"]["task"] for line in opened[1:] if "task" in line["event"]]
    assert [task["bid"] for task in tasks] == [float(bid.price_micros)]


def test_data_set_is_uploaded_once_under_its_key_and_shown(api, tokenizer_zone):
    def send():
        fields = {"file": SimpleUploadedFile("talk.jsonl", ROWS), "zone": tokenizer_zone.name}
        return api.form("/api/datasets", fields, key="d1")

    first, second = send(), send()
    assert first.status_code == 201, first.content
    assert first.json() == second.json()
    assert Dataset.objects.count() == 1
    shown = api.get(first["Location"]).json()
    assert shown == first.json()
    assert (shown["rows"], shown["format"], shown["faulty"]) == (100, "chat", 0)
    assert api.get("/api/datasets").json()["data"] == [shown]
    other = Api(builders.organisation())
    assert_problem(other.get(first["Location"]), 404, "unknown_dataset")


def test_a_data_set_tells_which_keys_are_not_trained_on(api, tokenizer_zone):
    rows = b'{"text": "good film", "lable": "yes"}\n' * 3
    fields = {"file": SimpleUploadedFile("rows.jsonl", rows), "zone": tokenizer_zone.name}
    answer = api.form("/api/datasets", fields, key="d1")
    assert answer.json()["ignored_keys"] == [
        {"key": "lable", "rows": 3, "line": 1, "hint": "Did you mean label? Then rename it."}
    ]


def test_same_key_with_another_file_is_a_conflict(api, tokenizer_zone):
    fields = {"zone": tokenizer_zone.name}
    api.form("/api/datasets", fields | {"file": SimpleUploadedFile("a.jsonl", ROWS)}, key="d1")
    changed = SimpleUploadedFile("a.jsonl", ROWS + ROWS[:60])
    answer = api.form("/api/datasets", fields | {"file": changed}, key="d1")
    assert_problem(answer, 409, "idempotency_key_reused")


@pytest.mark.parametrize(
    ("content", "code"),
    [(b"", "file_empty"), (b"\x00\x01\x02" * 50, "invalid_dataset")],
)
def test_files_that_cannot_be_trained_on_are_refused(api, tokenizer_zone, content, code):
    answer = api.form("/api/datasets", {"file": SimpleUploadedFile("data.jsonl", content)})
    assert_problem(answer, 400, code)
    assert not Dataset.objects.exists()


def test_lines_that_cannot_be_used_are_left_out_only_where_the_request_says_so(api, tokenizer_zone):
    def send(**choices):
        file = SimpleUploadedFile("talk.jsonl", ROWS + b"{broken\n")
        return api.form("/api/datasets", {"file": file, "zone": tokenizer_zone.name} | choices)

    refused = assert_problem(send(), 400, "invalid_dataset")
    assert [error["line"] for error in refused["errors"]] == [101]
    assert not Dataset.objects.exists()
    shown = send(faulty_lines="leave_out").json()
    assert (shown["rows"], shown["faulty"], shown["errors"][0]["line"]) == (100, 1, 101)


def test_upload_without_a_file_is_refused(api):
    assert_problem(api.form("/api/datasets", {"name": "x"}), 400, "invalid_request")


@pytest.mark.parametrize("name", ["file", "zone"])
def test_of_two_values_of_a_form_none_is_dropped_without_a_word(api, tokenizer_zone, name):
    fields = {"file": SimpleUploadedFile("a.jsonl", ROWS), "zone": tokenizer_zone.name}
    other = {"file": SimpleUploadedFile("b.jsonl", ROWS), "zone": tokenizer_zone.name}
    answer = api.form("/api/datasets", fields | {name: [fields[name], other[name]]})
    refused = assert_problem(answer, 400, "invalid_request")
    assert refused["errors"] == [{"param": name, "detail": "Send it once."}]
    assert not Dataset.objects.exists()


def test_finished_job_shows_its_history_and_gives_its_adapter(api, zone):
    _, job = sold(api, zone)
    start = zone.epoch_at + timedelta(seconds=zone.slot_s * job.cells[0][0] + 1)
    zone.nodes.update(last_heartbeat_at=start)
    assert_problem(api.get(f"/api/jobs/{job.pk}/adapter"), 404, "no_adapter")
    assert api.get(f"/api/jobs/{job.pk}/samples").json() == {"data": []}
    dispatch_slots(now=start)
    sample = TextSample(prompt="Where is it?", before="On.", after="On its way.")
    market.end_slice(job, status=SliceEnd.FINISHED, now=start, samples=(sample,))
    settle_finished(now=start)
    shown = api.get(f"/api/jobs/{job.pk}").json()
    assert shown["status"] == "succeeded"
    events = api.get(f"/api/jobs/{job.pk}/events").json()["data"]
    assert events[0]["kind"] == "opened"
    assert "succeeded" in {event["kind"] for event in events}
    later = api.get(f"/api/jobs/{job.pk}/events?after={events[-1]['seq']}").json()
    assert later == {"data": [], "has_more": False}
    first = api.get(f"/api/jobs/{job.pk}/events?limit=1").json()
    assert first == {"data": events[:1], "has_more": True}
    assert api.get(f"/api/jobs/{job.pk}/samples").json() == {
        "data": [{"prompt": "Where is it?", "before": "On.", "after": "On its way."}]
    }
    adapter = api.get(f"/api/jobs/{job.pk}/adapter")
    assert read_download(adapter) == b"zip"
    assert adapter["Content-Type"] == "application/zip"
    assert api.get("/api/jobs?status=succeeded").json()["data"] == [shown]
    assert api.get("/api/jobs?status=failed").json()["data"] == []
    assert api.get(f"/api/jobs/{job.pk}/checkpoints").json()["data"] == []
    other = Api(builders.organisation())
    assert_problem(other.get(f"/api/jobs/{job.pk}"), 404, "unknown_job")
    assert_problem(other.get(f"/api/jobs/{job.pk}/adapter"), 404, "unknown_job")
    assert_problem(other.get(f"/api/jobs/{job.pk}/samples"), 404, "unknown_job")


def test_cancelling_says_the_money_first_and_then_happens_once(api, zone):
    bid, job = sold(api, zone)
    preview = api.get(f"/api/jobs/{job.pk}/cancel").json()
    assert preview == {
        "job_id": job.pk,
        "can_cancel": True,
        "payment": "0.300000",
        "refund": "0.294000",
        "kept": "0.006000",
        "waits": "0.000000",
    }
    asked = f"/api/jobs/{job.pk}/cancel"
    refused = api.post(asked, {"refund_at_least": "0.294001"})
    assert_problem(refused, 409, "refund_changed")
    assert refused.json()["refund_micros"] == 294_000
    assert api.post(asked, {"refund_at_least": "0.294"}).json()["status"] == "cancelled"
    assert api.post(asked).status_code == 200
    settle_finished(now=clock.now())
    assert api.get(f"/api/bids/{bid.pk}").json()["refunded"] == "0.294000"
    assert api.get(f"/api/jobs/{job.pk}/cancel").json()["can_cancel"] is False


def test_pausing_says_the_money_and_the_step_first_and_the_rest_is_bid_for(api, zone, lane):
    bid, job = sold(api, zone)
    asked = f"/api/jobs/{job.pk}/pause"
    assert api.get(asked).json() == {
        "job_id": job.pk,
        "can_cancel": True,
        "payment": "0.300000",
        "refund": "0.294000",
        "kept": "0.006000",
        "waits": "0.000000",
        "checkpoint_step": 0,
        "steps_done_again": 0,
    }
    assert_problem(api.post(asked, {"refund_at_least": "0.294001"}), 409, "refund_changed")
    resume = f"/api/jobs/{job.pk}/resume"
    assert_problem(api.post(resume), 409, "not_resumable")
    assert api.post(asked, {"refund_at_least": "0.294"}).json()["status"] == "paused"
    settle_finished(now=clock.now())
    quoted = {"zone": zone.name, "dataset_id": bid.dataset_id, "model": f"resume:{job.pk}"}
    quote = api.post("/api/quotes", quoted | {"deadline": "200s"}).json()
    assert quote["posted_price"] == "0.300000"
    answer = api.post(resume, {"deadline": "200s"}, key="r1")
    assert answer.status_code == 201, answer.json()
    made = answer.json()
    assert (made["price"], made["status"]) == ("4.994000", "admitted")
    assert api.post(resume, {"deadline": "200s"}, key="r1").json()["id"] == made["id"]
    assert_problem(api.post(resume, {"deadline": "200s"}), 409, "already_resumed")
    shown = api.get(f"/api/jobs/{made['job_id']}").json()
    assert shown["resumes"] == {"job_id": job.pk, "step": 0}
    other = Api(builders.organisation())
    for path in (asked, resume):
        assert other.post(path).status_code == 404


@pytest.mark.parametrize("after", ["x", "-1", "²"])
def test_event_cursors_that_are_none_are_refused(api, zone, after):
    _, job = sold(api, zone)
    assert_problem(api.get(f"/api/jobs/{job.pk}/events?after={after}"), 400, "invalid_cursor")


def test_kept_answers_are_forgotten_after_a_day(api, tokenizer_zone):
    fields = {"file": SimpleUploadedFile("talk.jsonl", ROWS)}
    api.form("/api/datasets", fields, key="d1")
    now = clock.now()
    assert sweep_records(now=now + timedelta(hours=23)) == 0
    assert sweep_records(now=now + timedelta(hours=25)) == 1
    assert not IdempotencyRecord.objects.exists()


def test_claim_of_a_server_that_died_is_taken_over(api, tokenizer_zone):
    fields = {"zone": tokenizer_zone.name}
    made = api.form(
        "/api/datasets", fields | {"file": SimpleUploadedFile("a.jsonl", ROWS)}, key="d1"
    )
    assert made.status_code == 201
    IdempotencyRecord.objects.update(
        status=None, body=None, started_at=clock.now() - timedelta(minutes=2)
    )
    again = api.form(
        "/api/datasets", fields | {"file": SimpleUploadedFile("a.jsonl", ROWS)}, key="d1"
    )
    assert again.status_code == 201
    assert IdempotencyRecord.objects.get().status == 201


def test_claim_that_is_being_worked_on_is_told_to_wait(api, tokenizer_zone, monkeypatch):
    monkeypatch.setattr("marketplace.api.idempotency.WAIT_S", 0.1)
    fields = {"zone": tokenizer_zone.name}
    api.form("/api/datasets", fields | {"file": SimpleUploadedFile("a.jsonl", ROWS)}, key="d1")
    IdempotencyRecord.objects.update(status=None, body=None)
    answer = api.form(
        "/api/datasets", fields | {"file": SimpleUploadedFile("a.jsonl", ROWS)}, key="d1"
    )
    assert_problem(answer, 409, "idempotency_in_progress")
    assert answer["Retry-After"] == "1"
