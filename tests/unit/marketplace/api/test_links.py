"""Links that need no sign-in: one file, for some time, as long as who made it could fetch it."""

from __future__ import annotations

import io
from datetime import timedelta
from urllib.parse import urlsplit

import pytest
from django.test import Client

from marketplace.accounts.api_keys import revoke_api_key
from marketplace.accounts.models import ApiKey
from marketplace.common import clock
from marketplace.exports.links import make_link, open_link
from marketplace.jobs.models import Job
from marketplace.jobs.services import dispatch_slots, store_checkpoint
from tests import builders
from tests import job_builders as build
from tests import market_builders as market
from tests.builders import NOW
from tests.pages import read_download
from tests.unit.marketplace.api.client import Api

# Closing a download gives the connection back, so what was made must be committed.
pytestmark = pytest.mark.django_db(transaction=True)

CONTENT = build.safetensors(7)


@pytest.fixture
def owner():
    return builders.organisation(usd="10")


@pytest.fixture
def api(owner):
    return Api(owner)


@pytest.fixture
def job(owner, settings, tmp_path):
    settings.MEDIA_ROOT = tmp_path
    return make_job(owner)


def make_job(owner) -> Job:
    zone = market.zone()
    node = market.node(zone)
    made = build.job(zone, (0, node), organisation=owner)
    dispatch_slots(now=NOW)
    token = build.lease(made).lease_token
    store_checkpoint(node=node, lease_token=token, step=1, content=io.BytesIO(CONTENT), now=NOW)
    return made


def make(api: Api, job: Job, **asked) -> dict:
    file = job.checkpoints.get().pk
    answer = api.post(f"/api/jobs/{job.pk}/links", {"file": file} | asked)
    assert answer.status_code == 201, answer.content
    return answer.json()


def fetch(url: str, **headers: str):
    """As somebody who has nothing but the address."""
    return Client().get(urlsplit(url).path, headers=headers)


def test_a_link_gives_its_file_whole_or_in_part_to_all_who_have_it(api, job):
    link = make(api, job)
    whole = fetch(link["url"])
    assert (whole.status_code, read_download(whole)) == (200, CONTENT)
    assert whole["Cache-Control"] == "private, no-store"
    assert whole["Referrer-Policy"] == "no-referrer"
    part = fetch(link["url"], Range="bytes=3-6")
    assert (part.status_code, read_download(part)) == (206, CONTENT[3:7])
    assert part["ETag"] == whole["ETag"]
    assert Client().post(urlsplit(link["url"]).path).status_code == 405


def test_a_link_ends_with_its_time(api, owner, job):
    made_at = clock.now()
    link = make_link(
        job=job,
        file=job.checkpoints.get().pk,
        made_by=builders.owner_of(owner),
        api_key=None,
        lifetime=timedelta(hours=1),
        now=made_at,
    )
    token = link.url.rpartition("/")[2]
    assert link.expires_at - made_at <= timedelta(hours=1)
    open_link(token=token, range_header=None, now=link.expires_at - timedelta(seconds=1)).close()
    over = make(api, job, expires_in_s=1)
    later = clock.now() + timedelta(seconds=2)
    with pytest.raises(Exception, match="has ended"):
        open_link(token=over["url"].rpartition("/")[2], range_header=None, now=later)


def test_a_link_ends_with_the_key_that_made_it(api, owner, job):
    link = make(api, job)
    key = ApiKey.objects.get()
    revoke_api_key(
        organisation=owner, key_id=key.pk, revoked_by=builders.owner_of(owner), now=clock.now()
    )
    assert fetch(link["url"]).status_code == 404


def test_a_link_gives_nothing_while_the_key_that_made_it_is_frozen(api, job):
    link = make(api, job)
    ApiKey.objects.update(frozen_at=NOW, frozen_reason="It was stolen.")
    assert fetch(link["url"]).status_code == 404
    ApiKey.objects.update(frozen_at=None, frozen_reason="")
    assert read_download(fetch(link["url"])) == CONTENT


def test_a_link_ends_when_who_made_it_leaves(owner, job):
    person = builders.owner_of(owner)
    link = make_link(
        job=job,
        file=job.checkpoints.get().pk,
        made_by=person,
        api_key=None,
        lifetime=timedelta(hours=1),
        now=clock.now(),
    )
    assert read_download(fetch(link.url)) == CONTENT
    owner.memberships.filter(user=person).delete()
    assert fetch(link.url).status_code == 404


def test_a_link_that_was_changed_is_no_link(api, job):
    url = make(api, job)["url"]
    head, _, token = url.rpartition("/")
    payload, stamp, signature = token.split(":")
    for wrong in (
        token[:-1] + ("A" if token[-1] != "A" else "B"),
        f"{payload}x:{stamp}:{signature}",
        f"{payload}:{stamp}",
        "..%2f..%2fetc%2fpasswd",
        "x" * 5_000,
    ):
        answer = fetch(f"{head}/{wrong}")
        assert answer.status_code == 404, wrong
    assert fetch(f"{head}/%00").status_code == 400


@pytest.mark.parametrize("file", ["adapter", "fckpt_no", "exp_no", "../../secret", "\0", "x" * 60])
def test_there_is_no_link_to_what_is_not_there(api, job, file):
    answer = api.post(f"/api/jobs/{job.pk}/links", {"file": file})
    assert answer.status_code in (400, 404), answer.content
    assert answer.json()["code"] in ("no_adapter", "unknown_checkpoint", "invalid_request")


@pytest.mark.parametrize("expires_in_s", [0, -1, 7 * 24 * 3600 + 1, 10**30, "soon", None])
def test_a_link_lives_a_week_at_most(api, job, expires_in_s):
    file = job.checkpoints.get().pk
    answer = api.post(f"/api/jobs/{job.pk}/links", {"file": file, "expires_in_s": expires_in_s})
    assert (answer.status_code, answer.json()["param"]) == (400, "expires_in_s")


def test_a_stranger_makes_no_link_to_a_file(api, job):
    stranger = Api(builders.organisation(usd="10"))
    checkpoint = job.checkpoints.get().pk
    assert stranger.post(f"/api/jobs/{job.pk}/links", {"file": checkpoint}).status_code == 404
    own = make_job(stranger.owner)
    assert stranger.post(f"/api/jobs/{own.pk}/links", {"file": checkpoint}).status_code == 404
