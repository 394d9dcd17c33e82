"""Deleting data sets, results, organisations and people: what goes, what stays, what waits."""

from __future__ import annotations

import io
import json
import re
import zipfile
from datetime import timedelta

import pytest
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from django.db import connection

from marketplace.accounts.departures import end_organisation, end_person
from marketplace.accounts.erasure import ERASE, GRACE, LOOKED_EVERY
from marketplace.accounts.models import (
    ApiKey,
    AuditEntry,
    Deletion,
    Invitation,
    Membership,
    Role,
    Subject,
    User,
)
from marketplace.accounts.own_data import build_archive
from marketplace.accounts.services import create_invitation, set_retention
from marketplace.auction.book.verify import verify_zone
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.models import Bid
from marketplace.auction.settlement import settle_finished
from marketplace.checks.models import SpotCheck
from marketplace.common.durable.kinds import get_kinds
from marketplace.common.durable.run import run_due_work
from marketplace.common.errors import Conflict, NotFound, UserError
from marketplace.exports.models import Export, ExportForm
from marketplace.exports.selectors import open_export
from marketplace.fleet.models import Node
from marketplace.jobs.downloads import open_checkpoint
from marketplace.jobs.models import Artifact, Checkpoint, Dataset, ErrandKind, ErrandState, Job
from marketplace.jobs.selectors import list_continuable_jobs
from marketplace.jobs.services import (
    delete_adapter,
    delete_dataset,
    delete_job,
    delete_unretained,
    deletion,
    dispatch_slots,
    note_adapter_use,
)
from marketplace.jobs.terms import strip_texts
from marketplace.payments.freezes import end_freeze, freeze_organisation
from marketplace.payments.ledger_checks import check_ledger
from marketplace.payments.models import (
    CallKind,
    Entry,
    GatewayCall,
    LedgerAccount,
    SavedCard,
    WalletRules,
)
from marketplace.payments.services import give_up_wallet
from marketplace.vendors.models import DataPlan, Preparation
from marketplace.vendors.plans import request_plan
from marketplace.warm.models import Donor
from marketplace.web.current_organisation import CHOSEN
from marketplace.webhooks.models import WebhookEndpoint, WebhookMessage
from marketplace.webhooks.services import create_endpoint
from tests import builders
from tests import market_builders as market
from tests.builders import NOW
from tests.vendor_builders import vendor
from tests.warm_builders import data_of, finished, live_node
from workers.protocol.job_spec import AdapterKind, AdapterSpec, TrainingSpec
from workers.protocol.job_terms import JobTerms, PreparationWish

pytestmark = pytest.mark.django_db
LATER = NOW + timedelta(days=30)


@pytest.fixture(autouse=True)
def files(settings, tmp_path):
    """A place for files where nothing is left of other tests."""
    settings.MEDIA_ROOT = tmp_path


@pytest.fixture
def zone():
    made = market.zone()
    live_node(made)
    return made


@pytest.fixture
def elsewhere():
    """Another zone with a node of its own."""
    made = market.zone()
    live_node(made)
    return made


@pytest.fixture
def owner():
    return builders.organisation(usd="20")


@pytest.fixture
def boss(owner):
    return builders.owner_of(owner)


def erase(now=NOW + GRACE):
    return run_due_work(get_kinds()[ERASE], clock=lambda: now)


def settled(owner, zone, **terms):
    """A job that is done and paid, on data of its own."""
    job = finished(owner, zone, **terms)
    assert settle_finished(now=market.slot_at(zone, 110)) == 1
    job.refresh_from_db()
    return job


def list_stored(folder=""):
    folders, names = default_storage.listdir(folder)
    inner = [name for one in folders for name in list_stored(f"{folder}/{one}".lstrip("/"))]
    return inner + [f"{folder}/{name}" for name in names]


