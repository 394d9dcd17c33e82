"""Pages on rows: what they show, to whom, and under which policy."""

from __future__ import annotations

import io
import json
import re
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from marketplace.accounts.models import ApiKey
from marketplace.auction import cancelling
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.models import Alert, Bid
from marketplace.auction.probes import name_zone_task
from marketplace.auction.settlement import settle_finished
from marketplace.common.models import Heartbeat
from marketplace.fleet.models import Zone
from marketplace.jobs.models import Artifact, Job
from marketplace.jobs.services import dispatch_slots, record_progress, store_adapter
from scheduler.auction.audit.transcripts import verify_transcript
from tests import builders, market_builders
from tests import job_builders as build
from tests.builders import NOW
from tests.pages import read_download, read_page
from tests.unit.marketplace.web.conftest import Site

pytestmark = pytest.mark.django_db

TABS = ("", "/events", "/logs", "/checkpoints", "/data", "/config", "/receipt")


@pytest.fixture
def job(site: Site) -> Job:
    market_builders.bid(site.organisation, site.zone, data=site.dataset)
    decide_pending_bids(zone=site.zone, now=NOW, limit=10)
    return Job.objects.get()


def test_the_market_page_is_public(site: Site, job: Job, client: Client) -> None:
    client.logout()
    page = client.get("/")
    text = read_page(page)
    assert page.status_code == 200
    assert site.node.name in text
    assert "Admitted" in text
    assert site.organisation.name not in text


def test_anybody_may_ask_what_a_job_of_some_size_costs(site: Site, client: Client) -> None:
    client.logout()
    page = client.get("/quote")
    shown = page.context["quote"]
    assert page.context["form"].initial["rows"] == shown.job.rows
    assert "Price by deadline" in read_page(page)
    asked = {"zone": site.zone.name, "rows": 30, "row_tokens": 16, "epochs": ""}
    quote = client.get("/quote", asked).context["quote"]
    assert (quote.job.rows, quote.settings.training.epochs) == (30, 10)
    steps = client.get("/quote", asked).context["steps"]
    assert steps.line.startswith(f"M{steps.too_soon} 0H{steps.too_soon}V")
    assert steps.line.endswith("H1000")
    for wrong in ({"rows": 0}, {"rows": "x"}, {"row_tokens": 10**9}, {"epochs": 51}):
        page = client.get("/quote", asked | wrong)
        assert "quote" not in page.context
        assert "Correct what is marked" in read_page(page)
    page = client.get("/quote", asked | {"rows": 1_000_000, "epochs": 50})
    assert "This is more work than the machines here do" in read_page(page)
    assert client.get("/quote", asked | {"zone": "nowhere"}).status_code == 404
    assert client.post("/quote", asked).status_code == 405
    site.node.delete()
    assert "No node" in read_page(client.get("/quote", asked))


@pytest.mark.parametrize("path", ["/market/nowhere", "/nothing", "/bids/bid_x", "/jobs/ftjob-x"])
def test_what_is_not_there_is_said_in_words(site: Site, path: str) -> None:
    reply = site.client.get(path)
    assert reply.status_code == 404
    assert "<h1>Nothing here</h1>" in read_page(reply)


def test_no_page_has_inline_script_or_style(site: Site, job: Job) -> None:
    paths = ("/", "/quote", "/jobs", "/bids/new", "/wallet", "/datasets", "/settings/api-keys")
    for path in (*paths, *(f"/jobs/{job.pk}{tab}" for tab in TABS), f"/bids/{job.bid_id}"):
        reply = site.client.get(path)
        text = read_page(reply)
        assert reply.status_code == 200, path
        assert not re.search(r"<[^>]+\sstyle=", text), path
        assert not re.search(r"\son\w+=", text), path
        for script in re.findall(r"<script[^>]*>", text):
            assert 'src="' in script or 'type="application/json"' in script, path
        policy = reply.headers["Content-Security-Policy"]
        assert "unsafe-inline" not in policy
        assert "unsafe-eval" not in policy


