"""A small market for tests of the auction: a zone, nodes, data sets and bids with round numbers.

A row of at most 128 tokens is one work unit, evaluation none. A node of the zone does 400 units a
slot and asks 0.40 dollars for it; one job gets 100 of them, so a cell costs a job 0.10 dollars.
``bid`` asks for 90 units per epoch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from itertools import count
from typing import Any

import numpy as np
from django.core.files.base import ContentFile
from safetensors.numpy import save

from marketplace.accounts.models import Organisation
from marketplace.auction.bidding.place import NewBid, place_bid
from marketplace.auction.lane.enter import enter_lane
from marketplace.auction.lane.sweep import refresh_zone
from marketplace.auction.models import Bid
from marketplace.auction.pricing.solve import solve_zone_prices
from marketplace.fleet.models import GpuType, Node, NodeStatus, Provider, Zone
from marketplace.fleet.policy_settings import find_beats_per_slot
from marketplace.fleet.selectors import get_model_shape
from marketplace.fleet.services import ZoneModel, ZoneSlots, ensure_provider, ensure_zone
from marketplace.jobs.models import (
    Artifact,
    Checkpoint,
    Dataset,
    DatasetTokens,
    Job,
    Slice,
    SliceStatus,
)
from marketplace.jobs.services import finish_slice
from marketplace.jobs.token_runs import TokenRunsBuilder
from marketplace.jobs.work import load_job_totals
from scheduler.auction.log import events
from tests import builders
from tests.builders import NOW
from tests.shape_builders import build_llama_shape
from workers.protocol import reports
from workers.protocol.job_bytes import find_adapted
from workers.protocol.work import PARTS

SLOT_S = 10
HORIZON_SLOTS = 60
CELL_MICROS = 100_000
LLAMA_8B = build_llama_shape(
    hidden_size=4096,
    layers=32,
    intermediate_size=14336,
    vocab_size=128256,
    heads=32,
    kv_heads=8,
    head_size=128,
)
SHAPE = build_llama_shape(
    hidden_size=64,
    layers=2,
    intermediate_size=128,
    vocab_size=512,
    heads=4,
    kv_heads=4,
    head_size=16,
)

WORK_COSTS = {"token": PARTS // 128, "forward": 0}

_number = count(1)


def zone(*, name: str | None = None, **terms: Any) -> Zone:
    terms.setdefault("work_costs", WORK_COSTS)
    terms.setdefault("tokenizer_source", "bundled:finetender-tiny")
    slot_s = terms.pop("slot_s", SLOT_S)
    made = ensure_zone(
        name=name or f"zone-{next(_number)}",
        base_model=ZoneModel(
            name="tiny",
            source="/nowhere",
            memory_gb=terms.pop("base_memory_gb", 1.0),
            max_sequence_length=terms.pop("max_sequence_length", 128),
            shape=terms.pop("model_shape", SHAPE),
            reference_sequence_length=terms.pop("reference_sequence_length", None),
        ),
        slots=ZoneSlots(
            length_s=slot_s,
            horizon=terms.pop("horizon_slots", HORIZON_SLOTS),
            epoch_at=NOW - timedelta(seconds=100 * slot_s),
        ),
        now=NOW,
        **terms,
    )
    gpu_type("cpu")
    return made


def rates_zone() -> Zone:
    """Three providers of one node each in a zone that posts rates, one at three times the ask.

    A slot is ten minutes, so that a block of rates is eight.
    """
    settings = {"posts_rates": True, "holding_limit": False}
    made = zone(slot_s=600, horizon_slots=12, policy_settings=settings)
    for ask in (1, 1, 3):
        node(made, ask_micros=4 * ask * CELL_MICROS, self_test_speed=400.0 / made.slot_s)
    return made


def gpu_type(name: str) -> GpuType:
    return GpuType.objects.get_or_create(name=name, defaults={"created_at": NOW})[0]


def provider() -> Provider:
    return ensure_provider(organisation=builders.organisation(), now=NOW)


def node(made: Zone, *, of: Provider | None = None, **terms: Any) -> Node:
    number = next(_number)
    fields: dict[str, Any] = {
        "name": f"node-{number}",
        "gpu_type_id": "cpu",
        "compute_capacity": 400.0,
        "self_test_speed": 400.0 / SLOT_S,
        "memory_gb": 8.0,
        "ask_micros": 4 * CELL_MICROS,
        "status": NodeStatus.ONLINE,
        "api_token_hash": f"hash-{number}",
        "facts": {},
        "joined_at": NOW,
        "last_heartbeat_at": NOW,
    } | terms
    return Node.objects.create(zone=made, provider=of or provider(), **fields)


def dataset(
    owner: Organisation,
    made: Zone,
    *,
    rows: int = 100,
    row_tokens: int = 100,
    texts: Sequence[str] | None = None,
) -> Dataset:
    """A data set of equal rows; with ``texts`` its file has a conversation about each."""
    number = next(_number)
    content = b"{}"
    if texts is not None:
        said = ([("user", text), ("assistant", f"{text} it is")] for text in texts)
        rows = len(texts)
        content = b"".join(
            json.dumps(
                {"messages": [{"role": role, "content": text} for role, text in turns]}
            ).encode()
            + b"\n"
            for turns in said
        )
    row = Dataset(
        organisation=owner,
        name=f"data-{number}.jsonl",
        sha256=f"{number:064x}",
        bytes=2,
        format="chat",
        rows=rows,
        tokens=rows * 10,
        longest_row_tokens=row_tokens,
        zone=made,
        created_at=NOW,
    )
    row.file.save("data", ContentFile(content), save=False)
    row.save(force_insert=True)
    tokens = TokenRunsBuilder()
    for _ in range(rows):
        tokens.add_row([[([0], False), ([1] * (row_tokens - 1), True)]])
    DatasetTokens.objects.create(
        dataset=row,
        zone=made,
        tokens=row.tokens,
        longest_row_tokens=row.longest_row_tokens,
        runs=tokens.build().to_bytes(),
    )
    return row


def job_terms(**changed: Any) -> dict[str, Any]:
    """Adapter and training settings with nothing left to us; 90 units an epoch of 100 rows."""
    training = {"batch_size": 8, "sequence_length": 128, "learning_rate": 1e-3, "epochs": 1}
    return {"adapter": {"rank": 8, "alpha": 16.0, "dropout": 0.0}, "training": training | changed}


def price_rent(made: Zone, of: Node) -> None:
    """Have a node's cells cost as much again as their operational cost."""
    prices = {of.pk: (1_000.0,) * 144}
    with enter_lane(zone=made, now=NOW) as lane:
        free = dict.fromkeys(prices, (0.0,) * 144)
        lane.apply(events.PricesSolved(101, compute_price=prices, memory_price=free))


