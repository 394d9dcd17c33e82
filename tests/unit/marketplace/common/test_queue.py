import json
import logging

import pytest
from celery import current_app
from django.conf import settings
from django.db import transaction
from redis import Redis

from marketplace.common.queue import enqueue

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def broker():
    with Redis.from_url(settings.REDIS_URL) as client:
        client.delete("lane", "default")
        yield client
        client.delete("lane", "default")


def test_a_task_is_sent_by_name_to_its_route_once_committed(broker) -> None:
    with transaction.atomic():
        enqueue("auction.decide_pending_bids", zone="finetender-tiny")
        assert broker.llen("lane") == 0
    (raw,) = broker.lrange("lane", 0, -1)
    message = json.loads(raw)
    assert message["headers"]["task"] == "auction.decide_pending_bids"
    assert json.loads(message["headers"]["kwargsrepr"].replace("'", '"')) == {
        "zone": "finetender-tiny"
    }
    assert message["content-type"] == "application/json"


def test_a_rollback_sends_nothing(broker) -> None:
    with transaction.atomic():
        enqueue("fleet.offline_sweep")
        transaction.set_rollback(True)
    assert broker.llen("default") == 0


def test_a_broker_that_is_down_does_not_fail_what_was_committed(caplog, monkeypatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise ConnectionError("no broker")

    monkeypatch.setattr(current_app, "send_task", refuse)
    with caplog.at_level(logging.ERROR), transaction.atomic():
        enqueue("fleet.offline_sweep")
    assert "no broker" in caplog.text
