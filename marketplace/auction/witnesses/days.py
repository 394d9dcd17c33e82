"""Asking a witness for its part in the value of a day, as durable work.

The lane promises a day's secret half a day before; until then the witness's signature over that
promise has time to come. Without it the day opens all the same, and verifiers count it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings

from marketplace.auction.models import Pricing
from marketplace.common.durable.kinds import HeldWork, WorkFailed
from marketplace.common.durable.services import NewWork, restart_work
from marketplace.common.outbound import AnswerLimits, FetchFailed, post_message
from marketplace.fleet.models import Zone
from scheduler.auction.log.codec import event_from_json, event_to_json
from scheduler.auction.log.events import DayPromised
from scheduler.auction.log.heads import is_day_signed, write_day

#: The kind of work that asking is; its key is the zone's.
ASK = "auction.day_ask"
_LIMITS = AnswerLimits(timeout_s=10.0, answer_s=20.0, bytes_max=4_096)


@dataclass(frozen=True, slots=True)
class Promise:
    """An entry that promised a day's secret, and its hash."""

    entry: DayPromised
    hash: str


def ask_witness(zone: Zone, entry: DayPromised, *, promise_hash: str, now: datetime) -> None:
    """Have a promise's witness asked to sign it. Call in the transaction that logs the promise."""
    Pricing.objects.filter(zone=zone).update(day_promise=promise_hash, day_signature="")
    if entry.witness_key:
        payload = {"entry": event_to_json(entry), "hash": promise_hash}
        restart_work(NewWork(ASK, zone.pk, due_at=now, payload=payload))


def take_signature(zone: Zone) -> str:
    """Give the witness's signature of the promise that waits, in hex, and ask for it no longer."""
    asked = Pricing.objects.filter(zone=zone)
    signature = asked.values_list("day_signature", flat=True).first() or ""
    asked.update(day_promise="", day_signature="")
    return signature


def load_promise(work: HeldWork) -> Promise | None:
    """What the witness is to sign; nothing once that day was opened or another was promised."""
    asked = Pricing.objects.filter(zone_id=work.key, day_promise=work.payload.get("hash"))
    entry = event_from_json(work.payload["entry"]) if asked.exists() else None
    return Promise(entry, work.payload["hash"]) if isinstance(entry, DayPromised) else None


def fetch_signature(_work: HeldWork, promise: Promise) -> str:
    """Post the text that is to be signed to the witness, and check what it answers.

    Raises
    ------
    WorkFailed
        The witness does not answer, or with something else than its signature.
    """
    entry = promise.entry
    text = write_day(entry, promise_hash=promise.hash)
    try:
        answer = post_message(
            settings.AUCTION_DAY_WITNESS,
            body=text,
            headers={"Content-Type": "application/json"},
            # The address is the operator's own choice.
            allows_private=True,
            limits=_LIMITS,
        )
        signature = str(json.loads(answer.body)["signature"])
    except FetchFailed as error:
        raise WorkFailed(f"The witness did not sign day {entry.day}: {error}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise WorkFailed("The witness's answer has no signature.") from error
    if not is_day_signed(entry, promise_hash=promise.hash, signature=signature):
        raise WorkFailed("The witness's answer is not signed by the key that the promise names.")
    return signature


def store_signature(work: HeldWork, promise: Promise, signature: str, *, now: datetime) -> None:
    """Keep the signature for the lane, unless that day was opened meanwhile."""
    asked = Pricing.objects.filter(zone_id=work.key, day_promise=promise.hash)
    asked.update(day_signature=signature)
