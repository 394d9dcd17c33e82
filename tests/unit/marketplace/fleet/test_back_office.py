"""The operator's back office of fleet and jobs: all can be seen, no secret is shown."""

from __future__ import annotations

import pytest
from django.contrib.admin.sites import site
from django.test import Client
from django.urls import reverse

from marketplace.fleet.models import Node, NodeStatus
from marketplace.jobs.models import NodePlan
from marketplace.jobs.services import dispatch_slots
from tests import builders
from tests import job_builders as build
from tests import market_builders as market
from tests.builders import NOW

pytestmark = pytest.mark.django_db


@pytest.fixture
def office():
    client = Client()
    client.force_login(builders.operator())
    return client


def ours() -> list[str]:
    return [
        f"admin:{model._meta.label_lower.replace('.', '_')}_changelist"
        for model in site._registry
        if model._meta.app_label in ("fleet", "jobs")
    ]


def test_every_list_and_every_row_opens_without_a_secret(office):
    node, reply = build.joined(market.zone())
    job = build.job(node.zone, (0, node))
    dispatch_slots(now=NOW)
    held = build.lease(job)
    node.refresh_from_db()
    secrets = [held.lease_token, node.api_token_hash, reply.api_token]
    pages = [reverse(name) for name in ours()]
    assert len(pages) == 14
    pages += [
        reverse("admin:fleet_node_change", args=[node.pk]),
        reverse("admin:jobs_job_change", args=[job.pk]),
        reverse("admin:jobs_slice_change", args=[held.pk]),
        reverse("admin:jobs_nodeplan_change", args=[NodePlan.objects.get(node=node).pk]),
    ]
    for page in pages:
        response = office.get(page)
        assert response.status_code == 200, page
        text = response.content.decode()
        assert not [secret for secret in secrets if secret in text], page


def test_a_node_is_drained_and_put_back_from_the_list(office):
    node, _ = build.joined(market.zone())
    Node.objects.filter(pk=node.pk).update(last_heartbeat_at=NOW)
    page = reverse("admin:fleet_node_changelist")
    office.post(page, {"action": "drain", "_selected_action": [node.pk]})
    assert Node.objects.get().status == NodeStatus.DRAINING
    office.post(page, {"action": "put_back", "_selected_action": [node.pk]})
    # Silent since long ago, by the real clock.
    assert Node.objects.get().status == NodeStatus.OFFLINE
    answer = office.post(page, {"action": "put_back", "_selected_action": [node.pk]}, follow=True)
    assert "Only a drained node" in answer.content.decode()


def test_a_node_is_suspended_and_trusted_again_from_the_list(office):
    node, _ = build.joined(market.zone())
    page = reverse("admin:fleet_node_changelist")
    office.post(page, {"action": "suspend", "_selected_action": [node.pk]})
    assert Node.objects.get().status == NodeStatus.SUSPENDED
    assert Node.objects.filter(suspended_by__is_operator=True).count() == 1
    office.post(page, {"action": "put_back", "_selected_action": [node.pk]})
    assert Node.objects.get().status == NodeStatus.SUSPENDED
    office.post(page, {"action": "lift_suspension", "_selected_action": [node.pk]})
    # Silent since long ago, by the real clock.
    assert (Node.objects.get().status, Node.objects.get().suspended_at) == (
        NodeStatus.OFFLINE,
        None,
    )


def test_who_is_no_operator_sees_nothing():
    client = Client()
    client.force_login(builders.user())
    assert client.get(reverse("admin:fleet_node_changelist")).status_code == 302
