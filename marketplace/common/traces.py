"""The stages of a bid's life as OpenTelemetry spans: one trace for each bid, under its id.

A trace's and a span's ids are hashes of the bid's id and the stage, so that web, lane and workers
write into one trace without telling each other, and a stage that is sent twice is one span. Unless
``OTEL_TRACES_EXPORTER`` or an endpoint of OTLP is set there are none: nothing that sends is
imported, and a stage costs a look at a setting. The library itself reads all other ``OTEL_*``.

=============== ================================================ =================================
span            from                                             to
=============== ================================================ =================================
bid.place       the call that places it; the trace's root        its commit
bid.request     the request came in                              it is answered
bid.receipt     the bid was placed                               its receipt is committed
bid.decision    the lane took its batch                          the decision is committed
job.plan        the job was opened                               a node has a plan with it
job.first_step  its first lease                                  its first step is reported
job.settlement  it ended                                         its money has moved
=============== ================================================ =================================
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Mapping
from datetime import datetime
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import transaction

from marketplace.common import clock
from marketplace.common.current_request import current_request

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

ROOT = "bid.place"
SERVICE = "finetender"


def record_stage(
    name: str, *, bid_id: str, since: datetime, until: datetime | None = None, **facts: Any
) -> None:
    """Send a stage of a bid's life once the transaction commits, if traces are on.

    Parameters
    ----------
    since, until
        When it began and ended; without ``until`` it ends with the commit.
    facts
        Attributes of the span: texts, numbers and truth values; ``None`` is left out.
    """
    if settings.TRACES_EXPORTER:
        send = partial(_send, name, bid_id=bid_id, since=since, until=until, facts=facts)
        transaction.on_commit(send, robust=True)


def record_request(*, bid_id: str) -> None:
    """Send the request that is being answered as a stage of the bid that it was for."""
    request = current_request.get()
    if settings.TRACES_EXPORTER and request is not None:
        facts = {"request_id": request.request_id, "request": request.line}
        _send("bid.request", bid_id=bid_id, since=request.began_at, until=None, facts=facts)


def _send(
    name: str, *, bid_id: str, since: datetime, until: datetime | None, facts: Mapping[str, Any]
) -> None:
    from opentelemetry import trace

    provider, ids = _load_provider()
    trace_id, root_id = _hash(bid_id, 16), _hash(f"{bid_id}|{ROOT}", 8)
    context = None
    if name != ROOT:
        # All spans of a bid are kept or none, by what the sampler says of its root.
        sampled = provider.sampler.should_sample(None, trace_id, ROOT).decision.is_sampled()
        parent = trace.SpanContext(
            trace_id, root_id, is_remote=True, trace_flags=trace.TraceFlags(int(sampled))
        )
        context = trace.set_span_in_context(trace.NonRecordingSpan(parent))
    ids.next_ids = trace_id, _hash(f"{bid_id}|{name}", 8)
    attributes = {f"finetender.{key}": value for key, value in facts.items() if value is not None}
    span = provider.get_tracer(SERVICE).start_span(
        name,
        context=context or trace.set_span_in_context(trace.INVALID_SPAN),
        attributes={"finetender.bid_id": bid_id} | attributes,
        start_time=_count_ns(since),
    )
    span.end(_count_ns(max(since, until or clock.now())))


def _hash(text: str, size: int) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=size).digest(), "big")


def _count_ns(at: datetime) -> int:
    return round(at.timestamp() * 1_000_000) * 1000


class _BidIds(threading.local):
    """Gives the library the ids of the span that this thread is about to begin."""

    next_ids: tuple[int, int] = (0, 0)

    def generate_trace_id(self) -> int:
        return self.next_ids[0]

    def generate_span_id(self) -> int:
        return self.next_ids[1]

    def is_trace_id_random(self) -> bool:
        return False


@cache
def _load_provider() -> tuple[TracerProvider, _BidIds]:
    """Begin to send, from this process, what it does."""
    return build_provider(_build_exporter(settings.TRACES_EXPORTER), in_batches=True)


def _build_exporter(name: str) -> SpanExporter:
    if name == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def build_provider(exporter: SpanExporter, *, in_batches: bool) -> tuple[TracerProvider, _BidIds]:
    """What makes spans for an exporter; in batches they are sent by a thread of the library's."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor

    ids = _BidIds()
    named = os.environ.get("OTEL_SERVICE_NAME") or SERVICE
    provider = TracerProvider(
        resource=Resource.create({"service.name": named, "process.pid": os.getpid()}),
        id_generator=ids,  # type: ignore[arg-type]  # by its methods; the class would come with it
    )
    processor = BatchSpanProcessor if in_batches else SimpleSpanProcessor
    provider.add_span_processor(processor(exporter))
    return provider, ids
