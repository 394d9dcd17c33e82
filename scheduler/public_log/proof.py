"""What the owner of a bid holds of it, checked without trust in the market.

A signed receipt says that a position of the log has received the bid. A proof has, beside it, what
opens the commitments to the bid and the entries from the receipt on, as they are published.
``frontend/web/src/proof`` makes the same checks in a browser.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .commitments import commit_private, compute_commitment
from .entries import digest, find_break, is_as_hashed, seal_arrival
from .heads import SignedHead, has_valid_signature, signed_head_from_json
from .transcript import check_transcript
from .turns import ARRIVED, BETWEEN, BUNDLED, PRICED, RECEIVED, VOIDED

PROOF_FORMAT = "finetender-proof-3"


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that was checked."""

    ok: bool
    #: What was checked, and what was found, in a sentence.
    text: str


@dataclass(frozen=True, slots=True)
class ProofCheck:
    """What came of all checks; each was made, also after one that failed."""

    ok: bool
    zone: str
    bid_id: str
    steps: tuple[Step, ...]


def check_proof(
    proof: Mapping[str, Any], *, limit: float | None = None, keys: Collection[str] = ()
) -> ProofCheck:
    """Check a bid's proof, as its owner downloads it.

    Parameters
    ----------
    proof : mapping
        A ``finetender-proof-3``.
    limit : float, optional
        What the owner bid, in the market's units (micro-dollars); without it the proof's own is
        taken, and a step says so.
    keys : collection of str, optional
        The market's public keys in hex, as the reader knows them.

    Raises
    ------
    ValueError
        It is no proof.
    """
    try:
        if proof["format"] != PROOF_FORMAT:
            raise ValueError(f"the format {proof['format']!r} is not that of a proof")
        entries = list(proof["entries"])
        own = next((each for each in entries if each["position"] == proof["position"]), None)
        if own is None:
            raise ValueError(f"entry {proof['position']} is not among those of the proof")
        steps = [
            _check_limit(proof, own, limit),
            _check_private(proof, own),
            _check_names(proof, own),
            _check_outcome(own, entries, bid=float(proof["opening"]["bid"])),
            _check_chain(entries),
            *_check_receipt(proof, own, entries, keys),
        ]
        zone, bid_id = str(proof["zone"]), str(proof["bid_id"])
    except (KeyError, TypeError, AttributeError, IndexError, ArithmeticError) as error:
        raise ValueError(f"this is not a proof: {error!r}") from error
    return ProofCheck(all(step.ok for step in steps), zone, bid_id, tuple(steps))


def check_receipt(
    receipt: Mapping[str, Any],
    lines: Iterable[str] | None = None,
    *,
    keys: Collection[str] = (),
    decision: Mapping[str, Any] | None = None,
) -> ProofCheck:
    """Check a signed receipt by itself, or against a transcript of its zone.

    Parameters
    ----------
    receipt : mapping
    lines : iterable of str, optional
        The zone's published log, which has to be one chain.
    keys : collection of str, optional
        As for ``check_proof``.
    decision : mapping, optional
        The entry that decided the bid, as the owner holds it; the log has to have the same.

    Raises
    ------
    ValueError
        It is no receipt, or the lines are not a transcript.
    """
    signed = signed_head_from_json(receipt)
    if signed.receipt is None:
        raise ValueError("this is a signed head, of no bid; give it as --witness")
    steps = [_check_signature(signed, keys)]
    if lines is not None:
        steps += _find_in_log(signed, lines, decision)
    return ProofCheck(
        all(step.ok for step in steps), signed.head.zone, signed.receipt.bid_id, tuple(steps)
    )


