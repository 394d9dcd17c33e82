"""What people, keys and commands did is on record, with who, what for, and whether it was done."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import call_command, get_commands, load_command_class
from django.db import DatabaseError, connection, transaction
from django.test import Client

from marketplace.accounts.audit import list_entries, write_csv
from marketplace.accounts.models import AuditEntry, Membership, Role, Scope, User
from marketplace.accounts.operator_command import OperatorCommand
from marketplace.web.current_organisation import CHOSEN
from tests import builders
from tests.builders import PASSWORD
from tests.pages import read_download

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def unlimited(settings):
    settings.ACCOUNT_RATE_LIMITS = False


@pytest.fixture
def organisation():
    return builders.organisation()


@pytest.fixture
def owner(organisation):
    client = Client()
    client.force_login(builders.owner_of(organisation))
    session = client.session
    session[CHOSEN] = organisation.pk
    session.save()
    return client


def last() -> AuditEntry:
    found = AuditEntry.objects.order_by("-pk").first()
    assert found is not None
    return found


def test_a_change_on_a_page_is_on_record_and_a_look_is_not(owner, organisation) -> None:
    person = builders.user()
    Membership.objects.create(organisation=organisation, user=person, role=Role.MEMBER)
    owner.get("/settings/members")
    assert AuditEntry.objects.count() == 0
    owner.post(f"/settings/members/{person.pk}/role", {"role": "viewer", "email": "x@example.com"})
    entry = last()
    assert (entry.act, entry.subject, entry.done) == ("Set role", person.pk, True)
    assert entry.details == {"role": "viewer"}
    assert entry.organisation_id == organisation.pk
    assert entry.person_id == builders.owner_of(organisation).pk
    assert (entry.key_id, entry.address) == ("", "127.0.0.1")
    assert AuditEntry.objects.count() == 1


def test_what_was_refused_is_on_record_as_refused(organisation) -> None:
    viewer = builders.user()
    Membership.objects.create(organisation=organisation, user=viewer, role=Role.VIEWER)
    client = Client()
    client.force_login(viewer)
    session = client.session
    session[CHOSEN] = organisation.pk
    session.save()
    assert client.post("/settings/api-keys", {"name": "x"}).status_code == 403
    entry = last()
    assert (entry.act, entry.done, entry.person_id) == ("API keys", False, viewer.pk)


def test_an_error_that_a_page_shows_after_a_redirect_counts_as_refused(owner, organisation) -> None:
    alone = builders.owner_of(organisation)
    assert owner.post(f"/settings/members/{alone.pk}/remove").status_code == 302
    assert organisation.memberships.filter(user=alone).exists()
    assert (last().act, last().done) == ("Remove member", False)


def test_signing_in_is_on_record_and_so_is_an_attempt_that_failed(client) -> None:
    person = builders.user(email="ada@example.com")
    for password in ("wrong", PASSWORD):
        client.post("/accounts/login/", {"login": person.email, "password": password})
    failed, done = AuditEntry.objects.order_by("pk")
    assert (failed.act, failed.done, failed.person_id) == ("Account login", False, "")
    assert failed.details == {"account": person.pk}
    assert (done.act, done.done, done.person_id) == ("Account login", True, person.pk)
    assert PASSWORD not in str(done.details)
    assert person.email not in str(done.details)


def test_making_somebody_an_operator_is_on_record(client) -> None:
    root = User.objects.create_superuser("root@example.com", PASSWORD)
    person = builders.user(email="ada@example.com")
    client.force_login(root)
    address = f"/admin/accounts/user/{person.pk}/change/"
    client.get(address)
    form = {"email": "ada@example.com", "name": "", "is_active": "on", "is_operator": "on"}
    form |= {"memberships-TOTAL_FORMS": "0", "memberships-INITIAL_FORMS": "0"}
    assert client.post(address, form).status_code == 302
    read, changed = AuditEntry.objects.order_by("pk")
    assert (read.act, read.subject) == ("Accounts user change", person.pk)
    assert (read.details, read.done) == ({}, True)
    assert changed.details == {"is_active": "on", "is_operator": "on"}
    assert (changed.person_id, changed.subject) == (root.pk, person.pk)


def test_what_an_operator_opens_of_others_is_on_record(client) -> None:
    operator = User.objects.create_superuser("root@example.com", PASSWORD)
    client.force_login(operator)
    client.get("/operator/money/rent/2026-10")
    assert (last().act, last().subject, last().done) == ("Rent", "2026-10", True)
    before = AuditEntry.objects.count()
    client.get("/operator/money")
    assert AuditEntry.objects.count() == before
    client.get("/operator/audit/csv")
    assert (last().act, last().done) == ("Download audit log", True)


@pytest.mark.django_db(transaction=True)
def test_what_commits_over_the_api_is_on_record_and_everyday_work_is_not(organisation) -> None:
    key, secret = builders.api_key(
        organisation,
        scopes=[
            Scope.WEBHOOKS_WRITE,
            Scope.DATASETS_READ,
            Scope.DATASETS_WRITE,
            Scope.JOBS_WRITE,
        ],
    )
    client = Client(headers={"Authorization": f"Bearer {secret}"})
    client.get("/api/datasets")
    client.post("/api/datasets", {})
    assert AuditEntry.objects.count() == 0
    client.delete("/api/webhooks/wh_none")
    client.delete("/api/datasets/ds_none")
    client.put("/api/integrations/wandb", {"key": "k"}, content_type="application/json")
    first, second, third = AuditEntry.objects.order_by("pk")
    assert (first.act, first.subject) == (
        "DELETE /api/webhooks/<str:webhook_id>",
        "wh_none",
    )
    assert (first.key_id, first.organisation_id, first.done) == (key.pk, organisation.pk, False)
    assert second.act == "DELETE /api/datasets/<str:dataset_id>"
    # Where an organisation's figures go.
    assert (third.act, third.details) == ("PUT /api/integrations/wandb", {})


def test_a_command_that_changes_the_market_is_on_record(organisation) -> None:
    operator = User.objects.create_superuser("root@example.com", PASSWORD)
    who = ("--operator", operator.email, "--reference", "opening")
    call_command("wallet_grant", organisation.slug, "5", *who, stdout=StringIO())
    entry = last()
    assert entry.act == "manage.py wallet_grant"
    assert entry.details["by"]
    assert organisation.slug in entry.details.values()


#: Commands that change nothing of a market that runs.
SILENT = {"auction_transcript", "auction_verify", "backup", "doctor", "ledger_check", "migrate"} | {
    "openapi_write",
    "print_routes",
    "restore",
    "settings_write",
    "storage_check",
}


def test_every_other_command_is_on_record() -> None:
    ours = {name: app for name, app in get_commands().items() if app.startswith("marketplace.")}
    classes = {name: type(load_command_class(app, name)) for name, app in ours.items()}
    assert {name for name, of in classes.items() if not issubclass(of, OperatorCommand)} == SILENT


def test_who_takes_all_data_away_is_on_record(owner, organisation) -> None:
    owner.get("/settings/data/archive")
    assert (last().act, last().organisation_id) == ("Download archive", organisation.pk)
    owner.get("/settings/data/own-archive")
    assert last().act == "Download own archive"
    key, secret = builders.api_key(organisation)
    Client().get("/api/archive", headers={"Authorization": f"Bearer {secret}"})
    assert (last().act, last().key_id, last().done) == ("GET /api/archive", key.pk, True)
    Client().get("/api/retention", headers={"Authorization": f"Bearer {secret}"})
    assert AuditEntry.objects.count() == 3


def test_a_secret_in_an_address_is_not_kept(client) -> None:
    client.force_login(builders.user())
    client.post("/invitations/a-secret-of-an-invitation")
    assert "a-secret" not in f"{last().subject} {last().details} {last().act}"


def test_an_entry_is_never_changed_or_removed() -> None:
    entry = AuditEntry.objects.create(at=builders.NOW, act="x", done=True, address="127.0.0.1")
    for change in (
        lambda: AuditEntry.objects.filter(pk=entry.pk).update(act="y"),
        lambda: AuditEntry.objects.filter(pk=entry.pk).update(act="y", address=None),
        lambda: AuditEntry.objects.filter(pk=entry.pk).update(address="127.0.0.2"),
        lambda: AuditEntry.objects.filter(pk=entry.pk).delete(),
        lambda: connection.cursor().execute("TRUNCATE accounts_auditentry"),
    ):
        with pytest.raises(DatabaseError, match="Cannot"), transaction.atomic():
            change()


def test_filters_and_csv_agree(owner, organisation) -> None:
    person = builders.user(email="ada@example.com")
    for days, who in enumerate((person.pk, "usr_other", person.pk)):
        AuditEntry.objects.create(
            at=builders.NOW + timedelta(days=days),
            organisation_id=organisation.pk if days < 2 else "org_other",
            person_id=who,
            act="Set role",
            subject="=1+1",
            done=True,
        )
    found = list_entries(organisation_id=organisation.pk, person="ada@", act="role")
    assert [entry.person_id for entry in found] == [person.pk]
    since = builders.NOW + timedelta(days=1)
    assert list_entries(since=since).count() == 2
    assert [entry.person_id for entry in list_entries(act="org_other")] == [person.pk]
    assert list_entries(since=since, until=since + timedelta(days=1)).count() == 1
    lines = list(write_csv(found))
    assert len(lines) == 2
    assert lines[1].split(",")[2:6] == [person.pk, "", "Set role", "'=1+1"]
    page = owner.get("/settings/audit-log", {"who": "ada@"}).content.decode()
    assert page.count("Set role") == 1
    assert "ada@example.com" in page
    address = "/settings/audit-log/csv"
    sent = read_download(owner.get(address, {"who": "ada@"}))
    assert sent.decode().splitlines() == lines
