"""Nodes: they train what they have leases for, fall silent, and say old things again."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from marketplace.auction.models import Bid
from marketplace.fleet.models import Node
from marketplace.jobs.models import Slice, SliceStatus
from marketplace.jobs.services import (
    LeaseLost,
    apply_heartbeat,
    finish_slice,
    record_progress,
    store_adapter,
    store_checkpoint,
)
from marketplace.jobs.work import load_job_totals
from tests import job_builders
from tests.builders import NOW
from workers.protocol.messages import Heartbeat
from workers.protocol.reports import Fault, ProgressEvent, ProgressReport, SliceEnd, SliceResult

if TYPE_CHECKING:
    from tests.world.world import World

#: Messages that a node may say again later.
REMEMBERED = 30


@dataclass
class SimulatedNode:
    node: Node
    silent_until: datetime = NOW
    #: Steps done under each lease that it knows.
    steps: dict[str, int] = field(default_factory=dict)
    said: list[Callable[[datetime], object]] = field(default_factory=list)

    def beat(self, world: World) -> None:
        if world.now < self.silent_until:
            return
        heartbeat = Heartbeat(self.node.pk, world.now.timestamp(), tuple(sorted(self.steps)))
        for token in apply_heartbeat(node=self.node, heartbeat=heartbeat, now=world.now).revoked:
            self.steps.pop(token, None)

    def fall_silent(self, world: World) -> None:
        """Lose its memory, and come back after a while."""
        self.silent_until = world.now + timedelta(seconds=world.rng.uniform(5, 120))
        self.steps.clear()

    def repeat(self, world: World) -> None:
        if self.said:
            world.rng.choice(self.said)(world.now)

    def work(self, world: World) -> None:
        if world.now < self.silent_until:
            return
        held = (
            Slice.objects.filter(node=self.node, status=SliceStatus.OPEN)
            .select_related("job")
            .order_by("opened_at", "job__created_at")
        )
        if not held:
            return
        one = world.rng.choice(list(held))
        total = load_job_totals(one.job).steps
        token = one.lease_token
        done = self.steps.setdefault(token, one.job.checkpoint_step)
        draw = world.rng.random()
        if draw < 0.04:
            self._end(world, one, SliceEnd.FAILED, total, Fault.SYSTEM)
        elif draw < 0.2 and done:
            content = job_builders.safetensors(done)
            self.say(
                world,
                lambda now: store_checkpoint(
                    node=self.node,
                    lease_token=token,
                    step=done,
                    content=io.BytesIO(content),
                    now=now,
                ),
            )
        elif done < total:
            self.steps[token] = done = min(total, done + world.rng.randint(1, 12))
            event = ProgressEvent(
                seq=one.last_seq + 1,
                at=world.now.timestamp(),
                step=done,
                total_steps=total,
                epoch=0.0,
                samples_done=done,
            )
            report = ProgressReport(lease_token=token, events=(event,))
            self.say(world, lambda now: record_progress(node=self.node, report=report, now=now))
        else:
            self._end(world, one, SliceEnd.FINISHED, total)

    def _end(
        self, world: World, held: Slice, status: SliceEnd, total: int, fault: Fault | None = None
    ) -> None:
        step = self.steps.get(held.lease_token, 0)
        result = SliceResult(
            lease_token=held.lease_token,
            status=status,
            step=step,
            total_steps=total,
            samples_done=step,
            fault=fault,
            reason="The GPU fell off the bus." if fault else "",
        )
        if status == SliceEnd.FINISHED:
            # Of each job its own weights: those of another's are refused.
            seed = Bid.objects.get(pk=held.job.bid_id).arrival
            content = job_builders.adapter_file(seed, adapter=held.job.terms.adapter)
            self.say(
                world,
                lambda now: store_adapter(
                    node=self.node,
                    lease_token=held.lease_token,
                    content=io.BytesIO(content),
                    now=now,
                ),
            )
        self.say(world, lambda now: finish_slice(node=self.node, result=result, now=now))

    def say(self, world: World, message: Callable[[datetime], object]) -> None:
        """Send a message; it may be sent again whenever the node likes."""
        self.said = [*self.said[-REMEMBERED:], message]
        try:
            message(world.now)
        except LeaseLost:
            self.steps = {token: step for token, step in self.steps.items() if step < 0}
            raise