class _Seen:
    """What a log's entries say of one receipt, as they are read."""

    def __init__(self, signed: SignedHead) -> None:
        assert signed.receipt is not None
        self._signed, self._bid_id = signed, signed.receipt.bid_id
        self.received: Mapping[str, Any] | None = None
        #: The entry that decided the bid, or took its receipt back: the first one after it.
        self.settled: Mapping[str, Any] | None = None

    def note(self, data: Mapping[str, Any]) -> None:
        """Take the next entry of the log."""
        event, at = data["event"], self._signed.head.position
        if data["position"] == at:
            self.received = data
        elif data["position"] > at and self.settled is None and self._settles(event):
            self.settled = data

    def _settles(self, event: Mapping[str, Any]) -> bool:
        if event["type"] == VOIDED:
            return self._bid_id in event["task_ids"]
        return event["type"] in (ARRIVED, PRICED) and event["task"]["id"] == self._bid_id


def _find_in_log(
    signed: SignedHead, lines: Iterable[str], decision: Mapping[str, Any] | None
) -> list[Step]:
    """Whether the log has the entry that received the bid, and what it says became of it."""
    seen, head = _Seen(signed), signed.head
    chain = check_transcript(lines, witness=[signed], note=seen.note)
    steps = [
        Step(
            chain.ok,
            f"The log is one chain of {chain.entries} entries."
            if chain.ok
            else f"The log does not hold: {chain.problem}.",
        )
    ]
    received = seen.received
    if received is None:
        text = f"The log has no entry {head.position}, at which it was received."
        return [*steps, Step(False, text)]
    is_listed = received["hash"] == head.hash and _lists(received, signed)
    text = (
        f"Entry {head.position} of the log received the bid."
        if is_listed
        else f"Entry {head.position} of the log is not the one that the receipt is of."
    )
    return [*steps, Step(is_listed, text), _judge_settled(signed, seen.settled, decision)]


def _judge_settled(
    signed: SignedHead, settled: Mapping[str, Any] | None, decision: Mapping[str, Any] | None
) -> Step:
    """What the log says became of a bid, held against the entry that its owner has."""
    if settled is None:
        return Step(decision is None, "The log does not say yet what became of it.")
    event, at = settled["event"], settled["position"]
    if decision is not None and settled["hash"] != decision["hash"]:
        return Step(False, f"Entry {at} of the log is not the decision that the proof has.")
    if event["type"] == VOIDED:
        return Step(True, f"Entry {at} took the receipt back: {event.get('reason')}.")
    assert signed.receipt is not None
    if seal_arrival(event) != signed.receipt.sealed:
        return Step(False, f"Entry {at} decided another bid than was received.")
    outcome = settled["outcome"]
    if event["type"] == PRICED:
        price = outcome["price"]
        told = "that there is no plan" if price is None else f"the price of {_dollars(price)}"
        return Step(True, f"Entry {at} told {told}.")
    said = f"admitted at {_dollars(outcome['payment'])}" if outcome["admitted"] else "refused"
    return Step(True, f"Entry {at} decided it: {said}.")


def _lists(received: Mapping[str, Any], signed: SignedHead) -> bool:
    receipt, event = signed.receipt, received["event"]
    assert receipt is not None
    return event["type"] == RECEIVED and [receipt.bid_id, receipt.sealed] in event["bids"]


def _check_limit(proof: Mapping[str, Any], own: Mapping[str, Any], limit: float | None) -> Step:
    opening = proof["opening"]
    published = own["event"]["task"]["bid_commitment"]
    opens = compute_commitment(bid=opening["bid"], salt=opening["salt"]) == published
    if limit is None:
        return Step(
            opens, f"The bid of {_dollars(opening['bid'])} opens the public commitment to it."
        )
    fits = compute_commitment(bid=limit, salt=opening["salt"]) == published
    text = f"Your bid of {_dollars(limit)} is what was committed to."
    return Step(
        opens and fits, text if opens and fits else f"Another bid than {_dollars(limit)} stands."
    )


def _check_private(proof: Mapping[str, Any], own: Mapping[str, Any]) -> Step:
    opening = proof["opening"]
    found = commit_private(opening["private"], salt=opening["salt"])
    ok = found == own["outcome"]["private_commitment"]
    what = "is" if ok else "is not"
    return Step(ok, f"What was told to you alone {what} what was committed to.")


