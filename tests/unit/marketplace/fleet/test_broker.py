"""Each node's broker user takes its plans from Redis and can touch nothing else."""

from __future__ import annotations

import json
import threading

import pytest
from celery import current_app
from django.conf import settings
from redis import Redis
from redis.exceptions import AuthenticationError, NoPermissionError

from marketplace.fleet.broker import BrokerUnfit, node_broker_url, user_name
from marketplace.fleet.models import Node
from marketplace.fleet.services import restore_nodes_broker_users, retire_node
from marketplace.jobs.services import slots_dispatch
from tests import job_builders as build
from tests import market_builders as market
from tests.builders import NOW
from workers.node.credentials import Credentials
from workers.node.plan_receiver import PlanReceiver
from workers.protocol.messages import JoinReply, SlotPlan

pytestmark = pytest.mark.django_db


@pytest.fixture
def joined():
    """A joined node and the answer it got; its user goes with the test."""
    zone = market.zone()
    node, reply = build.joined(zone)
    yield node, reply
    with Redis.from_url(settings.REDIS_URL) as admin:
        admin.acl_deluser(user_name(node.pk))
        admin.delete(node.queue)


def receiver(reply: JoinReply, offer) -> PlanReceiver:
    credentials = Credentials(
        market_url="http://localhost",
        name="gpu-1",
        node_id=reply.node_id,
        api_token=reply.api_token,
        broker_url=reply.broker_url,
        queue=reply.queue,
        heartbeat_every_s=10.0,
        base_models=(),
    )
    return PlanReceiver(credentials, offer=offer)


def test_a_real_worker_takes_its_plans_with_its_own_user_and_acknowledges_them(joined):
    node, reply = joined
    job = build.job(node.zone, (0, node))
    arrived: list[SlotPlan] = []
    seen = threading.Event()

    def offer(plan: SlotPlan) -> None:
        arrived.append(plan)
        seen.set()

    plans = receiver(reply, offer)
    plans.start()
    try:
        assert plans.ready.wait(30)
        slots_dispatch(now=NOW)
        assert seen.wait(30)
    finally:
        plans.close()
    assert [part.job.job_id for part in arrived[0].slices] == [job.pk]
    assert (arrived[0].node_id, arrived[0].slot) == (node.pk, build.SLOT)
    with Redis.from_url(settings.REDIS_URL) as admin:
        left = [admin.llen(node.queue), admin.hlen(f"{node.queue}.unacked")]
    assert left == [0, 0]


def test_what_a_dead_process_left_is_taken_again_without_a_script(joined):
    node, reply = joined
    build.job(node.zone, (0, node))
    with Redis.from_url(settings.REDIS_URL) as admin:
        slots_dispatch(now=NOW)
        # As the transport leaves it: taken from the queue an age ago, never acknowledged.
        message = json.loads(admin.rpop(node.queue))
        route = message["properties"]["delivery_info"]
        taken = json.dumps([message, route["exchange"], route["routing_key"]])
        admin.hset(f"{node.queue}.unacked", "tag", taken)
        admin.zadd(f"{node.queue}.unacked_index", {"tag": 1.0})
    arrived = threading.Event()
    plans = receiver(reply, lambda _: arrived.set())
    plans.start()
    try:
        assert arrived.wait(30)
    finally:
        plans.close()
    with Redis.from_url(settings.REDIS_URL) as admin:
        assert admin.hlen(f"{node.queue}.unacked") == 0
        assert not admin.exists(f"{node.queue}.unacked_mutex")


def test_a_nodes_user_can_neither_read_nor_write_nor_list_what_is_others(joined):
    node, reply = joined
    with Redis.from_url(reply.broker_url) as mine:
        assert mine.ping()
        mine.lpush(node.queue, "x")
        assert mine.rpop(node.queue) == b"x"
        forbidden = [
            lambda: mine.lrange("default", 0, -1),
            lambda: mine.lpush("lane", "x"),
            lambda: mine.lpush("node.another", "x"),
            lambda: mine.smembers("_kombu.binding.default"),
            lambda: mine.hgetall("unacked"),
            lambda: mine.keys("*"),
            lambda: mine.scan(0),
            lambda: mine.randomkey(),
            lambda: mine.dbsize(),
            lambda: mine.flushdb(),
            lambda: mine.info(),
            lambda: mine.config_get("*"),
            lambda: mine.acl_list(),
            lambda: mine.client_list(),
            lambda: mine.publish("channel", "x"),
            lambda: mine.rename(node.queue, "default"),
            lambda: mine.eval("return redis.call('get', 'secret')", 0),
            lambda: mine.eval("return 1", 0),
            lambda: mine.evalsha("0" * 40, 0),
            lambda: mine.script_load("return 1"),
            lambda: mine.script_flush(),
            lambda: mine.script_kill(),
            lambda: mine.shutdown(),
        ]
        for attempt in forbidden:
            with pytest.raises(Exception, match=r"NOPERM|no permissions|can't access|ACL failure"):
                attempt()


def test_the_market_keeps_the_hash_of_the_password_alone(joined):
    node, reply = joined
    password = reply.broker_url.partition("//")[2].partition("@")[0].partition(":")[2]
    assert len(password) == 64
    assert password not in str(Node.objects.filter(pk=node.pk).values().get())
    assert "@" in reply.broker_url
    assert reply.broker_url.startswith(f"redis://{user_name(node.pk)}:")


def test_users_that_a_restarted_redis_forgot_are_put_back(joined):
    node, reply = joined
    with Redis.from_url(settings.REDIS_URL) as admin:
        admin.acl_deluser(user_name(node.pk))
    with Redis.from_url(reply.broker_url) as mine, pytest.raises(AuthenticationError):
        mine.ping()

    assert restore_nodes_broker_users() == (node.pk,)
    assert restore_nodes_broker_users() == ()

    with Redis.from_url(reply.broker_url) as mine:
        assert mine.ping()
        with pytest.raises(NoPermissionError):
            mine.get("secret")


def test_a_node_that_left_loses_its_user(joined):
    node, reply = joined
    retire_node(node=node, now=NOW)
    assert restore_nodes_broker_users() == (node.pk,)
    with Redis.from_url(reply.broker_url) as mine, pytest.raises(AuthenticationError):
        mine.ping()


def test_a_broker_that_cannot_hold_users_is_shared_only_where_the_settings_say_so(joined, settings):
    node, _ = joined
    settings.CELERY_BROKER_URL = "redis+socket:///run/redis.sock"
    with pytest.raises(BrokerUnfit, match="NODE_BROKER_SHARED"):
        node_broker_url(node=node, join_secret="x")
    settings.NODE_BROKER_SHARED = True
    assert node_broker_url(node=node, join_secret="x") == "redis+socket:///run/redis.sock"
    settings.NODE_BROKER_URL = "rediss://:secret@redis.example.com:6380/0"
    assert node_broker_url(node=node, join_secret="x") == settings.NODE_BROKER_URL
    settings.NODE_BROKER_SHARED = False
    url = node_broker_url(node=node, join_secret="x")
    assert url.startswith(f"rediss://{user_name(node.pk)}:")
    assert url.endswith("@redis.example.com:6380/0")
    assert current_app.conf.broker_url != url