def test_a_data_set_goes_and_its_hash_and_counts_stay(zone, owner, boss):
    data = data_of(owner, zone)
    kept = data.sha256, data.rows, data.tokens, data.bytes
    name = data.file.name
    deletion = delete_dataset(dataset=data, asked_by=boss, now=NOW)
    assert not Dataset.objects.exists()
    assert (erase(NOW + GRACE - timedelta(seconds=1)), default_storage.exists(name)) == (0, True)
    assert erase() == 1
    assert not default_storage.exists(name)
    row = Dataset.everything.get()
    assert (row.sha256, row.rows, row.tokens, row.bytes) == kept
    assert (row.file.name, row.name, row.errors) == ("", "Deleted", [])
    deletion.refresh_from_db()
    assert (deletion.erased_at, deletion.asked_by_id) == (NOW + GRACE, boss.pk)
    # Asked again it is the same deletion, and nothing is left to do.
    assert delete_dataset(dataset=data, asked_by=boss, now=LATER) == deletion
    assert erase(LATER + GRACE) == 0


def test_what_vendors_have_of_a_data_set_goes_with_it(zone, owner, boss):
    data = data_of(owner, zone)
    request_plan(dataset=data, zone=zone, wish=PreparationWish(), now=NOW)
    files = {
        name: default_storage.save(f"preparations/{name}", ContentFile(b"its rows"))
        for name in ("copy", "submission", "changes", "origins")
    }
    held = Preparation.objects.create(
        job=settled(owner, zone),
        source=data,
        vendor=vendor(zone),
        status="accepted",
        prepared=data_of(owner, zone),
        accepted_at=NOW,
        price_micros=0,
        rows_bound=1,
        ready_slot=0,
        due_at=NOW,
        created_at=NOW,
        wish={},
        **files,
    )
    delete_dataset(dataset=data, asked_by=boss, now=NOW)
    assert erase() == 1
    assert list_stored("preparations") == []
    assert not DataPlan.objects.exists()
    held.refresh_from_db()
    assert [held.copy.name, held.submission.name, held.changes.name, held.origins.name] == [""] * 4


def test_data_stay_while_a_bid_waits_and_while_a_job_runs_with_them(zone, owner, boss):
    data = data_of(owner, zone)
    market.bid(owner, zone, data=data)
    delete_dataset(dataset=data, asked_by=boss, now=NOW)
    assert erase() == 1
    assert Deletion.objects.get().waits_for == "A bid with it waits for its answer."
    job = settled(owner, zone, data=data_of(owner, zone))  # the lane decides both
    waiting = Job.objects.get(dataset=data)
    assert waiting.pk != job.pk
    assert erase(NOW + GRACE + LOOKED_EVERY) == 1
    assert Deletion.objects.get().waits_for == f"Job {waiting.pk} needs it."
    assert default_storage.exists(Dataset.everything.get(pk=data.pk).file.name)
    Job.objects.filter(pk=waiting.pk).update(status="cancelled", finished_at=NOW, settled_at=NOW)
    assert erase(NOW + GRACE + 2 * LOOKED_EVERY) == 1
    assert Dataset.everything.get(pk=data.pk).file.name == ""
    assert Deletion.objects.get().waits_for == ""


def test_books_and_log_verify_after_everything_of_a_job_is_deleted(zone, owner, boss):
    job = settled(owner, zone, metadata={"who": "Ada"}, name="Ada's letters")
    before = [
        list(Entry.objects.order_by("pk").values()),
        list(LedgerAccount.objects.order_by("pk").values()),
        Bid.objects.values("payment_micros", "position", "decision_hash", "receipt").get(),
    ]
    hashes = Artifact.objects.values_list("sha256", "weights_sha256").get()
    delete_job(job=job, asked_by=boss, now=NOW)
    delete_dataset(dataset=job.dataset, asked_by=boss, now=NOW)
    assert erase() == 1
    assert erase() == 1
    assert list_stored() == []
    assert [
        list(Entry.objects.order_by("pk").values()),
        list(LedgerAccount.objects.order_by("pk").values()),
        Bid.objects.values("payment_micros", "position", "decision_hash", "receipt").get(),
    ] == before
    assert Artifact.everything.values_list("sha256", "weights_sha256").get() == hashes
    assert verify_zone(zone).problems == []
    assert check_ledger().balanced
    for row in (Bid.objects.get(), Job.objects.get()):
        assert (row.name, row.terms.metadata) == ("Deleted", None)
    assert not list_continuable_jobs(owner).exists()


