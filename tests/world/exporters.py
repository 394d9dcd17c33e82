"""Exports: owners ask for another form of a finished adapter, and nodes send a file, or noise."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from django.core.files.base import ContentFile

from marketplace.exports import errands
from marketplace.exports.asking import ask_export
from marketplace.exports.models import Export, ExportForm
from marketplace.jobs.errands import take_file, take_result
from marketplace.jobs.models import Artifact, ErrandState, Job, JobStatus
from marketplace.jobs.spooling import SpooledFile
from marketplace.payments.models import Hold, HoldStatus
from tests import builders
from tests.world.actors import Actor, Turn
from tests.world.owners import CardOwner
from tests.world.simulated_nodes import SimulatedNode
from tests.world.world import World
from workers.protocol.errands import ErrandResult
from workers.protocol.export_check import ExportFileError
from workers.protocol.reports import Fault

#: A file that the market refuses.
WRONG_FILE = b"noise"
#: Gives errands to nodes, and takes late ones back.
HAND_OUT = "jobs.errands_tick"


@contextmanager
def _compose(_export: Export, upload: SpooledFile) -> Iterator[SpooledFile]:
    """The market's comparison of an export, of bases that lie nowhere."""
    if upload.file.read() == WRONG_FILE:
        raise ExportFileError("it is noise")
    upload.file.seek(0)
    yield upload


class Exporters(Actor):
    def __init__(self, world: World, patch: pytest.MonkeyPatch) -> None:
        super().__init__(world, patch)
        patch.setattr(errands, "compose_export", _compose)
        #: Whether one was asked for once nothing went wrong any more; most jobs succeed late.
        self.was_asked_late = False

    def list_turns(self) -> Sequence[Turn]:
        return (
            (5, "an owner exports", self.ask),
            (12, "a node exports", self.deliver),
            (4, "errands are handed out", lambda: self.world.run_task(HAND_OUT)),
        )

    def ask(self) -> None:
        found = self._list_exportable()
        if found:
            job = self.world.rng.choice(found)
            ask_export(
                organisation=job.organisation,
                asked_by=builders.owner_of(job.organisation),
                job=job,
                form=self.world.rng.choice(list(ExportForm)),
                now=self.world.now,
            )

    def _list_exportable(self) -> list[Job]:
        payers = [one for one in self.world.owners if not isinstance(one, CardOwner)]
        jobs = Job.objects.filter(
            organisation__in=[owner.organisation for owner in payers],
            status=JobStatus.SUCCEEDED,
            pk__in=Artifact.objects.values("job"),
        )
        return list(jobs.select_related("organisation").order_by("created_at", "pk"))

    def deliver(self) -> None:
        self._answer(self.world.rng.choice(self.world.nodes), self.world.rng.random())

    def _answer(self, sender: SimulatedNode, draw: float) -> None:
        """Send the file of an errand, a wrong one, or why there is none; or nothing."""
        world = self.world
        asked = Export.objects.filter(node=sender.node, state=ErrandState.ASKED)
        found = list(asked.order_by("asked_at", "pk"))
        if world.now < sender.silent_until or not found:
            return
        node, token = sender.node, random.Random(draw).choice(found).token
        if draw < 0.2:
            result = ErrandResult(reason="The disk is full.", fault=Fault.SYSTEM)
            sender.say(
                world, lambda now: take_result(node=node, token=token, result=result, now=now)
            )
        elif draw < 0.9:
            content = WRONG_FILE if draw < 0.4 else b"made by " + node.pk.encode()
            sender.say(
                world,
                lambda now: take_file(
                    node=node, token=token, content=ContentFile(content), now=now
                ),
            )

    def settle(self) -> None:
        if not self.was_asked_late and self._list_exportable():
            self.was_asked_late = True
            self.ask()
        for sender in self.world.nodes:
            self._answer(sender, 0.5)

    def is_at_rest(self) -> bool:
        is_asked = self.was_asked_late or not self._list_exportable()
        return is_asked and not Export.objects.filter(state__in=Export.OPEN).exists()

    def check(self) -> None:
        """One is paid once, when a right file of it is there, and holds its price until then."""
        for export in Export.objects.all():
            is_done = export.state == ErrandState.DONE
            assert is_done or not export.file, (export.pk, export.state, export.file.name)
            assert export.paid_micros == (export.price_micros if is_done else 0), export.pk
            assert export.attempts <= 3, export.pk
            hold = Hold.objects.get(reference=export.hold_reference)
            is_open = hold.status == HoldStatus.HELD
            assert is_open == (export.state in Export.OPEN), (export.pk, export.state, hold.status)
            if export.file:
                with export.file.open("rb") as file:
                    assert file.read() != WRONG_FILE

    def describe(self) -> str:
        done = Export.objects.filter(state=ErrandState.DONE).count()
        return f"exports {Export.objects.count()}, of which {done} were made"
