"""Prompt tuning within seconds, from the express lane."""

from __future__ import annotations

from typing import Any

from finetender.calls import Call, Operation, Pause, draw_key, send
from finetender.operations.data import (
    LOOK_EVERY_S,
    Data,
    check_id,
    choose_zone,
    find_dataset_id,
    list_zones,
)
from finetender.terms import AdapterSettings, TrainingSettings
from finetender.values import ExpressAnswer, ExpressQuote

#: Looks at what a lookup found, until a market that is slow to note it is not waited for.
LOOKUP_LOOKS = 40


def get_express_quote(
    data: Data,
    *,
    zone: str | None = None,
    adapter: AdapterSettings | None = None,
    training: TrainingSettings | None = None,
) -> Operation[ExpressQuote]:
    """What prompt tuning costs by how soon it is done."""
    body = yield from _build_express(data, zone, adapter, training)
    answer = yield from send(Call("POST", "/api/express/quotes", json=body))
    return ExpressQuote.read(answer.body, dataset_id=body["dataset_id"])


def ask_express(
    data: Data,
    *,
    within_s: float,
    name: str = "",
    zone: str | None = None,
    adapter: AdapterSettings | None = None,
    training: TrainingSettings | None = None,
    idempotency_key: str | None = None,
) -> Operation[ExpressAnswer]:
    """Buy prompt tuning that is done within seconds, and wait for the lane's answer."""
    body = yield from _build_express(data, zone, adapter, training)
    body |= {"slo_s": within_s, "name": name}
    key = idempotency_key or draw_key()
    answer = yield from send(Call("POST", "/api/express", json=body, idempotency_key=key))
    found = ExpressAnswer.read(answer.body)
    while found.status == "pending":
        yield Pause(LOOK_EVERY_S)
        again = yield from send(Call("GET", f"/api/express/{check_id(found.id)}"))
        found = ExpressAnswer.read(again.body)
    return found


def await_lookup(request_id: str) -> Operation[ExpressAnswer]:
    """An express request whose job has ended, with what its lookup found.

    That is noted a few seconds after the job; a job without a lookup is not waited for.
    """
    look = Call("GET", f"/api/express/{check_id(request_id)}")
    found = ExpressAnswer.read((yield from send(look)).body)
    for _ in range(LOOKUP_LOOKS):
        if found.raw["lookup"] is not None or not found.raw["adapter"].get("looks_up"):
            break
        yield Pause(LOOK_EVERY_S)
        found = ExpressAnswer.read((yield from send(look)).body)
    return found


def _build_express(
    data: Data,
    zone_name: str | None,
    adapter: AdapterSettings | None,
    training: TrainingSettings | None,
) -> Operation[dict[str, Any]]:
    zone = choose_zone((yield from list_zones()), zone_name)
    return {
        "zone": zone.name,
        "dataset_id": (yield from find_dataset_id(data, zone.name)),
        "adapter": dict(adapter or {}),
        "training": dict(training or {}),
    }