def test_what_an_owner_wrote_of_a_job_is_in_no_other_row_either(zone, elsewhere, owner, boss):
    endpoint = WebhookEndpoint.objects.create(
        organisation=owner,
        created_by=boss,
        url="https://ada.example/",
        events=["job.opened", "job.succeeded"],
        secret="whsec_x",
        created_at=NOW,
    )
    job, other = settled(owner, zone), settled(owner, elsewhere)
    told = WebhookMessage.objects.filter(endpoint=endpoint)
    assert told.filter(body__contains=job.pk).exists()
    others = list(told.exclude(body__contains=job.pk).values_list("pk", flat=True))
    assert others
    check = SpotCheck.objects.create(
        job=job,
        slice=job.slices.get(),
        zone=zone,
        kind=ErrandKind.CHECK,
        from_step=0,
        state=ErrandState.FAILED,
        task={"spec": {"adapter": {"init_text": "Ada's letters"}}},
        created_at=NOW,
        gives_up_at=NOW,
    )
    delete_job(job=job, asked_by=boss, now=NOW)
    assert erase() == 1
    assert list(told.values_list("pk", flat=True)) == others
    check.refresh_from_db()
    assert check.task is None
    other.refresh_from_db()
    assert other.name == "a job"


def test_terms_without_texts_name_no_column_either():
    wish = PreparationWish(instructions="Ask Eve.", roles={"diagnosis of ada": "completion"})
    terms = JobTerms(
        adapter=AdapterSpec(AdapterKind.SOFT_PROMPT, virtual_tokens=4, init_text="Dear Ada"),
        training=TrainingSpec(),
        dataset="ds_1",
        preparation=wish,
        metadata={"who": "Ada"},
    )
    assert not re.search(r"Dear|Eve|diagnosis|who", str(strip_texts(terms)))


def test_an_adapter_that_another_job_begins_with_waits_and_is_given_to_no_further_one(zone, owner):
    job = settled(owner, zone)
    assert Donor.objects.get().job == job
    bid = market.bid(owner, zone, data=data_of(owner, zone), model=f"ft:{job.pk}")
    delete_adapter(job=job, asked_by=None, now=NOW)
    assert not Donor.objects.exists()
    with pytest.raises(UserError) as refused:
        market.bid(owner, zone, model=f"ft:{job.pk}")
    assert refused.value.code == "unknown_model"
    with pytest.raises(NotFound):
        delete_adapter(job=job, asked_by=None, now=NOW)
    erase()
    assert Deletion.objects.get().waits_for == (
        "A bid for a job that begins with what it made waits for its answer."
    )
    Bid.objects.filter(pk=bid.pk).update(status="cancelled")
    erase(NOW + GRACE + LOOKED_EVERY)
    assert Artifact.everything.get().file.name == ""
    assert not Checkpoint.objects.exclude(file="").exists()
    # What the job was called and cost stays: only its adapter was deleted.
    job.refresh_from_db()
    assert job.name == "a job"


def test_a_job_begins_with_an_adapter_that_is_deleted_meanwhile(zone, owner):
    job = settled(owner, zone)
    later = market.slot_at(zone, 120)
    Node.objects.update(last_heartbeat_at=later)
    bid = market.bid(owner, zone, data=data_of(owner, zone), model=f"ft:{job.pk}", now=later)
    decide_pending_bids(zone=zone, now=later)
    begun = Job.objects.get(bid_id=bid.pk)
    assert Artifact.objects.get(job=job).used_at == later
    delete_adapter(job=job, asked_by=None, now=NOW)
    done = dispatch_slots(now=market.slot_at(zone, begun.cells[0][0]))
    assert done.started == (begun.pk,)
    [plan] = [plan for plan in done.plans if plan.plan["slices"]]
    start = plan.plan["slices"][0]["job"]["warm_start"]
    assert start["adapter"]["sha256"] == Artifact.everything.get(job=job).sha256
    Artifact.objects.create(
        job=begun, slice=begun.slices.get(), file="one", sha256="a" * 64, bytes=1, created_at=NOW
    )
    with pytest.raises(Conflict, match="Cancel it first"):
        delete_adapter(job=begun, asked_by=None, now=NOW)


