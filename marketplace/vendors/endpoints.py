"""Asking vendors' own systems for quotes, all at once and within a hard limit.

Call outside any database transaction and before a bid joins others: a slow vendor must hold up
nothing but the bid that asks it. One that is slow or wrong again and again is not asked for a
while, so that it cannot hold the threads that ask the others.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.core.cache import cache
from django.db.models import F
from redis.exceptions import RedisError

from marketplace.common.ids import new_id
from marketplace.common.outbound import AnswerLimits, FetchFailed, ask_stranger
from marketplace.fleet.models import Zone
from marketplace.jobs.models import Dataset
from marketplace.vendors.endpoint_quotes import (
    ContradictoryAnswer,
    EndpointQuote,
    WrongAnswer,
    build_question,
    check_consistent,
    read_answer,
)
from marketplace.vendors.models import AnswerKind, EndpointCount, Listing, Vendor
from marketplace.vendors.offers import list_listings, measure_raw_data
from marketplace.vendors.quoting import DataSize
from marketplace.vendors.signatures import BadSignature, check_message, sign_message
from marketplace.vendors.wishes import parse_wish
from workers.protocol.job_terms import PreparationWish

log = logging.getLogger(__name__)

#: Seconds from the first question to the last answer that counts.
HARD_LIMIT_S = 0.3
ANSWER_BYTES_MAX = 4_096
#: Requests under way at once, of all bids of this process.
_THREADS = 32
#: Failures in a row after which a vendor is left alone, and for how many seconds.
FAILURES_MAX = 5
REST_S = 30.0

_pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="quotes")


@dataclass(slots=True)
class _Record:
    """How a vendor's system does, as this process sees it."""

    failures: int = 0
    rests_until: float = 0.0
    under_way: int = 0


class _Records:
    """Which vendors may be asked now."""

    #: Requests to one vendor under way at once, so that it cannot hold all threads.
    LIMIT = 4

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: dict[str, _Record] = {}

    def begin(self, vendor_id: str) -> bool:
        """Whether the vendor may be asked; then ``end`` must follow."""
        with self._lock:
            record = self._records.setdefault(vendor_id, _Record())
            if record.under_way >= self.LIMIT or record.rests_until > time.monotonic():
                return False
            record.under_way += 1
            return True

    def end(self, vendor_id: str) -> None:
        with self._lock:
            self._records[vendor_id].under_way -= 1

    def note(self, vendor_id: str, *, is_good: bool) -> None:
        with self._lock:
            record = self._records.setdefault(vendor_id, _Record())
            record.failures = 0 if is_good else record.failures + 1
            if record.failures >= FAILURES_MAX:
                record.failures, record.rests_until = 0, time.monotonic() + REST_S

    def clear(self) -> None:
        with self._lock:
            self._records.clear()


records = _Records()


def ask_for_quotes(
    *,
    zone: Zone,
    dataset: Dataset,
    wish: PreparationWish,
    now: datetime,
    remembers: bool = False,
) -> dict[str, EndpointQuote]:
    """Quotes of the vendors that have a system of their own, by vendor; takes ``HARD_LIMIT_S``.

    What is not there in time, not signed, not of the agreed form or contradictory is left out and
    counted.

    Parameters
    ----------
    remembers
        Answer from a quote that a vendor said to hold still, without asking it: for prices that are
        only shown.
    """
    listings = [one for one in list_listings(zone=zone, wish=wish) if one.vendor.endpoint]
    if not listings:
        return {}
    size = measure_raw_data(dataset)
    ends_at = time.monotonic() + HARD_LIMIT_S
    questions = [_QuoteRequest(listing, size, wish, now) for listing in listings]
    earlier = {one.vendor.pk: one.recall() for one in questions}
    quotes: dict[str, EndpointQuote] = {}
    asked: dict[Future[EndpointQuote], _QuoteRequest] = {}
    outcomes: dict[str, AnswerKind] = {}
    for question in questions:
        known = earlier[question.vendor.pk]
        if remembers and known is not None and known.valid_until > now:
            quotes[question.vendor.pk] = known
        elif records.begin(question.vendor.pk):
            asked[_submit(question, ends_at)] = question
    done, late = wait(asked, timeout=max(0.0, ends_at - time.monotonic()))
    for future in late:
        # One that has not begun never does.
        future.cancel()
        if asked[future].is_sent:
            outcomes[asked[future].vendor.pk] = AnswerKind.SLOW
    for future in done:
        question = asked[future]
        vendor_id = question.vendor.pk
        if not question.is_sent:
            continue
        quote, outcomes[vendor_id] = _judge(question, future, earlier[vendor_id])
        if quote is not None:
            quotes[vendor_id] = quote
            question.remember(quote)
    for vendor_id, kind in outcomes.items():
        records.note(vendor_id, is_good=kind == AnswerKind.GOOD)
    _count(outcomes, now=now)
    return quotes


