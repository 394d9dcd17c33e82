"""Asking a witness for its part in the value of a day, as durable work.

The lane promises a day's secret as the day before begins; until the day itself the witness's
signature of that promise has time to come. Without it the value of the day before stays, and
verifiers count the day.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime

from django.conf import settings

from marketplace.auction.models import Pricing
from marketplace.auction.witnesses.keys import load_signing_key
from marketplace.common import clock
from marketplace.common.durable.kinds import HeldWork, WorkFailed
from marketplace.common.durable.services import NewWork, restart_work
from marketplace.common.outbound import AnswerLimits, FetchFailed, ask_stranger
from marketplace.fleet.models import Zone
from scheduler.public_log.days import DayPromise, is_witnessed, sign_promise, write_promise

#: The kind of work that asking is; its key is the zone's.
ASK = "auction.day_ask"
#: Header of a request: the market's own signature of its body, in hex, by the key that is named
#: there. A witness signs for nobody else, so no stranger can have another promise signed first.
SIGNATURE = "X-Finetender-Signature"
_LIMITS = AnswerLimits(timeout_s=10.0, answer_s=20.0, bytes_max=4_096)


def ask_witness(zone: Zone, promise: DayPromise, *, now: datetime) -> None:
    """Have a promise's witness asked to sign it. Call in the transaction that logs the promise."""
    Pricing.objects.filter(zone=zone).update(day_promise=promise.entry_hash, day_signature="")
    if promise.witness_key:
        restart_work(NewWork(ASK, zone.pk, due_at=now, payload=asdict(promise)))


def take_signature(zone: Zone) -> str:
    """Give the witness's signature of the promise that waits, in hex, and ask for it no longer."""
    asked = Pricing.objects.filter(zone=zone)
    signature = asked.values_list("day_signature", flat=True).first() or ""
    asked.update(day_promise="", day_signature="")
    return signature


def load_promise(work: HeldWork) -> DayPromise | None:
    """What the witness is to sign; nothing once that day was opened or another was promised."""
    entry_hash = work.payload.get("entry_hash", "")
    asked = Pricing.objects.filter(zone_id=work.key, day_promise=entry_hash)
    return DayPromise(**work.payload) if asked.exists() else None


def fetch_signature(_work: HeldWork, promise: DayPromise) -> str:
    """Post the text that is to be signed to the witness, and check what it answers.

    Raises
    ------
    WorkFailed
        The witness does not answer, or with something else than its signature.
    """
    own = sign_promise(promise, sign=load_signing_key(now=clock.now()).sign)
    try:
        answer = ask_stranger(
            settings.AUCTION_DAY_WITNESS,
            body=write_promise(promise),
            headers={"Content-Type": "application/json", SIGNATURE: own},
            # The address is the operator's own choice.
            allows_private=True,
            limits=_LIMITS,
        )
        signature = str(json.loads(answer.body)["signature"])
    except FetchFailed as error:
        raise WorkFailed(f"The witness did not sign day {promise.day}: {error}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise WorkFailed("The witness's answer has no signature.") from error
    if not is_witnessed(promise, signature):
        raise WorkFailed("The witness's answer is not signed by the key that the promise names.")
    return signature


def store_signature(work: HeldWork, promise: DayPromise, signature: str, *, now: datetime) -> None:
    """Keep the signature for the lane, unless that day was opened meanwhile."""
    asked = Pricing.objects.filter(zone_id=work.key, day_promise=promise.entry_hash)
    asked.update(day_signature=signature)
