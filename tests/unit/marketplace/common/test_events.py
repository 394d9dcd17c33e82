import logging

import pytest
from asgiref.sync import async_to_sync
from channels.layers import channel_layers, get_channel_layer
from django.db import transaction
from django.test import override_settings

from marketplace.common.events import publish_on_commit


class Listener:
    """A follower of one stream on the real channel layer."""

    def __init__(self, stream: str) -> None:
        self.layer = get_channel_layer()
        self.stream = stream

    async def heard(self, act) -> list[dict]:
        """What arrives because of ``act``, which a marker sent after it ends."""
        from asgiref.sync import sync_to_async

        channel = await self.layer.new_channel()
        await self.layer.group_add(self.stream, channel)
        await sync_to_async(act)()
        await self.layer.group_send(self.stream, {"type": "end"})
        messages = []
        while (message := await self.layer.receive(channel))["type"] != "end":
            messages.append(message)
        await self.layer.group_discard(self.stream, channel)
        return messages


def heard_on(stream: str, act) -> list[dict]:
    return async_to_sync(Listener(stream).heard)(act)


@pytest.mark.django_db(transaction=True)
def test_an_event_arrives_after_the_commit_and_in_order() -> None:
    def act() -> None:
        with transaction.atomic():
            publish_on_commit(stream="job.ftjob-1", event={"seq": 1, "kind": "opened"})
            publish_on_commit(stream="job.ftjob-1", event={"seq": 2, "kind": "started"})
            publish_on_commit(stream="job.ftjob-2", event={"seq": 1, "kind": "elsewhere"})

    assert heard_on("job.ftjob-1", act) == [
        {
            "type": "stream.event",
            "stream": "job.ftjob-1",
            "event": {"seq": 1, "kind": "opened"},
        },
        {
            "type": "stream.event",
            "stream": "job.ftjob-1",
            "event": {"seq": 2, "kind": "started"},
        },
    ]


@pytest.mark.django_db(transaction=True)
def test_what_is_rolled_back_is_never_told() -> None:
    def act() -> None:
        with transaction.atomic():
            publish_on_commit(stream="job.ftjob-1", event={"seq": 1})
            transaction.set_rollback(True)

    assert heard_on("job.ftjob-1", act) == []


@pytest.mark.django_db(transaction=True)
@override_settings(
    CHANNEL_LAYERS={
        "default": {
            "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
            "CONFIG": {"hosts": ["redis://127.0.0.1:1/0"]},
        }
    }
)
def test_a_broken_channel_layer_does_not_fail_what_was_committed(caplog) -> None:
    channel_layers.backends.clear()
    try:
        with caplog.at_level(logging.ERROR), transaction.atomic():
            publish_on_commit(stream="job.ftjob-1", event={"seq": 1})
    finally:
        channel_layers.backends.clear()
    assert "on_commit" in caplog.text


@pytest.mark.parametrize("stream", ["", "job 1", "job:1", "j" * 100])
def test_a_name_the_channel_layer_would_refuse_is_refused_at_once(stream: str) -> None:
    with pytest.raises(ValueError, match="stream"):
        publish_on_commit(stream=stream, event={"seq": 1})


def test_an_event_without_its_place_in_the_order_is_refused() -> None:
    with pytest.raises(ValueError, match="seq"):
        publish_on_commit(stream="job.1", event={"kind": "opened"})
