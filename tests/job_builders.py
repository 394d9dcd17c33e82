"""Jobs, leases and what nodes send, for tests of the fleet and of jobs.

The zone of ``market_builders`` has slots of 10 s and ``NOW`` is the start of slot 100.
"""

from __future__ import annotations

import json
import math
import struct
from datetime import datetime, timedelta
from itertools import count
from typing import Any

from marketplace.fleet.models import Node, NodeStatus, Zone
from marketplace.fleet.services import ListingTerms, create_join_token, join_node
from marketplace.jobs.models import Job, Slice, SliceStatus
from marketplace.jobs.services import Opening, open_jobs
from marketplace.jobs.terms import derive_columns
from scheduler.types import Cell
from tests import builders, market_builders
from tests.builders import NOW
from workers.protocol.adapter_check import list_adapter_tensors
from workers.protocol.job_spec import AdapterSpec, TrainingSpec
from workers.protocol.job_terms import JobTerms
from workers.protocol.joining import PROTOCOL_LEAST
from workers.protocol.messages import PROTOCOL_VERSION, JoinReply, JoinRequest
from workers.protocol.node_facts import NodeFacts, SpeedMeasurement, WorkMeasurement
from workers.protocol.plan_queue import PlanSessionRequest
from workers.protocol.reports import ProgressEvent, ProgressReport, SliceResult
from workers.protocol.reports import SliceEnd as Ended

#: What a node of this release says when it begins to take plans.
SPOKEN = PlanSessionRequest(PROTOCOL_LEAST, PROTOCOL_VERSION)

#: The slot that starts at ``NOW``.
SLOT = 100

_number = count(1)


def at(seconds: float) -> datetime:
    """A moment this many seconds after ``NOW``."""
    return NOW + timedelta(seconds=seconds)


def job(zone: Zone, *cells: tuple[int, Node], now: datetime = NOW, **terms: Any) -> Job:
    """A job with these cells, counted from ``SLOT``."""
    owner = terms.pop("organisation", None) or builders.organisation()
    dataset = terms.pop("dataset", None) or market_builders.dataset(owner, zone)
    adapter = terms.pop("adapter", AdapterSpec(rank=8))
    training = terms.pop("training", TrainingSpec(epochs=1, batch_size=8, sequence_length=128))
    number = next(_number)
    fields: dict[str, Any] = {
        "bid_id": f"bid_{number}",
        "organisation_id": owner.pk,
        "created_by_id": builders.owner_of(owner).pk,
        "zone": zone,
        "name": f"job {number}",
        "columns": derive_columns(
            JobTerms(
                adapter,
                training,
                dataset.pk,
                validation=terms.pop("validation_dataset_id", None),
                start=terms.pop("start", None),
                verified_only=terms.pop("verified_only", False),
            )
        ),
        "cells": tuple(Cell(slot=SLOT + slot, node=node.pk) for slot, node in cells),
        "deadline_at": at(1000),
        "price_micros": 1_000_000,
    } | terms
    [job_id] = open_jobs(openings=[Opening(**fields)], now=now)
    return Job.objects.select_related("zone").get(pk=job_id)


def lease(made: Job) -> Slice:
    """The job's open slice."""
    return Slice.objects.select_related("node", "job").get(job=made, status=SliceStatus.OPEN)


def event(seq: int, *, step: int, total_steps: int = 12, **figures: Any) -> ProgressEvent:
    return ProgressEvent(
        seq=seq,
        at=NOW.timestamp() + seq,
        step=step,
        total_steps=total_steps,
        epoch=step / total_steps,
        samples_done=step * 8,
        **figures,
    )


def report(held: Slice, *events: ProgressEvent) -> ProgressReport:
    return ProgressReport(lease_token=held.lease_token, events=events)


def result(held: Slice, status: Ended, *, step: int = 12, **figures: Any) -> SliceResult:
    return SliceResult(
        lease_token=held.lease_token,
        status=status,
        step=step,
        total_steps=12,
        samples_done=step * 8,
        **figures,
    )


def safetensors(seed: int = 0, *, numbers: int = 4) -> bytes:
    """A whole safetensors file with one tensor of 32-bit numbers."""
    header = json.dumps(
        {"w": {"dtype": "F32", "shape": [numbers], "data_offsets": [0, 4 * numbers]}}
    ).encode()
    return len(header).to_bytes(8, "little") + header + bytes([seed % 256]) * (4 * numbers)


def adapter_tensors(adapter: AdapterSpec, *, value: float) -> bytes:
    """The tensors of an adapter on the builders' base model, all with one value."""
    header: dict[str, Any] = {}
    end = 0
    for name, sizes in list_adapter_tensors(market_builders.SHAPE, adapter).items():
        begin, end = end, end + 4 * math.prod(sizes)
        header[name] = {"dtype": "F32", "shape": list(sizes), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + struct.pack("<f", value) * (end // 4)


def adapter_file(seed: int = 0, *, adapter: AdapterSpec | None = None) -> bytes:
    """The trained weights of a job as a node sends them."""
    return adapter_tensors(adapter or AdapterSpec(rank=8), value=0.5 + seed)


def facts(*, hostname: str = "gpu-1", **changed: Any) -> NodeFacts:
    fields: dict[str, Any] = {
        "hostname": hostname,
        "device": "cpu",
        "gpu_type": "cpu",
        "gpu_count": 0,
        "memory_gb": 8.0,
        "cores": 4,
        "torch_version": "2.9.0",
        "protocol_version": PROTOCOL_VERSION,
        "speeds": (
            measurement(jobs=1, samples_per_s=20.0),
            measurement(jobs=4, samples_per_s=40.0),
        ),
    } | changed
    return NodeFacts(**fields)


def measurement(**changed: Any) -> SpeedMeasurement:
    fields: dict[str, Any] = {
        "base_model": "tiny",
        "batch_size": 8,
        "sequence_length": 128,
        "jobs": 1,
        "samples_per_s": 20.0,
        "tokens_per_s": 2560.0,
        "base_memory_gb": 0.9,
        "job_memory_gb": 0.01,
    } | changed
    return SpeedMeasurement(**fields)


def work_measurement(**changed: Any) -> WorkMeasurement:
    fields: dict[str, Any] = {
        "base_model": "tiny",
        "steps": 3,
        "sequences": 24,
        "tokens": 2400,
        "trained_tokens": 2376,
        "token_pairs": 260_000,
        "even": False,
        "seconds": 1.0,
        "forward_seconds": 0.4,
    } | changed
    return WorkMeasurement(**fields)


def joined(zone: Zone, *, name: str = "gpu-1", now: datetime = NOW) -> tuple[Node, JoinReply]:
    """A node that joined with a token of its own, on sale, and the answer it got."""
    _, secret = create_join_token(
        zone=zone,
        provider=market_builders.provider(),
        created_by=None,
        terms=ListingTerms(400_000),
        now=now,
    )
    reply = join_node(request=JoinRequest(token=secret, name=name, facts=facts()), now=now)
    Node.objects.filter(pk=reply.node_id).update(status=NodeStatus.ONLINE)
    return Node.objects.select_related("zone", "provider").get(pk=reply.node_id), reply
