"""What is one organisation's is not there for another: every address, taken from the documents."""

from __future__ import annotations

import io
import re

import pytest
from django.core.cache import cache
from django.core.files.base import ContentFile
from django.test import Client

from marketplace.accounts.models import Membership
from marketplace.accounts.services import create_invitation
from marketplace.auction.bidding.bundles import NewBundle, place_bundle
from marketplace.exports.models import Export, HubPush
from marketplace.fleet.services import ListingTerms, open_listing
from marketplace.jobs.models import Upload
from marketplace.jobs.services import dispatch_slots, record_progress, store_checkpoint
from marketplace.vendors.plans import request_plan
from marketplace.webhooks.models import WebhookEndpoint
from marketplace.webhooks.services import create_endpoint, send_test
from tests import builders
from tests import job_builders as build
from tests import market_builders as market
from tests.addresses import fill, list_operations
from tests.builders import NOW
from workers.protocol.job_terms import PreparationWish

# Closing a download gives the connection back, so what was made must be committed.
pytestmark = pytest.mark.django_db(transaction=True)

#: Name a zone, which everybody sees, and a month, of which each sees their own.
PUBLIC = {"zone_name", "month"}
#: Of what the builders below do not make, or what is only there later: its owner gets 404 too.
NOT_MADE = {"/api/express/{request_id}", "/v1/models/{model}"} | {
    f"/api/jobs/{{job_id}}/{part}"
    for part in (
        *("preparation", "preparation/changes", "preparation/origins", "cancel", "pause"),
        "adapter/consent",
    )
}
#: What its owner is told of something that has not happened yet.
NOT_YET = {"/api/bids/{bid_id}/proof": 409}


@pytest.fixture
def ids(settings, tmp_path):
    """An organisation's key, and ids of what it owns by the names that addresses have for them."""
    settings.MEDIA_ROOT = tmp_path
    settings.WEBHOOKS_PRIVATE = True
    owner = builders.organisation(usd="10")
    person = builders.owner_of(owner)
    zone = market.zone()
    node = market.node(zone)
    dataset = market.dataset(owner, zone)
    bid = market.bid(owner, zone, data=dataset)
    terms = {"dataset": dataset, "zone": zone, "name": "sweep", "sweep": {"training.seed": [1, 2]}}
    bundle = place_bundle(
        asked=NewBundle(
            organisation=owner,
            placed_by=person,
            all_or_none=True,
            price_micros=1_000_000,
            deadline_at=market.slot_at(zone, 111),
            idempotency_key=None,
            **terms,
            **market.job_terms(),
        ),
        now=NOW,
    )
    job = build.job(zone, (0, node), organisation=owner, dataset=dataset)
    dispatch_slots(now=NOW)
    held = build.lease(job)
    record_progress(
        node=node, report=build.report(held, build.event(1, step=3, train_loss=2.0)), now=NOW
    )
    checkpoint = store_checkpoint(
        node=node,
        lease_token=held.lease_token,
        step=3,
        content=io.BytesIO(build.safetensors()),
        now=NOW,
    )
    upload = Upload.objects.create(
        organisation=owner, name="rows", sha256="0" * 64, bytes=1, zone=zone, created_at=NOW
    )
    endpoint, _ = create_endpoint(
        organisation=owner,
        created_by=person,
        url="http://127.0.0.1:9/",
        events=["job.failed"],
        now=NOW,
    )
    key, secret = builders.api_key(owner)
    export = Export(
        kind="export",
        organisation=owner,
        zone=zone,
        job=job,
        artifact=market.artifact(job),
        form="merged",
        price_micros=1,
        created_at=NOW,
    )
    export.node, export.state, export.bytes = node, "done", 3
    export.file.save("export", ContentFile(b"tar"))
    push = HubPush.objects.create(organisation=owner, job=job, repository="a/b", created_at=NOW)
    plan = request_plan(dataset=dataset, zone=zone, wish=PreparationWish(), now=NOW)
    invitation, _ = create_invitation(
        organisation=owner, email="bo@example.com", role="viewer", invited_by=person, now=NOW
    )
    token, _ = open_listing(
        organisation=owner,
        zone=zone,
        created_by=person,
        terms=ListingTerms(ask_micros=1_000),
        now=NOW,
    )
    made = {
        "member_id": person.memberships.get(organisation=owner).pk,
        "invitation_id": invitation.pk,
        "bid_id": bid.pk,
        "bundle_id": bundle.pk,
        "request_id": "xr_01m00000000000000000000000",
        "dataset_id": dataset.pk,
        "plan_id": plan.pk,
        "upload_id": upload.pk,
        "job_id": job.pk,
        "checkpoint_id": checkpoint.pk,
        "export_id": export.pk,
        "push_id": push.pk,
        "webhook_id": endpoint.pk,
        "delivery_id": send_test(endpoint=endpoint, now=NOW).pk,
        "key_id": key.pk,
        "node_id": market.node(zone, of=token.provider).pk,
        "token_id": token.pk,
        "file_id": f"file-{dataset.pk.removeprefix('ds_')}",
        "model": f"ft:{zone.name}:{owner.slug}:x:{job.pk.removeprefix('ftjob-')}",
    }
    return secret, made


def test_another_organisations_key_finds_nothing_at_any_address(ids, settings):
    cache.clear()
    settings.API_REQUESTS_PER_MINUTE = dict.fromkeys(settings.API_REQUESTS_PER_MINUTE, 10**6)
    owners, made = ids
    _, strangers = builders.api_key(builders.organisation(usd="10"))

    client = Client()

    def send(method, path, secret):
        address = fill(path, made.__getitem__)
        headers = {"Authorization": f"Bearer {secret}"}
        if method == "get":
            answer = client.get(address, headers=headers)
            # Nothing reads a download here, so nothing else closes its file.
            answer.close()
            return answer
        body = {"data": {}, "content_type": "application/json"}
        return getattr(client, method)(address, headers=headers, **body)

    walked = 0
    for method, path in list_operations():
        names = set(re.findall(r"{([a-z_]+)}", path))
        if not names or names & PUBLIC:
            continue
        walked += 1
        assert send(method, path, strangers).status_code == 404, (method, path)
        # A job of the builders has no bid, which /v1 shows with it.
        if method == "get" and path.startswith("/api/"):
            # Otherwise nothing was tried.
            expected = 404 if path in NOT_MADE else NOT_YET.get(path, 200)
            assert send(method, path, owners).status_code == expected, path
    assert walked > 35
    assert WebhookEndpoint.objects.count() == 1
    assert Membership.objects.filter(pk=made["member_id"], role="owner").exists()
    for path in (
        *("/api/bids", "/api/jobs", "/api/datasets", "/api/webhooks", "/api/invitations"),
        *("/v1/files", "/v1/fine_tuning/jobs"),
    ):
        assert send("get", path, strangers).json()["data"] == []
