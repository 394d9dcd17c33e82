"""Entries of a published log as JSON values: what is hashed, and how entries build on each other.

Of a bid that is not shown, salted commitments stand in its place, so that the chain of hashes can
be checked all the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from .canonical_json import serialize_canonical
from .commitments import commit_private, compute_commitment

#: The form of the log that this program writes and reads.
LOG_VERSION = 3

#: Members of an entry.
ENTRY_MEMBERS = {"position", "event", "outcome", "prev_hash", "hash"}

#: Parts of an outcome that tell of the bid.
PRIVATE_PARTS = ("raised", "surplus", "winning_deadline_price", "winning_deadline_slot")


def digest(value: Any) -> str:
    """Give the SHA-256 of a value's canonical JSON in UTF-8, in hex."""
    return hashlib.sha256(serialize_canonical(value).encode()).hexdigest()


def select_public_part(event: Mapping[str, Any], outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Give what the chain is made of: bids and what reveals them as commitments.

    A log can so be shown with some bids left out and its chain still be checked. One that is told
    its price has no amount, and stands as it is.
    Takes an event and an outcome as JSON values, bids given or left out already.
    """
    if event.get("type") != "BidPriced" and ("task" in event or "arrivals" in event):
        event, outcome = dict(event), dict(outcome)
        salt = event.pop("salt", "")
        if "task" in event:
            event["task"] = _hide_amount(event["task"], salt=salt)
        else:
            event["arrivals"] = [select_public_part(of, {})["event"] for of in event["arrivals"]]
        if "private_commitment" not in outcome:
            hidden = {name: outcome.pop(name) for name in PRIVATE_PARTS if name in outcome}
            outcome["private_commitment"] = commit_private(hidden, salt=salt)
    return {"event": event, "outcome": outcome}


def _hide_amount(task: Mapping[str, Any], *, salt: str) -> dict[str, Any]:
    """Give a task with a commitment in place of its bid, if it shows that."""
    shown = dict(task)
    if "bid" in shown:
        shown["bid_commitment"] = compute_commitment(bid=shown.pop("bid"), salt=salt)
    return shown


def hash_entry(
    *, position: int, event: Mapping[str, Any], outcome: Mapping[str, Any], prev_hash: str
) -> str:
    """Give the hash of an entry from its JSON values."""
    body = select_public_part(event, outcome)
    return digest({"position": position, "prev_hash": prev_hash, **body})


def seal_arrival(event: Mapping[str, Any]) -> str:
    """Give what a receipt names a bid by: the hash of the event that will decide it.

    It covers all that the published log will say of the bid, the commitment to its amount
    included. Takes the event as JSON values.
    """
    return digest(select_public_part(event, {})["event"])


def hide_bid(data: Mapping[str, Any]) -> dict[str, Any]:
    """Give an entry's JSON with its bid replaced by the commitment to it."""
    return {**data, **select_public_part(data["event"], data["outcome"])}


def find_break(data: Mapping[str, Any], *, position: int, head: str) -> str | None:
    """Say why an entry does not follow the one at ``position``, whose hash is ``head``."""
    if int(data["position"]) != position + 1:
        return f"entry {position + 1} is missing: the log goes on at {data['position']}"
    if data["prev_hash"] != head:
        return "the entry does not build on the one before it"
    return None


def is_as_hashed(data: Mapping[str, Any]) -> bool:
    """Whether an entry's own text, and not only what is read of it, has the hash it names.

    Reading passes over members that it does not know, and takes ``"5"`` for 5.
    """
    position = data["position"]
    if set(data) != ENTRY_MEMBERS or isinstance(position, bool) or not isinstance(position, int):
        return False
    made = hash_entry(
        position=position,
        event=data["event"],
        outcome=data["outcome"],
        prev_hash=data["prev_hash"],
    )
    return made == data["hash"]
