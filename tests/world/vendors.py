"""Outside vendors of data: they deliver what is right, or noise, late, twice, or never."""

from __future__ import annotations

import io
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from marketplace.common.errors import UserError
from marketplace.vendors.handover import has_work, make_link, receive_delivery
from marketplace.vendors.models import Preparation, PreparationStatus, VendorKind
from marketplace.vendors.signatures import sign_message
from tests import builders, vendor_builders
from tests.vendor_builders import FEW, chat, traced
from tests.world.actors import Actor, Turn
from tests.world.owners import Owner
from tests.world.world import World, make_owner

GOOD = "\n".join(traced(n + 1, chat(n)) for n in range(4)).encode()
NOISE = b'{"row_id": 1, "messages": "none"}\n'


class MessyOwner(Owner):
    """Has data that a vendor has to prepare first."""

    def choose_data(self, world: World) -> dict[str, Any]:
        return {"preparation": {"kinds": ["outside"], "validation_share": 0.0}, "validation": None}


class Vendors(Actor):
    def __init__(self, world: World, patch: pytest.MonkeyPatch) -> None:
        super().__init__(world, patch)
        owner = make_owner(world.zone, MessyOwner)
        owner.data = vendor_builders.upload(owner.organisation, world.zone, FEW, faulty=2)
        world.owners.append(owner)
        for name, price in (("Near", 20_000), ("Far", 30_000)):
            vendor_builders.vendor(
                world.zone, name, kind=VendorKind.OUTSIDE, minimum_micros=price, base_s=15
            )

    def list_turns(self) -> Sequence[Turn]:
        return (
            (8, "a vendor works", lambda: self._work(self.world.rng.random())),
            (4, "data are handed over", lambda: self.world.run_task("vendors.prepare")),
            (
                3,
                "preparations are concluded",
                lambda: self.world.run_task("auction.preparations_conclude"),
            ),
        )

    def _work(self, draw: float) -> None:
        now = self.world.now
        working = Preparation.objects.filter(
            status=PreparationStatus.WORKING, handed_over_at__isnull=False, submitted_at=None
        )
        found = list(working.select_related("vendor").order_by("created_at", "pk"))
        if not found or draw < 0.2:
            # It is dead, or asleep.
            return
        work = random.Random(draw).choice(found)
        if not has_work(work):
            return
        user = builders.owner_of(work.vendor.organisation)
        link = make_link(preparation=work, asked_by=user, now=now)
        token = link.delivery_url.rstrip("/").split("/")[-2]
        body = NOISE if draw < 0.4 else GOOD
        secret = "whsec_AAAA" if draw < 0.5 else work.vendor.endpoint_secret
        headers = sign_message(secret, body, message_id=work.pk, now=now)
        for _ in range(2 if draw < 0.7 else 1):
            receive_delivery(token=token, content=io.BytesIO(body), headers=headers, now=now)

    def settle(self) -> None:
        # Else its time is over.
        with suppress(UserError):
            self._work(0.99)

    def check(self) -> None:
        """A vendor is paid for what was accepted, and for nothing else."""
        for work in Preparation.objects.all():
            is_accepted = work.status == PreparationStatus.ACCEPTED
            assert is_accepted or not work.paid_from, (work.pk, work.status)

    def describe(self) -> str:
        accepted = Preparation.objects.filter(status=PreparationStatus.ACCEPTED).count()
        return f"preparations {Preparation.objects.count()}, of which {accepted} were accepted"
