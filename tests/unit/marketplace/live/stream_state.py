"""What a page knows after an event of its stream, as `frontend/web/src/job/state.ts` applies it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marketplace.live.snapshots import DECISIONS_SHOWN, LOG_SHOWN, extend_series


def apply_job_event(snapshot: Mapping[str, Any], event: Mapping[str, Any]) -> dict[str, Any]:
    """The snapshot after an event of the stream; events it already holds change nothing."""
    if event["seq"] <= snapshot["seq"]:
        return dict(snapshot)
    after = {**snapshot, "seq": event["seq"], "status": event["status"]}
    if event["type"] == "event":
        told = {name: value for name, value in event.items() if name != "status"}
        progress = told.pop("progress")
        return after | {"progress": progress, "events": [*snapshot["events"], told]}
    return after | {
        "progress": {name: event[name] for name in snapshot["progress"]},
        "points": extend_series(snapshot["points"], event["points"]),
        "log": [*snapshot["log"], *event["log"]][-LOG_SHOWN:],
    }


def apply_market_event(snapshot: Mapping[str, Any], event: Mapping[str, Any]) -> dict[str, Any]:
    """The snapshot after an event of the stream; decisions come newest first."""
    if event["seq"] <= snapshot["seq"]:
        return dict(snapshot)
    fresh = list(reversed(event.get("decisions", [])))
    return {
        **snapshot,
        **{name: event[name] for name in ("seq", "position", "head_hash", "slot")},
        "decisions": [*fresh, *snapshot["decisions"]][:DECISIONS_SHOWN],
    }