def test_a_job_that_runs_is_not_deleted(zone, owner, boss):
    market.bid(owner, zone, data=data_of(owner, zone))
    settled(owner, zone)
    running = Job.objects.get(finished_at=None)
    with pytest.raises(Conflict) as refused:
        delete_job(job=running, asked_by=boss, now=NOW)
    assert refused.value.code == "job_active"
    assert not Deletion.objects.exists()


def test_what_nobody_used_for_the_days_of_the_nearer_rule_is_deleted(zone, owner, boss):
    job = settled(owner, zone)
    idle = data_of(owner, zone)
    ended = job.finished_at
    assert delete_unretained(now=LATER) == 0
    set_retention(organisation=owner, retain_days=20, set_by=boss)
    zone.retain_days = 10
    zone.save()
    assert delete_unretained(now=NOW + timedelta(days=10)) == 0
    assert delete_unretained(now=ended + timedelta(days=10, seconds=1)) == 3
    assert set(Deletion.objects.values_list("subject", "subject_id", "asked_by_id")) == {
        ("job", job.pk, ""),
        ("dataset", job.dataset_id, ""),
        ("dataset", idle.pk, ""),
    }
    assert delete_unretained(now=LATER) == 0
    for days in (0, 6, 10_001):
        with pytest.raises(UserError) as refused:
            set_retention(organisation=owner, retain_days=days, set_by=boss)
        assert refused.value.code == "invalid_retention"


def test_a_result_that_is_used_is_retained_from_its_last_use(zone, elsewhere, owner, boss):
    job, idle = settled(owner, zone), settled(owner, elsewhere)
    set_retention(organisation=owner, retain_days=10, set_by=boss)
    used_at = job.finished_at + timedelta(days=9)
    note_adapter_use(job_ids=[job.pk], now=used_at)
    # Noted to the hour.
    note_adapter_use(job_ids=[job.pk], now=used_at + timedelta(minutes=59))
    assert Artifact.objects.get(job=job).used_at == used_at
    delete_unretained(now=used_at + timedelta(days=10))
    asked = Deletion.objects.filter(subject=Subject.JOB)
    assert list(asked.values_list("subject_id", flat=True)) == [idle.pk]
    delete_unretained(now=used_at + timedelta(days=10, seconds=1))
    assert asked.count() == 2


def test_what_is_used_while_it_is_looked_at_is_retained(zone, owner, boss, monkeypatch):
    job = settled(owner, zone)
    dataset = data_of(owner, zone)
    set_retention(organisation=owner, retain_days=10, set_by=boss)
    later = job.finished_at + timedelta(days=11)

    def use(job_id):
        note_adapter_use(job_ids=[job_id], now=later)

    def begin(dataset_id):
        Job.objects.filter(pk=job.pk).update(
            dataset=dataset_id, validation_dataset=job.dataset_id, finished_at=later
        )

    monkeypatch.setattr(deletion, "lock_artifact", use)
    monkeypatch.setattr(deletion, "lock_dataset", begin)
    assert delete_unretained(now=later) == 0
    assert not Deletion.objects.exists()
    assert Dataset.objects.filter(pk__in=[dataset.pk, job.dataset_id]).count() == 2


