"""The clock of the market: it sends less while there is nothing to do.

A market in which nothing happens would send and answer 470 tasks a minute, each of which finds
nothing. So the clock asks once a second, and at rest every two, whether there is anything
(``has_work``); while there is not, tasks come at their pace of rest. What is asked for at once (a
bid, durable work, a question) wakes its task without the clock.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from celery.beat import ScheduleEntry
from django.conf import settings
from django.db import close_old_connections, connection
from django.db.models import Q, Value
from redbeat import RedBeatScheduler
from redbeat.schedulers import get_redis
from redis.exceptions import LockNotOwnedError

log = logging.getLogger(__name__)

#: Seconds for which an answer to whether there is work holds.
ASK_EVERY_S = 1.0
#: Seconds between two turns at rest, in each of which it is asked.
REST_TURN_S = 2.0
#: For this time after a job ended there may be work that follows from it.
AFTER_A_JOB = timedelta(minutes=2)
#: After an error the database is not asked for this time, which is longer than a lock of the clock.
AWAY_S = 15.0
#: Least seconds between two runs of a task at rest.
REST_EVERY_S = 59.5
#: Those of tasks whose work time alone brings: a zone's slot moves on, prices come into force, a
#: node falls silent. By them it also shows that workers and lanes are at work.
REST_EVERY_S_OF = {
    "auction.sweep": 5.5,
    "auction.rates_sweep": 5.5,
    "fleet.offline_sweep": 5.5,
}


def has_work(*, now: datetime) -> bool:
    """Whether there is anything in the market that a task of the clock might act on now.

    What is missing here would be done a minute late, and never left undone.
    """
    statement, parameters = _build_question()
    passed = now - _ANY_TIME
    with connection.cursor() as cursor:
        cursor.execute(
            statement,
            [each + passed if isinstance(each, datetime) else each for each in parameters],
        )
        return cursor.fetchone() is not None


#: Stands for now in the question, which takes three times as long to build as to answer.
_ANY_TIME = datetime(2000, 1, 1, tzinfo=UTC)


@cache
def _build_question() -> tuple[str, tuple[Any, ...]]:
    """The statement that finds a row where there is work at ``_ANY_TIME``, and its parameters."""
    # Models cannot be imported before Django is set up.
    from marketplace.auction.models import Bid
    from marketplace.checks.models import SpotCheck
    from marketplace.common.models import DurableWork, WorkState
    from marketplace.express.models import ExpressLane, ExpressRequest, RequestStatus, Seat
    from marketplace.jobs.models import Errand, Job, PartedUpload, Slice, SliceStatus
    from marketplace.payments.models import CardPayment, PaymentPurpose, PaymentStatus
    from marketplace.questions.models import AskedQuestion
    from marketplace.tiers.models import LIVE, Machine
    from marketplace.vendors.models import Preparation

    now = _ANY_TIME
    first, *others = (
        rows.order_by().annotate(is_there=Value(1)).values_list("is_there")[:1]
        for rows in (
            Bid.objects.filter(status__in=Bid.OPEN),
            Job.objects.filter(status__in=Job.ACTIVE),
            Job.objects.filter(finished_at__isnull=False, settled_at__isnull=True),
            # Others learn of its result: whose jobs may begin with it, who measures it.
            Job.objects.filter(finished_at__gt=now - AFTER_A_JOB),
            Slice.objects.filter(status=SliceStatus.OPEN),
            Preparation.objects.filter(concluded_at__isnull=True),
            DurableWork.objects.filter(state=WorkState.WAITING, due_at__lte=now),
            Errand.objects.filter(state__in=Errand.OPEN),
            AskedQuestion.objects.filter(status__in=AskedQuestion.OPEN),
            CardPayment.objects.filter(purpose=PaymentPurpose.BID, status=PaymentStatus.AUTHORISED),
            PartedUpload.objects.filter(status__in=PartedUpload.OPEN),
            Machine.objects.filter(status__in=LIVE),
            ExpressRequest.objects.filter(status=RequestStatus.PENDING),
            Seat.objects.filter(settled_at__isnull=True),
            # One that was just opened has no floor yet.
            ExpressLane.objects.filter(Q(floor_seats__gt=0) | Q(ticked_at=None), is_open=True),
            SpotCheck.objects.filter(failed_at__isnull=False, pay_returned_at=None),
        )
    )
    return first.union(*others, all=True)[:1].query.sql_with_params()


class RestingScheduler(RedBeatScheduler):
    """RedBeat's scheduler, at the pace of rest while the market has nothing to do.

    At rest it turns every two seconds and loads only entries that come at that pace. The others
    stay due in Redis, so that all of them are sent with the first turn after there is work.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._sent: dict[str, float] = {}
        self._is_at_rest, self._asked_at = False, float("-inf")
        super().__init__(*args, **kwargs)

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Send what is due; where the turn was lost, wait for it, and go on.

        A machine that is busy holds a tick up for longer than the lock lasts. RedBeat would end the
        process, whose next start takes a minute there in which nothing runs by the clock.
        """
        try:
            wait_s = super().tick(*args, **kwargs)
        except LockNotOwnedError:
            log.warning("the clock came too late for its lock, and waits for it again")
            if self.lock is not None:
                self.lock.acquire()
            return 0.0
        return REST_TURN_S if self._is_at_rest else wait_s

    @property
    def schedule(self) -> dict[str, ScheduleEntry]:
        """Entries that are due; at rest, of these the ones that come at its pace."""
        at = time.monotonic()
        if not self._has_nothing_to_do(at):
            return super().schedule
        conf = self.app.redbeat_conf
        now_s = self.app.now().timestamp()
        keys = get_redis(self.app).zrangebyscore(conf.schedule_key, 0, now_s)
        entries = ((key, conf.schedule[key.removeprefix(conf.key_prefix)]) for key in keys)
        return {
            key: self.Entry.from_key(key, app=self.app)
            for key, entry in entries
            if at >= self._find_turn(entry["task"])
        }

    def _find_turn(self, task: str) -> float:
        """When a task comes next at rest, by the machine's own clock."""
        return self._sent.get(task, float("-inf")) + REST_EVERY_S_OF.get(task, REST_EVERY_S)

    def apply_async(self, entry: ScheduleEntry, *args: Any, **kwargs: Any) -> Any:
        """Send an entry's task, and note when."""
        self._sent[str(entry.task)] = time.monotonic()
        return super().apply_async(entry, *args, **kwargs)

    def _has_nothing_to_do(self, at: float) -> bool:
        if at < self._asked_at + ASK_EVERY_S:
            return self._is_at_rest
        from marketplace.common import clock, heartbeats

        try:
            close_old_connections()
            now = clock.now()
            self._is_at_rest = not has_work(now=now)
            if self._is_at_rest:
                heartbeats.record_rest(_list_resting(), now=now)
            # After an answer: who waits for a database that is away is not to wait again at once.
            self._asked_at = time.monotonic()
        except Exception:
            # Tasks say best what is wrong with the database; other turns do not wait for it.
            log.exception("whether there is work is not known")
            self._is_at_rest, self._asked_at = False, time.monotonic() + AWAY_S
        return self._is_at_rest


@cache
def _list_resting() -> frozenset[str]:
    """Tasks that do not come at rest as often as else, but for those that show a worker's life."""
    entries = settings.CELERY_BEAT_SCHEDULE.values()
    often = {entry["task"] for entry in entries if entry["schedule"] < REST_EVERY_S}
    return frozenset(often - REST_EVERY_S_OF.keys())
