"""The home of who trains: first steps until an adapter, then what runs and what ended."""

from __future__ import annotations

import re

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from marketplace.jobs.models import Artifact, Job
from tests import builders
from tests import job_builders as build
from tests.builders import NOW
from tests.pages import read_page
from tests.unit.marketplace.web.conftest import Site
from tests.unit.marketplace.web.test_take_away import finish_job

pytestmark = pytest.mark.django_db


def test_a_new_organisation_is_led_to_its_first_adapter(site: Site) -> None:
    newcomer = builders.user(name="Zoe")
    site.client.force_login(newcomer)
    page = read_page(site.client.get("/train"))
    assert "Your first adapter" in page
    assert "Done: " not in page
    assert "Nothing is running." in page
    assert "No job has ended yet." in page
    site.client.force_login(builders.owner_of(site.organisation))
    page = read_page(site.client.get("/train"))
    # There are data and money, and no bid.
    assert page.count("Done: ") == 2


def test_what_runs_and_what_ended_stand_there_and_no_more_steps(site: Site) -> None:
    done = finish_job(site)
    running = build.job(
        site.zone, (200, site.node), organisation=site.organisation, name="runs-now"
    )
    build.job(site.zone, (201, site.node), organisation=builders.organisation(), name="foreign")
    page = site.client.get("/train").content.decode()
    assert "Your first adapter" not in page
    assert f'href="/jobs/{running.pk}"' in page
    assert f'href="/adapters/{done.pk}"' in page
    assert "foreign" not in page
    assert re.search(r"1\.000\s+<span class=\"cap\">from 4\.000", page)
    Artifact.objects.update(deleted_at=NOW)
    assert f'href="/jobs/{done.pk}"' in site.client.get("/train").content.decode()


def test_its_queries_do_not_grow_with_the_jobs(site: Site) -> None:
    def make(number: int) -> Job:
        return build.job(
            site.zone, (200 + number, site.node), organisation=site.organisation, name=f"n{number}"
        )

    make(0)
    site.client.get("/train")
    with CaptureQueriesContext(connection) as few:
        site.client.get("/train")
    for number in range(1, 9):
        make(number)
    with CaptureQueriesContext(connection) as many:
        page = site.client.get("/train").content.decode()
    assert len(many) == len(few)
    assert page.count('class="nm" href="/jobs/') == 6