def test_taking_a_checkpoint_or_an_export_is_using_the_adapter(zone, owner):
    job = settled(owner, zone)
    artifact = Artifact.objects.get(job=job)
    export = Export(
        job=job, artifact=artifact, form=ExportForm.MERGED, state=ErrandState.DONE, bytes=1
    )
    export.file.save("merged", ContentFile(b"x"), save=False)
    open_export(export, range_header=None, now=LATER)
    assert Artifact.objects.get(job=job).used_at == LATER
    checkpoint = Checkpoint(job=job, step=1, bytes=1)
    checkpoint.file.save("step", ContentFile(b"x"), save=False)
    later = LATER + timedelta(days=1)
    open_checkpoint(checkpoint, name="a", range_header=None, now=later)
    export.file.close()
    checkpoint.file.close()
    assert Artifact.objects.get(job=job).used_at == later


def test_an_organisation_leaves_when_nothing_binds_it_and_only_accounts_are_left(zone, owner, boss):
    settled(owner, zone)
    _, secret = builders.api_key(owner)
    create_invitation(
        organisation=owner, email="eve@example.com", role="member", invited_by=boss, now=NOW
    )
    with pytest.raises(Conflict) as refused:
        end_organisation(organisation=owner, asked_by=boss, now=NOW)
    assert refused.value.extra == {"needs": ["Its wallet is not empty."]}
    assert not Deletion.objects.exists()
    give_up_wallet(organisation=owner, given_up_by=boss, now=NOW)
    give_up_wallet(organisation=owner, given_up_by=boss, now=NOW)
    assert check_ledger().balanced
    deletion = end_organisation(organisation=owner, asked_by=boss, now=NOW)
    assert builders.authenticate(secret=secret) is None
    assert not Membership.objects.filter(organisation=owner).exists()
    for turn in range(4):
        erase(NOW + GRACE + turn * LOOKED_EVERY)
    deletion.refresh_from_db()
    assert deletion.erased_at is not None
    assert not Deletion.objects.filter(erased_at=None).exists()
    owner.refresh_from_db()
    assert (owner.name, owner.slug) == ("Deleted", f"deleted-{owner.pk[-10:]}")
    assert [key.name for key in ApiKey.objects.all()] == ["Deleted"]
    assert Invitation.objects.get().email == f"{owner.pk}@deleted.invalid"
    assert list_stored() == []
    assert verify_zone(zone).problems == []
    assert check_ledger().balanced


def test_an_organisation_that_is_frozen_stays_until_that_ends():
    made = builders.organisation()
    leaver = builders.owner_of(made)
    freeze_organisation(organisation_id=made.pk, reference="cb_1", reason="Why.", now=NOW)
    with pytest.raises(Conflict, match="It is frozen"):
        end_organisation(organisation=made, asked_by=leaver, now=NOW)
    end_freeze(reference="cb_1", now=NOW)
    assert end_organisation(organisation=made, asked_by=leaver, now=NOW).erased_at is None


def test_no_card_fills_up_the_wallet_of_an_organisation_that_is_closed():
    made = builders.organisation()
    card = SavedCard.objects.create(
        organisation=made, gateway_id="pm_1", exp_month=1, exp_year=2030, saved_at=NOW
    )
    WalletRules.objects.create(
        organisation=made, auto_card=card, auto_below_micros=1, auto_amount_cents=500
    )
    end_organisation(organisation=made, asked_by=builders.owner_of(made), now=NOW)
    assert not WalletRules.objects.exists()
    card.refresh_from_db()
    assert card.removed_at == NOW
    assert GatewayCall.objects.get().kind == CallKind.DETACH


def test_a_person_leaves_with_their_own_organisation_and_nobody_finds_them_again(owner, boss):
    with pytest.raises(Conflict) as refused:
        end_person(person=boss, now=NOW)
    assert refused.value.code == "last_owner"
    boss.refresh_from_db()
    assert boss.is_active
    assert not Deletion.objects.exists()
    other = builders.user()
    Membership.objects.create(organisation=owner, user=other, role=Role.OWNER)
    end_person(person=boss, now=NOW)
    assert list(owner.memberships.values_list("user", flat=True)) == [other.pk]
    erase()
    erase(NOW + GRACE + LOOKED_EVERY)
    boss.refresh_from_db()
    assert (boss.email, boss.name, boss.is_active) == (f"{boss.pk}@deleted.invalid", "", False)
    assert not boss.has_usable_password()
    assert boss.personal_organisation.name == "Deleted"
    assert User.objects.filter(email=other.email).exists()


