"""One piece of work of every kind, for the faults that each of them must stand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from marketplace.common.durable.services import NewWork, enqueue_work
from marketplace.common.encryption import encrypt_text
from marketplace.exports.hub import PUSH
from marketplace.exports.models import HubPush
from tests import builders, job_builders, market_builders
from tests.builders import NOW


@dataclass(frozen=True)
class Case:
    """A piece of work that waits, due at ``NOW``."""

    #: What ``do`` finds, as the kind's own tests make it do.
    result: Any
    #: What the kind's rows say of it.
    read: Callable[[], Any]
    before: Any
    #: After ``apply``.
    done: Any
    #: After the last attempt failed for a reason that nobody foresaw.
    failed: Any


def _build_push() -> Case:
    owner, zone = builders.organisation(), market_builders.zone()
    push = HubPush.objects.create(
        organisation=owner,
        job=job_builders.job(zone, (0, market_builders.node(zone)), organisation=owner),
        repository="ada/tone",
        token=encrypt_text("hf_secret"),
        created_at=NOW,
    )
    enqueue_work(NewWork(PUSH, push.pk, due_at=NOW))

    def read() -> Any:
        row = HubPush.objects.get()
        return row.status, row.url, row.reason, bool(row.token)

    return Case(
        result="https://hub.example/ada/tone",
        read=read,
        before=("waiting", "", "", True),
        done=("pushed", "https://hub.example/ada/tone", "", False),
        failed=("failed", "", "The market failed. The fault is ours.", False),
    )


#: By the kind's name.
CASES: dict[str, Callable[[], Case]] = {PUSH: _build_push}
