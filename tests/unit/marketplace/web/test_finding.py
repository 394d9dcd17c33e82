"""What is found by name: one's own things, the pages of one's menu, and the guides."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from marketplace.jobs.models import Dataset, Job
from tests import builders, market_builders
from tests import job_builders as build
from tests.pages import read_page
from tests.unit.marketplace.web.conftest import Site

pytestmark = pytest.mark.django_db


def find(site: Site, words: str) -> dict[str, list[dict[str, Any]]]:
    answer = site.client.get("/find", {"q": words}, headers={"Accept": "application/json"})
    return {group["title"]: group["things"] for group in answer.json()["groups"]}


def test_own_things_are_found_by_name_and_id_and_no_others(site: Site) -> None:
    job = build.job(site.zone, (0, site.node), organisation=site.organisation, name="zebra-run")
    other = builders.organisation()
    build.job(site.zone, (0, site.node), organisation=other, name="zebra-foreign")
    Dataset.objects.filter(pk=site.dataset.pk).update(name="zebra rows")
    foreign = market_builders.dataset(other, site.zone)
    Dataset.objects.filter(pk=foreign.pk).update(name="zebra foreign")
    found = find(site, "ZEBRA")
    assert found == {
        "Jobs": [{"name": "zebra-run", "detail": job.pk, "href": f"/jobs/{job.pk}"}],
        "Data": [
            {
                "name": "zebra rows",
                "detail": site.dataset.pk,
                "href": f"/datasets/{site.dataset.pk}",
            }
        ],
    }
    assert find(site, job.pk[6:])["Jobs"] == found["Jobs"]
    assert find(site, "%").keys() == {"Docs"}


def test_nodes_are_found_by_their_provider_alone(site: Site) -> None:
    assert "Nodes" not in find(site, site.node.name)
    site.client.force_login(builders.owner_of(site.node.provider.organisation))
    [node] = find(site, site.node.name)["Nodes"]
    assert (node["name"], node["href"]) == (site.node.name, f"/nodes/{site.node.pk}")


def test_pages_are_those_of_the_menu_and_organisations_the_operators(site: Site) -> None:
    assert find(site, "wallet")["Pages"] == [
        {"name": "Wallet", "detail": "Money", "href": "/wallet"}
    ]
    assert "Organisations" not in find(site, "Northwind")
    assert "Pages" not in find(site, "Background work")
    site.client.force_login(builders.operator())
    assert [page["href"] for page in find(site, "Background work")["Pages"]] == [
        "/operator/background"
    ]
    [organisation] = find(site, "Northwind")["Organisations"]
    assert organisation["href"] == f"/operator/organisations/{site.organisation.pk}"


def test_an_operator_opens_what_is_of_others_by_its_whole_id(site: Site) -> None:
    job = build.job(site.zone, (0, site.node), organisation=site.organisation, name="zebra")
    assert "Of others" not in find(site, job.pk)
    site.client.force_login(builders.operator())
    for words, href in (
        (job.pk, f"/operator/jobs/{job.pk}"),
        (site.node.pk, f"/operator/nodes/{site.node.pk}"),
        (site.zone.name, f"/operator/zones/{site.zone.name}"),
    ):
        assert [thing["href"] for thing in find(site, words)["Of others"]] == [href]
    assert "Of others" not in find(site, job.pk[:-1])


def test_what_one_does_stands_first_in_the_menu(site: Site) -> None:
    def first() -> str:
        page = site.client.get("/notices").content.decode()
        return page.partition('<nav class="nav" aria-label="')[2].partition('"')[0]

    assert first() == "Train"
    site.client.force_login(builders.owner_of(site.node.provider.organisation))
    assert first() == "Provide"
    site.client.force_login(builders.operator())
    assert first() == "House"


def test_guides_are_found_and_the_page_works_without_a_script(site: Site) -> None:
    assert any(hit["href"].startswith("/docs/webhooks") for hit in find(site, "webhooks")["Docs"])
    page = read_page(site.client.get("/find", {"q": "wallet"}))
    assert "Wallet" in page
    assert "Nothing found" in read_page(site.client.get("/find", {"q": "qqqq"}))


def test_the_queries_do_not_grow_with_what_there_is(site: Site) -> None:
    build.job(site.zone, (0, site.node), organisation=site.organisation, name="zebra")
    find(site, "zebra")
    with CaptureQueriesContext(connection) as few:
        find(site, "zebra")
    for number in range(8):
        build.job(site.zone, (0, site.node), organisation=site.organisation, name=f"zebra-{number}")
    with CaptureQueriesContext(connection) as many:
        found = find(site, "zebra")
    assert len(many) == len(few)
    assert len(found["Jobs"]) == 5
    assert Job.objects.count() == 9
