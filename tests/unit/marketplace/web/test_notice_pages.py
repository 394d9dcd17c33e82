"""The pages of notices: read, opened, and chosen for mail."""

from __future__ import annotations

import pytest

from marketplace.accounts.models import Membership, Role
from marketplace.jobs.models import EventKind
from marketplace.jobs.services import add_job_event
from marketplace.web.current_organisation import CHOSEN
from marketplace.web.views.notices import ROWS_PER_PAGE
from marketplace.webhooks.models import Notice
from marketplace.webhooks.news import NOTICE_KINDS, News
from marketplace.webhooks.notices import add_notices, get_mailed_kinds
from tests import builders
from tests import job_builders as build
from tests.builders import NOW
from tests.unit.marketplace.web.conftest import Site

pytestmark = pytest.mark.django_db


def tell(organisation, *, kind="job.succeeded", about="ftjob-1"):
    news = News(organisation.pk, kind, {"id": about, "message": "All is well."}, name="tone")
    add_notices(news=[news], now=NOW)


def test_the_page_lists_own_notices_and_reading_one_goes_to_its_job(site: Site) -> None:
    user = builders.owner_of(site.organisation)
    job = build.job(site.zone, (0, site.node), organisation=site.organisation)
    add_job_event(job=job, kind=EventKind.SUCCEEDED, message="Done.", now=NOW)
    other = builders.organisation()
    tell(other)
    page = site.client.get("/notices").content.decode()
    assert page.count('class="unread"') == 1
    assert '<span class="count">1</span>' in page
    notice = Notice.objects.get(organisation=site.organisation)
    foreign = Notice.objects.get(organisation=other)
    assert site.client.get(f"/notices/{notice.pk}").status_code == 405
    assert site.client.post(f"/notices/{foreign.pk}").status_code == 404
    answer = site.client.post(f"/notices/{notice.pk}")
    assert answer["Location"] == f"/jobs/{job.pk}"
    foreign.refresh_from_db()
    assert foreign.read_at is None
    assert 'class="unread"' not in site.client.get("/notices").content.decode()
    tell(site.organisation, kind="job.failed")
    assert site.client.post("/notices/read")["Location"] == "/notices"
    assert not Notice.objects.filter(user=user, read_at=None).exists()


def test_the_settings_offer_what_a_role_is_told(site: Site) -> None:
    page = site.client.get("/notices/settings").content.decode()
    assert page.count('name="mailed"') == len(NOTICE_KINDS)
    assert page.count("checked") == len(NOTICE_KINDS) - 1
    site.client.post("/notices/settings", {"mailed": ["cap.near"]})
    assert site.client.get("/notices/settings").content.decode().count("checked") == 1
    worker = builders.user()
    Membership.objects.create(
        organisation=site.organisation, user=worker, role=Role.MEMBER, created_at=NOW
    )
    site.client.force_login(worker)
    session = site.client.session
    session[CHOSEN] = site.organisation.pk
    session.save()
    page = site.client.get("/notices/settings").content.decode()
    assert 'value="payout.paid"' not in page
    # What was not offered was not chosen against, should the role change.
    site.client.post("/notices/settings", {"mailed": ["job.failed"]})
    mailed = get_mailed_kinds(user=worker, organisation=site.organisation)
    assert mailed == ["cap.near", "job.failed", "node.silent", "payout.failed", "payout.paid"]


def test_older_notices_are_on_further_pages(site: Site) -> None:
    for number in range(ROWS_PER_PAGE + 1):
        tell(site.organisation, about=f"ftjob-{number}")
    page = site.client.get("/notices").content.decode()
    assert page.count('class="unread"') == ROWS_PER_PAGE
    oldest, last_shown = Notice.objects.order_by("pk").values_list("pk", flat=True)[:2]
    assert f"?before={last_shown}" in page
    rest = site.client.get(f"/notices?before={last_shown}").content.decode()
    assert f"/notices/{oldest}" in rest
    assert rest.count('class="unread"') == 1
    Notice.objects.exclude(pk=oldest).update(read_at=NOW)
    assert "Mark all as read" in site.client.get("/notices").content.decode()
