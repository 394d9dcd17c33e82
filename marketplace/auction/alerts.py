"""Tell the operators when a part of the market stops, and when it works again.

Every web process looks, and so does a task of the workers: any of them finds that the others are
silent. An alert is sent once, whoever finds it.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.conf import settings
from django.core.mail import send_mail
from django.db import transaction
from django.db.models import Q, QuerySet

from marketplace.accounts.models import User
from marketplace.auction.locks import lock_due_alerts, lock_open_alerts
from marketplace.auction.models import Alert
from marketplace.auction.probes import HealthPart, HealthProbe, run_probes
from marketplace.common.outbound import AnswerLimits, FetchFailed, ask_stranger

log = logging.getLogger(__name__)

#: What works again within this time is written down and not sent: a restart is no alert.
SEND_AFTER = timedelta(minutes=1)
#: Longer than sending takes; then another process may send it.
SENT_WITHIN = timedelta(minutes=2)
#: How long past alerts are shown.
KEPT_FOR = timedelta(days=90)
_NOT_ENDED = datetime.max.replace(tzinfo=UTC)
WEBHOOK_LIMITS = AnswerLimits(timeout_s=10.0, answer_s=20.0, bytes_max=100_000)


def watch_market(*, now: datetime) -> None:
    """Write down what does not work now, and send what is to be sent."""
    note_alerts(run_probes(now=now), now=now)
    send_alerts(now=now)


def note_alerts(probes: Sequence[HealthProbe], *, now: datetime) -> None:
    """Begin an alert for each probe that fails, and end those that do so no more."""
    broken = {
        (probe.label, probe.zone.name if probe.zone else ""): probe
        for probe in probes
        if not probe.is_ok
    }
    found = [
        Alert(
            part=probe.part,
            label=label,
            zone=zone,
            text=probe.text[:500],
            since_at=min(probe.since or now, now),
        )
        for (label, zone), probe in broken.items()
    ]
    with transaction.atomic():
        for alert in lock_open_alerts():
            if (alert.label, alert.zone) not in broken:
                alert.ended_at = now
                alert.save(update_fields=["ended_at"])
        Alert.objects.bulk_create(found, ignore_conflicts=True)
        Alert.objects.filter(ended_at__lt=now - KEPT_FOR).delete()


@dataclass(frozen=True, slots=True)
class _Message:
    """An alert, and which of its two messages is due."""

    alert: Alert
    is_end: bool

    @property
    def line(self) -> str:
        where = f" ({self.alert.zone})" if self.alert.zone else ""
        if self.is_end:
            return f"{self.alert.label}{where} works again."
        since = f"{self.alert.since_at:%Y-%m-%d %H:%M:%S} UTC"
        return f"{self.alert.label}{where}: {self.alert.text} Since {since}."


def send_alerts(*, now: datetime) -> int:
    """Send what is due by mail and to the operator's webhook; give how many were sent.

    What cannot be sent is tried again after ``SENT_WITHIN``.
    """
    messages = _claim(now=now)
    if not messages:
        return 0
    text = "\n".join(message.line for message in messages)
    try:
        _send(text, subject=_choose_subject(messages))
    except (OSError, ValueError, FetchFailed):
        log.exception("alerts could not be sent: %s", text)
        return 0
    for message in messages:
        name = "end_sent_at" if message.is_end else "begin_sent_at"
        Alert.objects.filter(pk=message.alert.pk).update(**{name: now, "sending_until": None})
    return len(messages)


def _choose_subject(messages: Sequence[_Message]) -> str:
    """Give the only message, or how many there are; an error's text may have line ends."""
    line = messages[0].line if len(messages) == 1 else f"{len(messages)} alerts"
    return " ".join(line.split())[:150]


def _claim(*, now: datetime) -> list[_Message]:
    """Take what is due, so that no other process sends it meanwhile."""
    with transaction.atomic():
        due = lock_due_alerts(_list_due(now))
        claimed = Alert.objects.filter(pk__in=[alert.pk for alert in due])
        claimed.update(sending_until=now + SENT_WITHIN)
    return [_Message(alert, is_end=alert.begin_sent_at is not None) for alert in due]


def _list_due(now: datetime) -> QuerySet[Alert]:
    is_free = Q(sending_until=None) | Q(sending_until__lte=now)
    begins = Q(begin_sent_at=None, ended_at=None, since_at__lte=now - SEND_AFTER)
    ends = Q(begin_sent_at__isnull=False, ended_at__isnull=False, end_sent_at=None)
    return Alert.objects.filter(is_free & (begins | ends))


def _send(text: str, *, subject: str) -> None:
    """Send one message to everybody who is to know, also where one of the ways is broken.

    Raises
    ------
    OSError, ValueError, FetchFailed
        Nobody, or not all, were reached.
    """
    page = f"{settings.PUBLIC_URL}/operator/health"
    try:
        if settings.ALERT_WEBHOOK:
            ask_stranger(
                settings.ALERT_WEBHOOK,
                body=json.dumps({"text": f"{text}\n{page}"}).encode(),
                headers={"Content-Type": "application/json"},
                # The address is the operator's own.
                allows_private=True,
                limits=WEBHOOK_LIMITS,
            )
    finally:
        if to := settings.ALERT_MAILS or list_operators():
            send_mail(f"[Finetender] {subject}", f"{text}\n\n{page}\n", None, to)


@dataclass(frozen=True, slots=True)
class Incident:
    """A time in which a part of the market did not work."""

    part: HealthPart
    begun_at: datetime
    #: ``None``: it does not work yet.
    ended_at: datetime | None

    @property
    def lasted_s(self) -> float | None:
        return None if self.ended_at is None else (self.ended_at - self.begun_at).total_seconds()


def list_incidents(*, now: datetime) -> list[Incident]:
    """What was sent as an alert in the last ``KEPT_FOR``, the latest first.

    Times of one part that overlap are one.
    """
    sent = Alert.objects.exclude(begin_sent_at=None).filter(since_at__gte=now - KEPT_FOR)
    spans: defaultdict[str, list[tuple[datetime, datetime]]] = defaultdict(list)
    for alert in sent:
        spans[alert.part].append((alert.since_at, alert.ended_at or _NOT_ENDED))
    found = [
        Incident(HealthPart(part), since, None if until == _NOT_ENDED else until)
        for part, each in spans.items()
        for since, until in join_spans(each)
    ]
    return sorted(found, key=lambda each: each.begun_at, reverse=True)


def join_spans(spans: Iterable[tuple[datetime, datetime]]) -> list[tuple[datetime, datetime]]:
    """Join times that overlap or touch, in their order."""
    joined: list[tuple[datetime, datetime]] = []
    for since, until in sorted(spans):
        if joined and since <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], until)
        else:
            joined.append((since, until))
    return joined


def list_operators() -> list[str]:
    """Give the addresses of the people who run the market."""
    operators = User.objects.filter(is_operator=True, is_active=True)
    return list(operators.order_by("email").values_list("email", flat=True))