def test_the_list_shows_bids_and_their_jobs_and_can_be_searched(site: Site, job: Job) -> None:
    market_builders.bid(site.organisation, site.zone, data=site.dataset, price_micros=5, name="low")
    decide_pending_bids(zone=site.zone, now=NOW, limit=10)
    page = site.client.get("/jobs")
    shown = {
        name: [row["bid"].name for row in site.client.get(f"/jobs?show={name}").context["rows"]]
        for name, _ in page.context["tabs"]
    }
    [(newest, _), (oldest, _)] = ((bid.name, bid) for bid in Bid.objects.order_by("-pk"))
    assert shown == {"all": [newest, oldest], "active": [oldest], "done": [], "refused": [newest]}
    only = site.client.get("/jobs?show=refused&find=LOW")
    assert [row["bid"].name for row in only.context["rows"]] == ["low"]
    assert site.client.get("/jobs?show=junk&before=-1&find=junk").status_code == 200
    assert site.client.get("/jobs?find=%00").status_code == 400
    month = page.context["month"]
    assert (month["won"], month["bids"], month["lost_on_price"]) == (1, 2, 1)


def test_a_jobs_page_tells_money_time_and_progress(site: Site, job: Job) -> None:
    dispatch_slots(now=NOW)
    with patch.object(cancelling, "_try_release", side_effect=AssertionError):
        # What a job is worth is found where somebody asks.
        text = read_page(site.client.get(f"/jobs/{job.pk}"))
    bid = Bid.objects.get()
    assert "you kept $4.90" in text
    assert 'title="$0.10"' in text
    assert bid.decision_hash[:8] in text


def test_cancelling_says_the_amount_first_and_goes_by_it(site: Site, job: Job) -> None:
    asked = f"/jobs/{job.pk}/cancel"
    assert "Cancel and get $0.098 back" in read_page(site.client.get(asked))
    # More than goes back: as if the price had fallen since the page was shown.
    assert site.client.post(asked, {"at_least": "98001"}).headers["Location"] == asked
    assert "$0.098 would go back now, not $0.098001." in read_page(site.client.get(asked))
    job.refresh_from_db()
    assert job.is_active
    assert site.client.post(asked, {"at_least": "98000"}).headers["Location"] == f"/jobs/{job.pk}"
    job.refresh_from_db()
    assert job.status == "cancelled"
    assert site.client.post(asked).status_code == site.client.get(asked).status_code == 302


def test_a_job_is_paused_and_its_rest_is_bid_for(site: Site, job: Job) -> None:
    asked = f"/jobs/{job.pk}/pause"
    assert f'href="{asked}"' in read_page(site.client.get(f"/jobs/{job.pk}"))
    Job.objects.filter(pk=job.pk).update(step=5, checkpoint_step=2)
    text = read_page(site.client.get(asked))
    assert "Pause and get $0.098 back" in text
    assert "3 steps after that checkpoint are paid and will be done, and paid, again." in text
    assert site.client.post(asked, {"at_least": "98001"}).headers["Location"] == asked
    assert site.client.post(asked, {"at_least": "98000"}).headers["Location"] == f"/jobs/{job.pk}"
    settle_finished(now=NOW)
    resume = f"/jobs/{job.pk}/resume"
    assert f'href="{resume}"' in read_page(site.client.get(f"/jobs/{job.pk}"))
    page = site.client.get(resume)
    form = page.context["form"]
    assert form.data["price"] == "4.998"
    assert page.context["quote"].price_micros == 100_000
    assert "The rest by this deadline costs now" in read_page(page)
    low = site.client.post(resume, form.data | {"price": "x", "do": "place"})
    assert low.status_code == 400
    assert Bid.objects.count() == 1
    sent = [site.client.post(resume, form.data | {"do": "place"}) for _ in range(2)]
    rest = Bid.objects.get(price_micros=4_998_000)
    assert [one.headers["Location"] for one in sent] == [f"/bids/{rest.pk}"] * 2
    decide_pending_bids(zone=site.zone, now=NOW, limit=10)
    going = Job.objects.get(bid_id=rest.pk)
    assert f"{going.pk}</a>" in read_page(site.client.get(f"/jobs/{job.pk}"))
    assert "It goes on after step 0 of" in read_page(site.client.get(f"/jobs/{going.pk}"))
    assert site.client.get(f"/jobs/{going.pk}/resume").status_code == 302


