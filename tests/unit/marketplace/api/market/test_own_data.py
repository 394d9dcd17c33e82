"""Deletion, retention and the archive, as programs use them."""

from __future__ import annotations

import io
import zipfile

import pytest

from marketplace.accounts.models import Deletion
from marketplace.jobs.models import Artifact, Dataset
from tests import builders, job_builders
from tests import market_builders as market
from tests.pages import read_download
from tests.unit.marketplace.api.client import Api, assert_problem
from tests.warm_builders import finished, live_node

pytestmark = pytest.mark.django_db


@pytest.fixture
def owner():
    return builders.organisation(usd="20")


@pytest.fixture
def api(owner):
    return Api(owner)


def test_a_data_set_an_adapter_and_a_job_are_deleted_and_listed(api, owner):
    zone = market.zone()
    live_node(zone)
    job = finished(owner, zone)
    assert api.delete(f"/api/datasets/{job.dataset_id}").status_code == 204
    assert_problem(api.get(f"/api/datasets/{job.dataset_id}"), 404, "unknown_dataset")
    asked = api.delete(f"/api/jobs/{job.pk}/adapter")
    assert (asked.status_code, asked.json()["subject"]) == (202, "adapter")
    assert_problem(api.get(f"/api/jobs/{job.pk}/adapter"), 404, "no_adapter")
    assert_problem(api.delete(f"/api/jobs/{job.pk}/adapter"), 404, "no_adapter")
    assert api.delete(f"/api/jobs/{job.pk}").json()["subject_id"] == job.pk
    listed = api.get("/api/deletions").json()["data"]
    assert {(one["subject"], one["erased_at"], one["by_retention"]) for one in listed} == {
        (subject, None, False) for subject in ("dataset", "adapter", "job")
    }
    assert api.get(f"/api/jobs/{job.pk}").status_code == 200
    assert Api(builders.organisation()).get("/api/deletions").json()["data"] == []


def test_what_is_not_over_or_not_theirs_stays(api, owner):
    zone = market.zone()
    job = job_builders.job(zone, (0, market.node(zone)), organisation=owner)
    assert_problem(api.delete(f"/api/jobs/{job.pk}"), 409, "job_active")
    stranger = Api(builders.organisation())
    assert_problem(stranger.delete(f"/api/jobs/{job.pk}"), 404, "unknown_job")
    assert_problem(stranger.delete(f"/api/datasets/{job.dataset_id}"), 404, "unknown_dataset")
    reader = Api(owner, scopes=["jobs:read", "datasets:read"])
    assert_problem(reader.delete(f"/api/jobs/{job.pk}"), 403, "missing_scope")
    assert_problem(reader.get("/api/archive"), 403, "missing_scope")
    assert not Deletion.objects.exists()
    assert not Dataset.everything.exclude(deleted_at=None).exists()
    assert not Artifact.everything.exclude(deleted_at=None).exists()


def test_an_owner_sets_how_long_things_are_kept(api, owner):
    shown = {"retain_days": None, "retain_days_min": 7, "erased_within_hours": 24}
    assert api.get("/api/retention").json() == shown
    answer = api.put("/api/retention", {"retain_days": 30})
    assert answer.json() == shown | {"retain_days": 30}
    assert_problem(api.put("/api/retention", {"retain_days": 1}), 400, "invalid_retention")
    assert_problem(api.put("/api/retention", {}), 400, "invalid_request")
    owner.refresh_from_db()
    assert owner.retain_days == 30
    assert api.put("/api/retention", {"retain_days": None}).json() == shown
    market.zone(retain_days=90)
    assert [zone["retain_days"] for zone in api.get("/api/zones").json()["data"]] == [90]


def test_an_archive_comes_as_one_file(api, owner):
    data = market.dataset(owner, market.zone())
    answer = api.get("/api/archive")
    assert answer["Content-Disposition"] == f'attachment; filename="{owner.pk}.zip"'
    with zipfile.ZipFile(io.BytesIO(read_download(answer))) as archive:
        assert archive.read(f"datasets/{data.pk}") == b"{}"