def _check_names(proof: Mapping[str, Any], own: Mapping[str, Any]) -> Step:
    bid_id = proof["bid_id"]
    is_named = own["event"]["task"]["id"] == bid_id == own["outcome"]["task_id"]
    ok = is_named and own["event"]["type"] == ARRIVED
    return Step(ok, f"Entry {own['position']} decides {'' if ok else 'another bid than '}{bid_id}.")


def _check_outcome(own: Mapping[str, Any], entries: Sequence[Any], *, bid: float) -> Step:
    """A bid wins above the price and loses at it or below; of a bundle that is so of the sums."""
    outcome, bundle = own["outcome"], own["event"].get("bundle")
    if bundle:
        whole = [
            each["outcome"]["admitted"] == outcome["admitted"]
            for each in entries
            if each["event"].get("bundle_id") == bundle and each["event"]["type"] == BUNDLED
        ]
        return Step(whole == [True], f"The bids of {bundle} were decided as one.")
    if outcome["admitted"]:
        payment = outcome["payment"]
        return Step(
            bid > payment, f"It won: the price is {_dollars(payment)}, the bid {_dollars(bid)}."
        )
    if outcome["refusal"] != "price":
        return Step(True, f"It lost, and not by its price: {outcome['refusal']}.")
    price = outcome["winning_price"]
    if price is None:
        return Step(False, "It lost by its price, and no price is given.")
    return Step(
        bid <= price,
        f"It lost: more than {_dollars(price)} would have won, the bid was {_dollars(bid)}.",
    )


def _check_chain(entries: Sequence[Mapping[str, Any]]) -> Step:
    before = entries[0]
    for entry in entries:
        if not is_as_hashed(entry):
            return Step(False, f"Entry {entry['position']} was changed: its hash is another.")
        if entry is not before:
            position, head = before["position"], before["hash"]
            if (problem := find_break(entry, position=position, head=head)) is not None:
                return Step(False, f"At entry {entry['position']}: {problem}.")
        before = entry
    first, last = entries[0]["position"], before["position"]
    return Step(True, f"Entries {first} to {last} are as they were hashed, one upon the other.")


def _check_receipt(
    proof: Mapping[str, Any],
    own: Mapping[str, Any],
    entries: Sequence[Mapping[str, Any]],
    keys: Collection[str],
) -> list[Step]:
    if proof["receipt"] is None:
        return [Step(False, "There is no receipt of it.")]
    signed = signed_head_from_json(proof["receipt"])
    receipt, head = signed.receipt, signed.head
    is_own = (
        receipt is not None
        and (head.zone, receipt.bid_id) == (proof["zone"], proof["bid_id"])
        and receipt.sealed == digest(own["event"])
        and head.position < own["position"]
    )
    between = [each for each in entries if head.position <= each["position"] < own["position"]]
    is_first = (
        receipt is not None
        and len(between) == own["position"] - head.position > 0
        and between[0]["hash"] == head.hash
        and _lists(between[0], signed)
    )
    is_quiet = is_first and all(each["event"]["type"] in BETWEEN for each in between)
    return [
        Step(is_own, f"The receipt is {'' if is_own else 'not '}of the bid that was decided."),
        Step(
            is_quiet,
            f"From entry {head.position} to the decision only bids were received and decided."
            if is_quiet
            else "Between receipt and decision are not the entries that should be.",
        ),
        _check_signature(signed, keys),
    ]


def _check_signature(signed: SignedHead, keys: Collection[str]) -> Step:
    key = signed.public_key
    if not has_valid_signature(signed):
        return Step(False, f"The signature is not made by the key {key}.")
    if keys and key not in keys:
        return Step(False, f"It is signed by {key}, which is none of the keys given.")
    told = "one of those given" if keys else "compare it with the market's published ones"
    return Step(True, f"It is signed by the key {key}: {told}.")


def _dollars(micros: float) -> str:
    """An amount as people write it: to the cent at least, to the micro-dollar at most."""
    whole, _, part = f"{micros / 1_000_000:.6f}".partition(".")
    return f"${whole}.{part.rstrip('0'):0<2}"
