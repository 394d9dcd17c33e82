"""What an act costs depends on what it is about, not on how much there was before.

Rows that the database reads are counted, never time. The house of this test has one life of
everything: a job that was sold, prepared, trained and paid for, a refused bid, a grant. All of it
is copied, each copy a little earlier. Then every page, every list of the API, every task of the
clock and some commands are asked for. What reads as many rows as there are copies reads all of
them, or most.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from io import StringIO
from typing import Any
from urllib.parse import urlencode

import pytest
import time_machine
from django.apps import apps
from django.conf import settings
from django.core.cache import cache
from django.core.management import CommandError, call_command
from django.core.signals import request_finished
from django.db import close_old_connections
from django.test import Client

from marketplace.accounts.models import Organisation
from marketplace.api.callers import ORGANISATION_HEADER
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.models import Bid
from marketplace.auction.preparations import conclude_preparations
from marketplace.auction.witnesses.keys import load_signing_key
from marketplace.common.ttl_cache import TtlCache
from marketplace.config.celery import app
from marketplace.config.routes import list_routes
from marketplace.exports.models import HubPush
from marketplace.fleet.models import Node, NodeStatus, Zone
from marketplace.jobs.event_files import archive_events
from marketplace.jobs.models import Checkpoint, Dataset, Job, JobEvent
from marketplace.jobs.services import delete_unretained, dispatch_slots, record_progress
from marketplace.payments.funding import grant_funds, request_funds
from marketplace.payments.models import LedgerAccount, SealedSum
from marketplace.vendors.models import Preparation
from marketplace.webhooks.services import create_endpoint
from tests import builders, job_builders, vendor_builders
from tests import market_builders as market
from tests.builders import NOW
from tests.grown_house import copy_rows, count_reads, measure_bytes, vacuum_tables
from tests.outer_blocks import build_outer_block
from tests.vendor_builders import clock, prepare_next
from workers.protocol.reports import SliceEnd

pytestmark = pytest.mark.django_db

COPIES = 900
#: Bytes of a bid with all that follows from it and all indexes: half are sold, prepared, trained,
#: paid and invoiced, half refused. What is told twice shows here.
BYTES_OF_BID = 17_000
#: The same once the events of its job are in a file.
BYTES_OF_ARCHIVED_BID = 15_700
EVENT_TABLES = ("jobs_jobevent", "jobs_event_")
#: All is settled and told by then, in a month before: what pages sum up of a month is of a month.
LATER = NOW + timedelta(days=35)
#: One a zone, an organisation or a person, or the state of the whole market; by app.
FIXED_NAMES = {
    "accounts": "User Organisation Membership ApiKey",
    "auction": "Alert LogCheck LogEntry LogSegment MarketHead MarketKey PublishedHead Snapshot"
    " WitnessCursor",
    "common": "DurableWork Heartbeat",
    "express": "BankConsent ExpressLane",
    "fleet": "Ask GpuType JoinToken JoinUse Node Provider SharedDevice Zone",
    "jobs": "EventFile NodePlan",
    "payments": "BillingDetails EarningSum InvoiceSeries LedgerAccount LedgerSeal PayoutAccount"
    " SealedKindSum SealedSum UnsealedEntry WalletRules",
    "tiers": "ProfitCursor ProfitSum ZoneTiers",
    "vendors": "Listing Vendor",
    "webhooks": "NoticeChoice WebhookEndpoint",
}
FIXED = {f"{app}.{name}" for app, names in FIXED_NAMES.items() for name in names.split()}
OURS = {
    model._meta.label
    for model in apps.get_models()
    if model.__module__.startswith("marketplace.") and model._meta.managed
}
#: Not pages, or without an end.
ENDLESS = "api/jobs/<str:job_id>/events/stream"
PROVIDERS = ("nodes", "api/nodes", "api/join-tokens", "api/earnings", "api/payouts")
PASSED_OVER = ("admin/", "accounts/", "internal/", "webhooks/", ENDLESS)
_RELIABILITY = "a vendor's share of work in time is of all its work"
_RESERVE = "the reserve sums earnings up, but only in a payee's first weeks"
#: What still reads as much as there is, and why.
LINEAR = {
    "/api/payouts/account": _RESERVE,
    "/datasets/<str:dataset_id>/report": _RELIABILITY,
    "/operator/vendors": _RELIABILITY,
    "/vendor": _RELIABILITY,
    "/nodes/payouts": _RESERVE,
    "/v1/models": "the newest thousand models, in one answer: OpenAI's list has no pages",
    "/wallet/months/<str:month>/csv": "an accountant takes away each entry of a month",
}
#: What calls other companies' servers.
OUTSIDE = {"payments.gateway_compare", "payments.events_fetch", "tiers.reconcile"}
COMMANDS = ("doctor", "ledger_check")


class House:
    """A market in which everything happened once."""

    def __init__(self) -> None:
        self.zone = vendor_builders.zone()
        self.owner = builders.organisation(usd="100")
        self.provider = market.provider()
        self.node = market.node(self.zone, of=self.provider)
        self.vendor = vendor_builders.vendor(self.zone)
        self.endpoint, _ = create_endpoint(
            organisation=self.owner,
            created_by=builders.owner_of(self.owner),
            url="https://8.8.8.8/hook",
            events=["job.failed"],
            now=NOW,
        )
        self.key, self.secret = builders.api_key(self.owner)
        Organisation.objects.update(retain_days=365)
        self.bid, self.job = self._sell()
        self._train()
        self.refused = market.bid(self.owner, self.zone, price_micros=1)
        decide_pending_bids(zone=self.zone, now=NOW)
        asked = request_funds(
            organisation=self.owner,
            amount_micros=1_000_000,
            asked_by=builders.owner_of(self.owner),
            now=NOW,
        )
        grant_funds(
            request_id=asked.pk, amount_micros=1_000_000, granted_by=builders.operator(), now=NOW
        )

    def _sell(self) -> tuple[Bid, Job]:
        bid, job = vendor_builders.sell(self.owner, self.zone)
        assert job is not None
        assert prepare_next(clock=clock)
        conclude_preparations(now=clock())
        return bid, job

    def _train(self) -> None:
        now = market.slot_at(self.zone, 103)
        Node.objects.update(last_heartbeat_at=now)
        dispatch_slots(now=now)
        self.job.refresh_from_db()
        held = job_builders.lease(self.job)
        report = job_builders.report(held, job_builders.event(1, step=1, train_loss=2.0))
        record_progress(node=self.node, report=report, now=now)
        Checkpoint.objects.create(
            job=self.job, slice=held, step=1, sha256="0" * 64, bytes=3, created_at=now
        )
        market.end_slice(self.job, status=SliceEnd.FINISHED, now=now)
        HubPush.objects.create(
            organisation=self.owner,
            job=self.job,
            repository="ada/tone",
            created_at=now,
            finished_at=now,
            status="pushed",
        )

    def come_to_rest(self, *, rounds: int) -> None:
        """Do all that the clock has to do, until nothing is due."""
        for _ in range(rounds):
            self.see_nodes()
            for name in list_tasks():
                app.tasks[name].run()
        builders.beat_everything(now=LATER)

    def see_nodes(self) -> None:
        Node.objects.update(last_heartbeat_at=LATER, status=NodeStatus.ONLINE)

    def list_values(self) -> dict[str, object]:
        """What stands for each part of an address."""
        preparation = Preparation.objects.get(job=self.job)
        return {
            "job_id": self.job.pk,
            "bid_id": self.bid.pk,
            "dataset_id": self.bid.dataset_id,
            "file_id": self.bid.dataset_id,
            "zone_name": self.zone.name,
            "node_id": self.node.pk,
            "organisation_id": self.owner.pk,
            "provider_id": self.provider.pk,
            "vendor_id": self.vendor.pk,
            "webhook_id": self.endpoint.pk,
            "preparation_id": preparation.pk,
            "key_id": self.key.pk,
            "month": f"{NOW:%Y-%m}",
            "model": self.job.pk,
            "tab": "receipt",
        }

    def sign_in(self, organisation: Organisation) -> Client:
        client = Client(headers={ORGANISATION_HEADER: organisation.pk})
        client.force_login(builders.owner_of(organisation))
        return client


def list_tasks() -> list[str]:
    app.loader.import_default_modules()
    names = {str(entry["task"]) for entry in settings.CELERY_BEAT_SCHEDULE.values()}
    return sorted(names - OUTSIDE)


def list_acts(house: House) -> Iterator[tuple[str, Callable[[], object]]]:
    """Everything that is asked for, by name."""
    owner, provider = house.sign_in(house.owner), house.sign_in(house.provider.organisation)
    vendor, operator = house.sign_in(house.vendor.organisation), Client()
    operator.force_login(builders.operator())
    values = house.list_values()
    for route in list_routes():
        if route.method not in ("*", "GET") or route.path.startswith(PASSED_OVER):
            continue
        who = owner
        if route.path.startswith(PROVIDERS):
            who = provider
        elif route.path.startswith("vendor"):
            who = vendor
        elif route.audience == "operator":
            who = operator
        address = re.sub(r"<\w+:(\w+)>", lambda found: str(values.get(found[1], "1")), route.path)
        yield f"/{route.path}", partial(read, who, f"/{address}")
    for name in list_tasks():
        yield name, app.tasks[name].run
    for name in COMMANDS:
        yield f"manage.py {name}", partial(run_command, name)


def read(client: Client, address: str) -> int:
    cache.clear()
    answer: Any = client.get(address)
    # Files are sent by another loop, and are not rows.
    if answer.streaming and not answer.is_async:
        for _ in answer:
            pass
    # As Django's own client does: the connection is the test's.
    request_finished.disconnect(close_old_connections)
    answer.close()
    request_finished.connect(close_old_connections)
    return answer.status_code


def run_command(name: str) -> None:
    with suppress(SystemExit, CommandError):
        call_command(name, stdout=StringIO(), stderr=StringIO())


@pytest.fixture
def new_tables(db: None) -> None:
    """No row fits in what earlier rows left free."""
    vacuum_tables(full=True)


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[House]:
    settings.API_REQUESTS_PER_MINUTE = dict.fromkeys(settings.API_REQUESTS_PER_MINUTE, 10**6)
    # What a cache would spare is read.
    monkeypatch.setattr(
        TtlCache, "get_many", lambda _, keys, *, now, read: dict(read(list(dict.fromkeys(keys))))
    )
    vacuum_tables()
    with time_machine.travel(NOW, tick=False) as travel:
        made = House()
        travel.move_to(LATER, tick=False)
        made.come_to_rest(rounds=3)
        yield made


def test_nothing_reads_all_that_there_was(house: House) -> None:
    copy_rows([apps.get_model(label) for label in sorted(OURS - FIXED)], times=COPIES)
    house.come_to_rest(rounds=1)
    found = {name: count_reads(act) for name, act in list_acts(house)}
    assert len(found) > 250
    linear = {name: reads for name, reads in found.items() if reads >= COPIES}
    assert linear.keys() == LINEAR.keys(), linear


def test_retention_reads_nothing_of_what_it_has_deleted() -> None:
    zone, owner = market.zone(), builders.organisation()
    job_builders.job(zone, (0, market.node(zone)), organisation=owner)
    ended = dict.fromkeys(("finished_at", "settled_at", "deleted_at"), NOW)
    Job.objects.update(status="cancelled", **ended)
    Dataset.everything.update(deleted_at=NOW)
    Organisation.objects.update(retain_days=7)
    Zone.objects.update(retain_days=7)
    copy_rows([Job, Dataset], times=COPIES)
    assert count_reads(lambda: delete_unretained(now=LATER)) < COPIES // 10


@pytest.mark.parametrize(("tab", "rare"), [("done", "admitted"), ("refused", "refused")])
def test_a_tab_of_few_reads_few_of_the_others(house: House, tab: str, rare: str) -> None:
    few, other = Bid.objects.get(status=rare), Bid.objects.exclude(status=rare).get()
    # All that is copied has the other outcome.
    Bid.objects.filter(pk=few.pk).update(status=other.status, payment_micros=0)
    copy_rows([Bid], times=COPIES)
    Bid.objects.filter(pk=few.pk).update(status=rare, payment_micros=few.payment_micros)
    client = house.sign_in(house.owner)
    with build_outer_block():
        rows = client.get(f"/jobs?show={tab}").context["rows"]
        assert [row["bid"].pk for row in rows] == [few.pk]
    assert count_reads(partial(read, client, f"/jobs?show={tab}")) < COPIES


def test_a_paused_job_of_new_data_reads_no_others(house: House) -> None:
    copy_rows([Bid, Dataset, Job], times=COPIES)
    # Of no other job: none is found that it could be compared with.
    assert Dataset.everything.filter(pk=house.job.dataset_id).update(sha256="0" * 64) == 1
    Job.objects.filter(pk=house.job.pk).update(status="paused")
    client = house.sign_in(house.owner)
    with build_outer_block():
        assert client.get(f"/jobs/{house.job.pk}").context["job"].status == "paused"
    assert count_reads(partial(read, client, f"/jobs/{house.job.pk}")) < COPIES


def test_what_is_looked_for_is_found_without_reading_the_rest(house: House) -> None:
    """By rare words, by words of every name, by a base model and by ids; and where nothing is."""
    other = builders.organisation(usd="100")
    theirs = market.bid(other, house.zone, name="blue tone")
    copy_rows([Bid, Job], times=COPIES)
    Bid.objects.filter(pk=house.refused.pk).update(name="support-tone v2.1/b")
    client = house.sign_in(house.owner)
    of_all = 20
    for words, found in [
        ("support", 1),
        ("TONE sup", 1),
        ("v2", 1),
        ("2.1", 0),
        ("1 b", 1),
        ("job", of_all),
        ("jo a", of_all),
        (house.zone.base_model_name[1:], of_all),
        (house.job.pk, 1),
        (house.refused.pk, 1),
        ("blue", 0),
        (theirs.pk, 0),
        ("nothing", 0),
        ("-", 0),
        ("it's :* & (", 0),
    ]:
        address = f"/jobs?{urlencode({'find': words})}"
        with build_outer_block():
            assert len(client.get(address).context["rows"]) == found, words
        assert count_reads(partial(read, client, address)) < COPIES, words


def test_books_of_the_house_read_no_organisation(house: House) -> None:
    copy_rows([Organisation], times=COPIES)
    month = NOW.date().replace(day=1)
    for kind in ("wallet_available", "wallet_held"):
        with_one = LedgerAccount.objects.filter(kind=kind).values("organisation")
        without = Organisation.objects.exclude(pk__in=with_one)
        made = LedgerAccount.objects.bulk_create(
            LedgerAccount(kind=kind, organisation=owner, balance_micros=0) for owner in without
        )
        SealedSum.objects.bulk_create(
            SealedSum(account=account, month=month, amount_micros=0) for account in made
        )
    assert SealedSum.objects.count() > 2 * COPIES
    operator = Client()
    operator.force_login(builders.operator())
    for address in ("/operator/money/books", f"/operator/money/books/{NOW:%Y-%m}"):
        assert count_reads(partial(read, operator, address)) < COPIES


def test_a_bid_takes_no_more_room_than_it_did(
    new_tables: None, house: House, settings: Any, tmp_path: Any
) -> None:
    settings.MEDIA_ROOT, settings.MARKET_KEY_DIR = tmp_path / "media", tmp_path / "keys"
    before = measure_bytes()
    copied = copy_rows([apps.get_model(label) for label in sorted(OURS - FIXED)], times=COPIES)
    bids = copied["auction.Bid"]
    taken = {name: (size - before[name]) / bids for name, size in measure_bytes().items()}
    largest = sorted(taken.items(), key=lambda item: -item[1])[:20]
    assert bids == 2 * COPIES
    assert sum(taken.values()) < BYTES_OF_BID, largest
    key, before = load_signing_key(now=LATER), measure_bytes()
    later = LATER + timedelta(days=35)
    done = archive_events(before=later, public_key=key.public_key, sign=key.sign, now=later)
    assert (done.jobs, JobEvent.objects.count()) == (1 + COPIES, 0)
    # What deleted rows leave is room for others; a job's own row is written again.
    freed = sum(taken[name] for name in taken if name.startswith(EVENT_TABLES))
    added = [measure_bytes()[name] - before[name] for name in before if "eventfile" in name]
    left = sum(taken.values()) - freed + sum(added) / bids
    assert left < BYTES_OF_ARCHIVED_BID, (freed, added, done)
    assert done.bytes / bids < 100