def test_what_a_cancel_gives_back_is_searched_for_within_the_limit_of_quotes(
    site: Site, job: Job, settings: Any
) -> None:
    settings.API_REQUESTS_PER_MINUTE = settings.API_REQUESTS_PER_MINUTE | {"quotes": 1}
    asked = f"/jobs/{job.pk}/cancel"
    assert [site.client.get(asked).status_code for _ in range(2)] == [200, 429]


def test_an_adapter_is_handed_to_its_owner_only(site: Site, job: Job) -> None:
    assert site.client.get(f"/jobs/{job.pk}/adapter").status_code == 404
    first_slot = job.cells[0][0] - build.SLOT
    dispatch_slots(now=build.at(10 * first_slot))
    held = build.lease(job)
    record_progress(
        node=held.node,
        report=build.report(held, build.event(1, step=12)),
        now=build.at(10 * first_slot),
    )
    adapter = build.adapter_file(adapter=job.terms.adapter)
    store_adapter(
        node=held.node,
        lease_token=held.lease_token,
        content=io.BytesIO(adapter),
        now=build.at(10 * first_slot + 1),
    )
    reply = site.client.get(f"/jobs/{job.pk}/adapter")
    with Artifact.objects.get().file.open("rb") as stored:
        assert read_download(reply) == stored.read()
    assert 'filename="a-job-adapter.zip"' in reply.headers["Content-Disposition"]
    site.client.force_login(builders.user())
    assert site.client.get(f"/jobs/{job.pk}/adapter").status_code == 404
    assert Artifact.objects.count() == 1


def test_the_wallet_shows_each_entry_and_that_it_sums_to_zero(site: Site, job: Job) -> None:
    page = site.client.get("/wallet?view=double")
    kinds = [item["row"].kind for item in page.context["rows"]]
    assert kinds[-1] == "grant"
    for item in page.context["rows"]:
        legs = item["legs"]
        assert sum(leg["debit"] or 0 for leg in legs) == sum(leg["credit"] or 0 for leg in legs)
    assert "$99.90" in read_page(page)


def test_a_key_is_shown_in_the_answer_that_makes_it_and_never_again(site: Site) -> None:
    form = {"name": "ci", "scopes": ["bids:read"], "days": "30"}
    made = site.client.post("/settings/api-keys", form)
    secret = made.context["secret"]
    assert secret.startswith("ft_")
    assert made.headers["Cache-Control"].find("no-store") >= 0
    assert secret not in read_page(site.client.get("/settings/api-keys"))
    key = ApiKey.objects.get()
    site.client.post(f"/settings/api-keys/{key.pk}/revoke")
    key.refresh_from_db()
    assert key.revoked_at is not None


def test_a_key_may_bid_by_itself(site: Site) -> None:
    form = {"name": "ci", "scopes": ["bids:write"], "days": "0", "bid_usd": "2.5", "bid_hours": "6"}
    assert "bids $2.50 by itself" in read_page(site.client.post("/settings/api-keys", form))
    key = ApiKey.objects.get()
    assert (key.bid_price_micros, key.bid_deadline_s) == (2_500_000, 6 * 3600)
    refused = site.client.post("/settings/api-keys", form | {"bid_usd": "-1"})
    assert refused.context["form"].errors.keys() == {"bid_usd"}
    assert ApiKey.objects.count() == 1


def test_one_may_act_only_for_an_organisation_one_belongs_to(site: Site) -> None:
    other = builders.organisation()
    reply = site.client.post("/settings/organisation", {"organisation": other.pk})
    assert reply.status_code == 403
    request: Any = site.client.get("/jobs").wsgi_request
    personal = request.user.personal_organisation
    site.client.post("/settings/organisation", {"organisation": personal.pk})
    request = site.client.get("/jobs").wsgi_request
    assert request.organisation.pk == personal.pk


