"""A program that talks to the market's API with a key of its own."""

from __future__ import annotations

import json
from datetime import timedelta

from django.test import Client

from marketplace.auction.settlement import settle_finished
from marketplace.common import clock
from marketplace.jobs.models import Job
from marketplace.jobs.services import dispatch_slots
from tests import builders
from tests import market_builders as market
from workers.protocol.reports import SliceEnd

ROWS = "".join(
    json.dumps(
        {
            "messages": [
                {"role": "user", "content": f"question {number}"},
                {"role": "assistant", "content": f"answer {number}"},
            ]
        }
    )
    + "\n"
    for number in range(100)
).encode()


class Api:
    """One organisation's program."""

    def __init__(self, owner, *, scopes=None):
        self.owner = owner
        _, secret = builders.api_key(owner, scopes=scopes)
        self.headers = {"Authorization": f"Bearer {secret}"}
        # One for all requests: each new one loads the middleware.
        self._client = Client()

    def post(self, path, body=None, *, key=None, **more):
        headers = self.headers | ({"Idempotency-Key": key} if key else {})
        return self._client.post(
            path, data=body, content_type="application/json", headers=headers, **more
        )

    def form(self, path, fields, *, key=None):
        headers = self.headers | ({"Idempotency-Key": key} if key else {})
        return self._client.post(path, data=fields, headers=headers)

    def get(self, path):
        return self._client.get(path, headers=self.headers)

    def patch(self, path, body):
        return self._client.patch(
            path, data=body, content_type="application/json", headers=self.headers
        )

    def put(self, path, body):
        return self._client.put(
            path, data=body, content_type="application/json", headers=self.headers
        )

    def delete(self, path):
        return self._client.delete(path, headers=self.headers)


def body_of(api, on, **changed):
    deadline = clock.now() + timedelta(seconds=300)
    body = {
        "zone": on.name,
        "dataset_id": market.dataset(api.owner, on).pk,
        "name": "a job",
        "price": "5.00",
        "deadline": deadline.isoformat(),
        **market.job_terms(),
    } | changed
    return {name: value for name, value in body.items() if value is not None}


def finish(job_id: str) -> None:
    """Have a node do the job."""
    job = Job.objects.select_related("zone").get(pk=job_id)
    start = job.zone.epoch_at + timedelta(seconds=job.zone.slot_s * job.cells[0][0] + 1)
    job.zone.nodes.update(last_heartbeat_at=start)
    dispatch_slots(now=start)
    market.end_slice(job, status=SliceEnd.FINISHED, now=start)
    settle_finished(now=start)


def assert_problem(answer, status, code):
    assert answer.status_code == status, answer.content
    assert answer["Content-Type"] == "application/problem+json"
    body = answer.json()
    assert (body["status"], body["code"]) == (status, code)
    assert body["type"] == f"urn:finetender:problem:{code}"
    assert body["detail"]
    assert body["request_id"] == answer["X-Request-Id"]
    return body