def ask_for_bid(
    *, zone: Zone, dataset: Dataset, preparation: Mapping[str, Any] | None, now: datetime
) -> dict[str, EndpointQuote]:
    """Quotes for a bid as it was asked for; none without a preparation.

    Raises
    ------
    UserError
        As ``parse_wish``.
    """
    if preparation is None or not dataset.rows:
        return {}
    return ask_for_quotes(zone=zone, dataset=dataset, wish=parse_wish(preparation), now=now)


def send_message(
    vendor: Vendor, body: bytes, *, message_id: str, limits: AnswerLimits, now: datetime
) -> bytes:
    """Send a signed message to a vendor's system and give its signed answer.

    Raises
    ------
    FetchFailed, BadSignature
    """
    headers = sign_message(vendor.endpoint_secret, body, message_id=message_id, now=now)
    answer = ask_stranger(
        vendor.endpoint,
        body=body,
        headers={**headers, "Content-Type": "application/json"},
        allows_private=settings.VENDOR_ENDPOINTS_PRIVATE,
        limits=limits,
    )
    check_message(
        vendor.endpoint_secret, answer.body, answer.headers, message_id=message_id, now=now
    )
    return answer.body


class _QuoteRequest:
    """One question to one vendor."""

    def __init__(
        self, listing: Listing, size: DataSize, wish: PreparationWish, now: datetime
    ) -> None:
        self.vendor, self.size, self.now = listing.vendor, size, now
        #: Never where others held the threads until no time was left: not the vendor's fault.
        self.is_sent = False
        self.request_id = new_id("quote")
        self.body = build_question(
            request_id=self.request_id, zone_name=listing.zone.name, size=size, wish=wish, now=now
        )
        # The same work under any name and at any time.
        same = build_question(
            request_id=self.vendor.pk,
            zone_name=listing.zone.name,
            size=size,
            wish=wish,
            now=self.vendor.created_at,
        )
        self._key = f"vendor-quote:{hashlib.sha256(same).hexdigest()}"

    def ask(self, ends_at: float) -> EndpointQuote:
        left_s = ends_at - time.monotonic()
        if left_s <= 0:
            raise FetchFailed("no time was left")
        self.is_sent = True
        body = send_message(
            self.vendor,
            self.body,
            message_id=self.request_id,
            limits=AnswerLimits(left_s, left_s, ANSWER_BYTES_MAX),
            now=self.now,
        )
        return read_answer(body, request_id=self.request_id, now=self.now)

    def recall(self) -> EndpointQuote | None:
        """The last quote for the same work; Redis may be lost, and then nothing is known."""
        with suppress(RedisError):
            found = cache.get(self._key)
            return None if found is None else EndpointQuote.from_json(found)
        return None

    def remember(self, quote: EndpointQuote) -> None:
        left_s = (quote.valid_until - self.now).total_seconds()
        if left_s > 0:
            with suppress(RedisError):
                cache.set(self._key, quote.to_json(), timeout=int(left_s) + 1)


def _submit(question: _QuoteRequest, ends_at: float) -> Future[EndpointQuote]:
    future = _pool.submit(question.ask, ends_at)
    future.add_done_callback(_end_of(question.vendor.pk))
    return future


def _end_of(vendor_id: str) -> Callable[[Future[EndpointQuote]], None]:
    return lambda _: records.end(vendor_id)


def _judge(
    question: _QuoteRequest, future: Future[EndpointQuote], earlier: EndpointQuote | None
) -> tuple[EndpointQuote | None, AnswerKind]:
    try:
        quote = future.result()
        check_consistent(
            quote,
            listed=question.vendor.quote_function,
            size=question.size,
            earlier=earlier,
            now=question.now,
        )
    except ContradictoryAnswer as error:
        log.warning("quote of %s left out: %s", question.vendor.pk, error)
        return None, AnswerKind.CONTRADICTORY
    except (FetchFailed, BadSignature, WrongAnswer) as error:
        log.warning("quote of %s left out: %s", question.vendor.pk, error)
        return None, AnswerKind.WRONG
    return quote, AnswerKind.GOOD


def _count(outcomes: Mapping[str, AnswerKind], *, now: datetime) -> None:
    for vendor_id, kind in outcomes.items():
        row, _ = EndpointCount.objects.get_or_create(vendor_id=vendor_id, day=now.date(), kind=kind)
        EndpointCount.objects.filter(pk=row.pk).update(count=F("count") + 1)