def test_times_are_in_the_visitors_zone(site: Site, job: Job) -> None:
    site.client.cookies["tz"] = "Europe/Amsterdam"
    assert ">10:00:00</time>" in read_page(site.client.get(f"/bids/{job.bid_id}"))
    site.client.cookies["tz"] = "../../etc/passwd"
    assert ">09:00:00</time>" in read_page(site.client.get(f"/bids/{job.bid_id}"))


def test_the_first_paint_has_the_chosen_theme(site: Site) -> None:
    site.client.cookies["theme"] = "dark"
    assert '<html lang="en" data-theme="dark"' in read_page(site.client.get("/jobs"))
    site.client.cookies["theme"] = '"><script>'
    assert '<html lang="en" data-theme="auto"' in read_page(site.client.get("/jobs"))


def test_the_transcript_is_public_and_verifies_on_any_computer(
    site: Site, job: Job, client: Client
) -> None:
    client.logout()
    address = f"/market/{site.zone.name}/transcript"
    market = read_page(client.get("/"))
    assert f'href="{address}"' in market
    assert f"python -m scheduler verify {site.zone.name}.jsonl" in market
    reply = client.get(address)
    assert reply.headers["Content-Disposition"] == f'attachment; filename="{site.zone.name}.jsonl"'
    log = read_download(reply).decode()
    assert verify_transcript(log.splitlines()).ok
    assert json.loads(log.splitlines()[-1])["event"]["task"].get("bid") is None
    again = client.get(address, headers={"If-None-Match": reply.headers["ETag"]})
    assert again.status_code == 304
    assert client.get("/market/nowhere/transcript").status_code == 404


def test_the_status_is_said_in_words(site: Site, job: Job, client: Client) -> None:
    client.logout()
    builders.beat_everything()
    Zone.objects.update(created_at=NOW - timedelta(days=30))
    text = read_page(client.get("/status"))
    assert "<h1>Everything works</h1>" in text
    assert "1 of 1" in text
    assert "No incident is on record." in text
    # Nothing is said of the time before the market began.
    assert text.count("not on record") == 5 * 59
    assert text.count("100 % of 31 days on record") == 5
    ended_at, hour = NOW - timedelta(days=3, hours=2), timedelta(hours=1)
    for part, since_at in (("lane", ended_at - hour), ("lane", ended_at - hour / 2), ("beat", NOW)):
        is_over = part == "lane"
        Alert.objects.create(
            part=part,
            label=f"{part} {since_at}",
            text="It failed.",
            since_at=since_at,
            begin_sent_at=since_at,
            ended_at=ended_at if is_over else None,
        )
    Heartbeat.objects.filter(task=name_zone_task(site.zone.pk)).update(
        ok_at=NOW - timedelta(minutes=2), error="LogBroken: no"
    )
    with CaptureQueriesContext(connection) as asked:
        text = read_page(client.get("/status"))
    assert "<h1>Something does not work</h1>" in text
    assert "No bid is decided." in text
    assert "LogBroken" not in text
    assert text.count("Bids were not decided, or late") == 1
    assert "Slots did not begin in time" in text
    assert text.count("27 Feb: 60 min away") == 1
    assert "99.86 % of 31 days on record" in text
    assert not any("LogEntry" in each["sql"] or "snapshot" in each["sql"] for each in asked)


def test_a_cancelled_jobs_headline_is_what_was_paid_after_the_refund(site: Site, job: Job) -> None:
    site.client.post(f"/jobs/{job.pk}/cancel")
    settle_finished(now=NOW)
    bid = Bid.objects.get()
    assert (bid.payment_micros, bid.refund_micros) == (100_000, 98_000)
    heads = read_page(site.client.get(f"/jobs/{job.pk}")).partition('id="part-heads"')[2]
    paid = heads.partition("</section>")[0]
    assert 'title="$0.002">$0.002</div>' in paid
    assert "$0.10 charged" in paid
    assert "$0.098 returned" in paid
    # A job that was not done met no deadline.
    for page in (paid, read_page(site.client.get("/jobs")), _read_comparison(site, job)):
        assert "to spare" not in page


def _read_comparison(site: Site, job: Job) -> str:
    return read_page(site.client.get(f"/jobs/compare?job={job.pk}"))
