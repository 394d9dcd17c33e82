"""Nodes wait for their plans over HTTP: each gets its newest one, once, and at once."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import httpx
import pytest

from marketplace.api.internal import plans
from marketplace.api.internal.plans import WaitingNodes
from marketplace.fleet.notify import listener
from marketplace.fleet.services import open_plan_session, revoke_node_token, rotate_node_token
from marketplace.fleet.tokens import OLD_TOKEN_GRACE, TOKEN_ROTATES_AFTER
from marketplace.jobs.models import NodePlan
from marketplace.jobs.services import dispatch_slots
from tests import job_builders as build
from tests import market_builders as market
from tests.builders import NOW
from tests.job_builders import at
from tests.unit.marketplace.api.web_server import run
from tests.unit.marketplace.common.threads import at_once
from tests.waiting import until
from workers.protocol.messages import SlotPlan
from workers.protocol.plan_queue import (
    PATH_NEXT_PLAN,
    PATH_TOKEN,
    NextPlanReply,
    NextPlanRequest,
    NodeToken,
)
from workers.protocol.wire import from_json, to_json

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    def set_to(moment):
        monkeypatch.setattr("marketplace.common.clock.now", lambda: moment)

    set_to(NOW)
    return set_to


class Asker:
    """A joined node that asks for its plans."""

    def __init__(self) -> None:
        self.node, reply = build.joined(market.zone())
        self.token = reply.api_token
        self.session = open_plan_session(node=self.node, request=build.SPOKEN)

    def asked(self, *, wait_s: float = 0.0, **changed: Any) -> dict[str, Any]:
        request = NextPlanRequest(self.node.pk, self.session, wait_s=wait_s)
        token = changed.pop("token", self.token)
        body = to_json(request) | changed
        return {"json": body, "headers": {"Authorization": f"Bearer {token}"}}

    def ask(self, **changed: Any) -> httpx.Response:
        return run(lambda client: client.post(PATH_NEXT_PLAN, **self.asked(**changed)))

    def while_waiting(self, change, **changed: Any) -> httpx.Response:
        """The answer to a request that waits while something changes."""

        def change_later() -> None:
            until(lambda: plans.waiting_nodes.is_waiting(self.node.pk), what="the node waits")
            change()

        response, _ = at_once([lambda: self.ask(wait_s=20.0, **changed), change_later])
        return response


@pytest.fixture
def asker() -> Asker:
    return Asker()


def answered(response: httpx.Response) -> NextPlanReply:
    assert (response.status_code, response.headers["cache-control"]) == (200, "no-store")
    return from_json(NextPlanReply, response.json())


def refused(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["code"]


def test_the_newest_plan_is_given_until_the_node_names_it_as_held(asker):
    job = build.job(asker.node.zone, (0, asker.node))
    dispatch_slots(now=NOW)
    first = answered(asker.ask())
    plan = from_json(SlotPlan, first.plan)
    assert (plan.node_id, [part.job.job_id for part in plan.slices]) == (asker.node.pk, [job.pk])
    assert (first.slot, first.revision) == (plan.slot, plan.revision) == (build.SLOT, 1)
    # The answer was lost on the way, or the process died: it is given again.
    assert answered(asker.ask()) == first
    assert NodePlan.objects.get().taken_at == NOW
    held = {"held_slot": first.slot, "held_revision": 1}
    assert answered(asker.ask(**held)) == NextPlanReply()
    build.job(asker.node.zone, (0, asker.node))
    dispatch_slots(now=at(1))
    assert answered(asker.ask(**held)).revision == 2


def test_a_plan_is_given_the_moment_it_is_made_and_not_when_its_slot_is_over(asker, clock):
    build.job(asker.node.zone, (0, asker.node))
    reply = answered(asker.while_waiting(lambda: dispatch_slots(now=NOW)))
    assert reply.revision == 1
    clock(at(10))
    assert answered(asker.ask()) == NextPlanReply()


def test_a_nodes_token_gives_no_other_nodes_plans(asker):
    other = Asker()
    build.job(asker.node.zone, (0, asker.node))
    dispatch_slots(now=NOW)
    assert refused(other.ask(node_id=asker.node.pk)) == (400, "wrong_node")
    assert refused(other.ask(session=asker.session)) == (409, "session_superseded")
    for token in ("", "wrong", asker.session):
        assert refused(asker.ask(token=token)) == (401, "unknown_node_token")
    assert NodePlan.objects.get(node=asker.node).taken_at is None


def test_a_node_whose_token_is_revoked_is_refused_while_it_waits(asker):
    response = asker.while_waiting(lambda: revoke_node_token(node=asker.node, now=at(1)))
    assert refused(response) == (401, "unknown_node_token")


def test_another_process_of_the_node_ends_the_wait_of_the_first(asker):
    response = asker.while_waiting(lambda: open_plan_session(node=asker.node, request=build.SPOKEN))
    assert refused(response) == (409, "session_superseded")
    assert refused(asker.ask()) == (409, "session_superseded")


def test_of_a_nodes_requests_the_newest_alone_waits(asker):
    async def talk(client):
        first = asyncio.create_task(client.post(PATH_NEXT_PLAN, **asker.asked(wait_s=20.0)))
        while not plans.waiting_nodes.is_waiting(asker.node.pk):
            await asyncio.sleep(0.001)
        # A stranger's request ends nobody's wait.
        await client.post(PATH_NEXT_PLAN, **asker.asked(token="wrong"))
        assert plans.waiting_nodes.is_waiting(asker.node.pk)
        second = await client.post(PATH_NEXT_PLAN, **asker.asked())
        return await first, second

    first, second = run(talk)
    assert (answered(first), answered(second)) == (NextPlanReply(), NextPlanReply())
    assert asker.node.pk not in listener._futures


def test_a_process_that_is_about_to_end_answers_those_who_wait(asker, monkeypatch):
    monkeypatch.setattr(plans, "waiting_nodes", WaitingNodes())

    async def talk(client):
        waits = asyncio.create_task(client.post(PATH_NEXT_PLAN, **asker.asked(wait_s=20.0)))
        while not plans.waiting_nodes.is_waiting(asker.node.pk):
            await asyncio.sleep(0.001)
        plans.waiting_nodes.stop()
        return await waits, await client.post(PATH_NEXT_PLAN, **asker.asked())

    for response in run(talk):
        assert refused(response) == (503, "market_stopping")


@pytest.mark.parametrize("wait_s", [float("nan"), "1", None])
def test_a_wait_that_is_no_number_is_refused(asker, wait_s):
    asked = asker.asked()
    body = asked["json"] | {"wait_s": "NAN"}
    text = str(body).replace("'", '"').replace("None", "null")
    text = text.replace('"NAN"', {"1": '"1"', "None": "null"}.get(str(wait_s), "NaN"))
    headers = asked["headers"] | {"Content-Type": "application/json"}
    response = run(lambda client: client.post(PATH_NEXT_PLAN, content=text, headers=headers))
    assert refused(response) == (400, "invalid_message")


class TestTokens:
    def test_a_token_of_some_age_is_to_be_exchanged(self, asker, clock):
        clock(NOW + TOKEN_ROTATES_AFTER - timedelta(seconds=1))
        assert not answered(asker.ask()).rotate_token
        clock(NOW + TOKEN_ROTATES_AFTER)
        assert answered(asker.ask(wait_s=20.0)).rotate_token

    def test_the_old_token_is_valid_until_shortly_after_the_new_ones_first_use(self, asker, clock):
        def rotate(token: str) -> str:
            headers = {"Authorization": f"Bearer {token}"}
            response = run(lambda client: client.post(PATH_TOKEN, json={}, headers=headers))
            return from_json(NodeToken, response.json()).api_token

        lost = rotate(asker.token)
        new = rotate(asker.token)
        assert len({asker.token, lost, new}) == 3
        clock(at(3600))
        assert answered(asker.ask()) == NextPlanReply()
        assert refused(asker.ask(token=lost)) == (401, "unknown_node_token")
        assert answered(asker.ask(token=new)) == NextPlanReply()
        # What was under way with the old one is still answered.
        assert answered(asker.ask()) == NextPlanReply()
        clock(at(3600) + OLD_TOKEN_GRACE)
        assert refused(asker.ask()) == (401, "unknown_node_token")
        assert answered(asker.ask(token=new)) == NextPlanReply()
        assert not answered(asker.ask(token=new)).rotate_token

    def test_a_replaced_token_gets_no_other_and_a_revoked_one_neither(self, asker):
        new = rotate_node_token(node=asker.node, token=asker.token, now=at(1))
        assert answered(asker.ask(token=new)) == NextPlanReply()
        headers = {"Authorization": f"Bearer {asker.token}"}
        response = run(lambda client: client.post(PATH_TOKEN, json={}, headers=headers))
        assert refused(response) == (401, "node_token_replaced")
        revoke_node_token(node=asker.node, now=at(2))
        for token in (asker.token, new):
            assert refused(asker.ask(token=token)) == (401, "unknown_node_token")
