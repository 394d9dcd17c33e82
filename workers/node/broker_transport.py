"""kombu's Redis transport for a queue with one consumer: no lock, hence no script in Redis.

Celery gives messages back whose consumer died. Consumers of one queue keep each other from doing
so at once by a lock that is released by a script; a node's broker user may run none. A node
is its queue's only consumer, which the lock on its state directory sees to.
"""

from __future__ import annotations

from time import time

from kombu.transport import redis


class SoleConsumerQoS(redis.QoS):
    """Gives back what a dead process of this node left unacknowledged, without a lock."""

    def restore_visible(self, start: int = 0, num: int | None = 10, interval: int = 10) -> None:
        self._vrestore_count += 1
        if (self._vrestore_count - 1) % (interval or 1):
            return
        with self.channel.conn_or_acquire() as client:
            overdue = client.zrangebyscore(
                self.unacked_index_key, start, time() - self.visibility_timeout
            )
            for tag in overdue[:num]:
                self.restore_by_tag(tag, client)


class SoleConsumerChannel(redis.Channel):
    QoS = SoleConsumerQoS


class Transport(redis.Transport):
    Channel = SoleConsumerChannel
