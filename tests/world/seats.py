"""The express lane: it buys seats, and customers ask for answers within seconds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from marketplace.express.models import ExpressLane, ExpressRequest, RequestStatus
from marketplace.jobs.models import Job
from tests import express_builders as express
from tests.world.actors import Actor, Turn
from tests.world.world import World


class Express(Actor):
    def __init__(self, world: World, patch: pytest.MonkeyPatch) -> None:
        super().__init__(world, patch)
        express.open_lane(world.zone)
        self.customer = express.customer()
        self.asked = 0
        #: The answer of each request that has one.
        self.answers: dict[str, tuple[str, str]] = {}

    def list_turns(self) -> Sequence[Turn]:
        zone_id = self.world.zone.pk
        return (
            (6, "a customer asks the express lane", self.ask),
            (
                5,
                "the express lane answers",
                lambda: self.world.run_task("express.answer_requests", zone_id=zone_id),
            ),
            (4, "the floor is kept", lambda: self.world.run_task("express.tick")),
        )

    def ask(self) -> None:
        self.asked += 1
        express.ask(
            self.customer,
            self.world.zone,
            slo_s=self.world.rng.choice([20.0, 60.0, 140.0]),
            key=f"express-{self.asked}",
            now=self.world.now,
        )

    def settle(self) -> None:
        ExpressLane.objects.update(is_open=False)
        self.world.run_task("express.answer_requests", zone_id=self.world.zone.pk)

    def is_at_rest(self) -> bool:
        return not ExpressRequest.objects.filter(status=RequestStatus.PENDING).exists()

    def check(self) -> None:
        """A request is answered once, and an admitted one has one job."""
        admitted = []
        for request in ExpressRequest.objects.exclude(status=RequestStatus.PENDING):
            answer = (str(request.status), request.decision_hash)
            assert self.answers.setdefault(request.pk, answer) == answer, request.pk
            if request.status == RequestStatus.ADMITTED:
                admitted.append(request.bid_id)
        jobs = Job.objects.filter(organisation=self.customer).values_list("bid_id", flat=True)
        assert sorted(jobs) == sorted(admitted)

    def describe(self) -> str:
        admitted = sum(status == RequestStatus.ADMITTED for status, _ in self.answers.values())
        return f"express requests {len(self.answers)}, of which {admitted} were admitted"