#: Stands in all that somebody is called and wrote.
WORD = "zanzibar"


def find_rows_with(word: str) -> list[str]:
    """Find every table in which a word stands, as text or in bytes."""
    found = []
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names():
            # Bytes are written as hexadecimal digits.
            words = [f"%{word}%", f"%{word.encode().hex()}%"]
            cursor.execute(f'SELECT 1 FROM "{table}" AS row WHERE row::text ILIKE ANY(%s)', [words])
            if cursor.fetchone():
                found.append(table)
    return found


def test_of_who_left_no_word_stands_in_any_row(zone, client):
    person = builders.user(email=f"{WORD}@example.com", name=f"{WORD} the First")
    owner = builders.organisation(usd="20", owner=person, name=f"{WORD} Ltd")
    client.force_login(person)
    chosen = client.session
    chosen[CHOSEN] = owner.pk
    chosen.save()
    for address, form in (
        ("/settings/api-keys", {"name": WORD, "scopes": ["jobs:read"]}),
        ("/settings/members/invite", {"email": f"eve@{WORD}.example", "role": "member"}),
        ("/settings/webhooks", {"url": f"https://{WORD}.example/", "events": ["job.opened"]}),
    ):
        client.post(address, form)
    create_endpoint(
        organisation=owner,
        created_by=person,
        url=f"https://{WORD}.example/hook",
        events=["job.opened", "job.succeeded"],
        now=NOW,
    )
    create_invitation(
        organisation=owner, email=f"{WORD}@eve.example", role="member", invited_by=person, now=NOW
    )
    settled(owner, zone, data=data_of(owner, zone, word=WORD), metadata={WORD: WORD}, name=WORD)
    assert len(find_rows_with(WORD)) > 5
    for job in Job.objects.all():
        delete_job(job=job, asked_by=person, now=NOW)
    give_up_wallet(organisation=owner, given_up_by=person, now=NOW)
    end_organisation(organisation=owner, asked_by=person, now=NOW)
    end_person(person=person, now=NOW)
    for turn in range(5):
        erase(NOW + GRACE + turn * LOOKED_EVERY)
    assert not Deletion.objects.filter(erased_at=None).exists()
    assert find_rows_with(WORD) == []
    assert set(AuditEntry.objects.values_list("person_id", "address")) == {(person.pk, None)}
    assert list_stored() == []


def test_an_archive_holds_what_an_organisation_has_and_no_secret(zone, owner, boss):
    job = settled(owner, zone)
    key, secret = builders.api_key(owner)
    deleted = data_of(owner, zone)
    delete_dataset(dataset=deleted, asked_by=boss, now=NOW)
    parts = build_archive(subject=Subject.ORGANISATION, subject_id=owner.pk)
    with zipfile.ZipFile(io.BytesIO(b"".join(parts))) as archive:
        assert archive.testzip() is None
        names = set(archive.namelist())
        with job.dataset.file.open("rb") as stored:
            assert archive.read(f"datasets/{job.dataset_id}") == stored.read()
        assert json.loads(archive.read("jobs.jsonl"))["pk"] == job.pk
        assert json.loads(archive.read("members.jsonl"))["user__email"] == boss.email
        text = b"".join(archive.read(name) for name in names if name.endswith(".jsonl"))
    assert f"adapters/{job.pk}.zip" in names
    assert f"datasets/{deleted.pk}" not in names
    assert secret.encode() not in text
    assert key.secret_hash.encode() not in text


def test_an_archive_of_a_person_holds_nothing_of_others(boss):
    builders.user(email="eve@example.com")
    parts = build_archive(subject=Subject.PERSON, subject_id=boss.pk)
    with zipfile.ZipFile(io.BytesIO(b"".join(parts))) as archive:
        assert json.loads(archive.read("person.jsonl"))["email"] == boss.email
        assert b"eve@" not in b"".join(map(archive.read, archive.namelist()))