def bid(
    owner: Organisation,
    made: Zone,
    *,
    data: Dataset | None = None,
    price_micros: int = 5_000_000,
    slots: int = 20,
    epochs: int = 1,
    key: str | None = None,
    now: datetime = NOW,
    **changed: Any,
) -> Bid:
    """A bid whose deadline leaves ``slots`` whole slots after the present one."""
    present = (now - made.epoch_at) // timedelta(seconds=made.slot_s)
    deadline_at = made.epoch_at + timedelta(seconds=made.slot_s * (present + 1 + slots))
    terms: dict[str, Any] = {
        "organisation": owner,
        "placed_by": builders.owner_of(owner),
        "zone": made,
        "dataset": data or dataset(owner, made),
        "name": "a job",
        "price_micros": price_micros,
        "deadline_at": deadline_at,
        "idempotency_key": key,
        **job_terms(epochs=epochs),
    } | changed
    return place_bid(asked=NewBid(**terms), now=now)


def slot_at(made: Zone, slot: int) -> datetime:
    """A moment early in a slot."""
    return made.epoch_at + timedelta(seconds=made.slot_s * slot + 1)


def reprice(made: Zone, now: datetime) -> bool:
    """Come to the beat after a moment, with prices solved on the state at that moment's beat."""
    refresh_zone(zone=made, now=now)
    solved = solve_zone_prices(zone_id=made.pk, clock=lambda: now)
    refresh_zone(zone=made, now=now + timedelta(seconds=made.slot_s / find_beats_per_slot(made)))
    return solved


def open_slice(job: Job) -> Slice:
    return Slice.objects.select_related("node").get(job=job, status=SliceStatus.OPEN)


def artifact(job: Job, *, now: datetime = NOW) -> Artifact:
    """The adapter of a job, as its last slice sent it."""
    made = Artifact.objects.filter(job=job).first() or Artifact(job=job)
    made.slice, made.sha256, made.bytes = Slice.objects.filter(job=job).latest("pk"), "0" * 64, 3
    made.created_at = now
    made.file.save("adapter.zip", ContentFile(b"zip"), save=False)
    made.save()
    return made


def checkpoint(
    job: Job,
    *,
    step: int,
    now: datetime = NOW,
    second: float = 0.5,
    more: Mapping[str, Any] | None = None,
) -> Checkpoint:
    """A checkpoint as a node writes it: ``param/`` has the adapter with the rank first.

    Values of the second matrices are 0 to ``second``; ``more`` are other tensors.
    """
    tensors = {"row_losses": np.zeros(3, "f4")}
    adapter = job.terms.adapter
    for part in find_adapted(get_model_shape(job.zone), adapter.target_modules):
        first = np.arange(adapter.rank * part.inputs, dtype="f4").reshape(adapter.rank, -1)
        columns = np.arange(part.outputs, dtype="f4") * np.ones((adapter.rank, 1), "f4")
        of_part = {"lora_A": first / first.size, "lora_B": second * columns / part.outputs}
        tensors |= {f"param/{part.name}.{name}": values for name, values in of_part.items()}
        tensors[f"mean/{part.name}.lora_A"] = first
    content = save(tensors | dict(more or {}))
    made = Checkpoint(job=job, slice=Slice.objects.filter(job=job).latest("pk"), step=step)
    made.sha256, made.bytes = sha256(content).hexdigest(), len(content)
    made.created_at, made.train_loss, made.valid_loss = now, 0.5, 0.75
    made.file.save("step", ContentFile(content), save=False)
    made.save()
    return made


def end_slice(
    job: Job,
    *,
    status: reports.SliceEnd,
    now: datetime,
    step: int | None = None,
    fault: reports.Fault | None = None,
    reason: str = "",
    samples: tuple[reports.TextSample, ...] = (),
    **figures: Any,
) -> None:
    """The node that has the job reports how its slice ended, ``step`` of all its steps done."""
    held = open_slice(job)
    total_steps = figures.pop("total_steps", max(load_job_totals(job).steps, step or 0))
    step = total_steps if step is None else step
    if status == reports.SliceEnd.PAUSED:
        # A node leaves with a checkpoint.
        Job.objects.filter(pk=job.pk).update(checkpoint_step=step)
    if status == reports.SliceEnd.FINISHED:
        artifact(job, now=now)
    finish_slice(
        node=held.node,
        result=reports.SliceResult(
            lease_token=held.lease_token,
            status=status,
            step=step,
            total_steps=total_steps,
            samples_done=step,
            fault=fault,
            reason=reason,
            samples=samples,
            **figures,
        ),
        now=now,
    )
