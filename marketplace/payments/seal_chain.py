"""The chain of seals: what each one hashes, and whether it is still what was sealed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC
from typing import Any

from marketplace.payments.models import (
    Entry,
    LedgerAccount,
    LedgerSeal,
    Posting,
    SealedKindSum,
    SealedSum,
    UnsealedEntry,
)
from scheduler.public_log.entries import digest

#: Before the first seal.
NO_DIGEST = "0" * 64


#: An account and a month like ``2026-03``.
SumKey = tuple[str, str]


def compute_digest(
    before: str, entries: Sequence[Mapping[str, Any]], sums: Mapping[SumKey, int]
) -> str:
    """The digest of a seal: SHA-256 over canonical JSON (RFC 8785), in hex."""
    by_name = {" ".join(key): amount for key, amount in sums.items()}
    text = {"before": before, "entries": list(entries), "sums": _write_amounts(by_name)}
    return digest(text)


def read_entries(entry_ids: Sequence[str]) -> list[dict[str, Any]]:
    """Entries with their postings as they are sealed, in order of their keys."""
    postings: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for entry_id, account_id, amount in Posting.objects.filter(entry__in=entry_ids).values_list(
        "entry_id", "account_id", "amount_micros"
    ):
        postings[entry_id][account_id] = amount
    columns = ("pk", "kind", "reference", "hold_reference", "booked_at", "memo", "actor_id")
    found = Entry.objects.filter(pk__in=entry_ids).order_by("pk").values_list(*columns)
    return [
        {
            "id": pk,
            "kind": kind,
            "reference": reference,
            "hold": hold_reference,
            "booked_at": booked_at.astimezone(UTC).isoformat(),
            "memo": memo,
            "actor": actor_id,
            "postings": _write_amounts(postings[pk]),
        }
        for pk, kind, reference, hold_reference, booked_at, memo, actor_id in found
    ]


def _write_amounts(amounts: Mapping[str, int]) -> dict[str, str]:
    # As text: JSON counts integers no further than 2^53.
    return {name: str(amount) for name, amount in sorted(amounts.items())}


def add_up(rows: Iterable[Mapping[str, Any]]) -> dict[SumKey, int]:
    """What the entries add to the sums of accounts by month."""
    added: defaultdict[SumKey, int] = defaultdict(int)
    for row in rows:
        for account_id, amount in row["postings"].items():
            added[account_id, row["booked_at"][:7]] += int(amount)
    return added


def read_sums(account_ids: Iterable[str] | None = None) -> dict[SumKey, int]:
    """The sealed sums of some accounts, or of all."""
    sums = SealedSum.objects.all()
    if account_ids is not None:
        sums = sums.filter(account__in=set(account_ids))
    return {
        (account_id, f"{month:%Y-%m}"): amount
        for account_id, month, amount in sums.values_list("account_id", "month", "amount_micros")
    }


def add_up_kinds(sums: Mapping[SumKey, int]) -> dict[SumKey, int]:
    """The same sums by the kind of account in place of the account."""
    accounts = {account_id for account_id, _ in sums}
    kinds = dict(LedgerAccount.objects.filter(pk__in=accounts).values_list("pk", "kind"))
    added: defaultdict[SumKey, int] = defaultdict(int)
    for (account_id, month), amount in sums.items():
        added[kinds[account_id], month] += amount
    return dict(added)


def read_kind_sums() -> dict[SumKey, int]:
    """The sealed sums by kind of account and month."""
    rows = SealedKindSum.objects.values_list("kind", "month", "amount_micros")
    return {(kind, f"{month:%Y-%m}"): amount for kind, month, amount in rows}


def find_broken_seals() -> list[str]:
    """Compute every seal again from the entries as they are now; what is wrong, in words."""
    problems: list[str] = []
    digest, number, covered = NO_DIGEST, 0, 0
    totals: dict[SumKey, int] = {}
    for seal in LedgerSeal.objects.order_by("number").iterator(chunk_size=20):
        number += 1
        if seal.number != number:
            problems.append(f"seal {number} is missing")
            number = seal.number
        rows = read_entries(seal.entry_ids)
        covered += len(rows)
        sums = {key: totals.get(key, 0) + amount for key, amount in add_up(rows).items()}
        totals |= sums
        if compute_digest(digest, rows, sums) != seal.digest:
            problems.append(f"the entries of seal {seal.number} are not what was sealed")
        digest = seal.digest
    stored, kinds = read_sums(), read_kind_sums()
    # One statement: an entry that is written meanwhile is in both or in neither.
    hidden = Entry.objects.exclude(pk__in=UnsealedEntry.objects.values("pk")).count() - covered
    if LedgerSeal.objects.filter(number__gt=number).exists():
        # Sealed meanwhile: the sums and the entries are those of one more seal.
        return problems
    if stored != totals:
        problems.append("the sealed sums are not those of the sealed entries")
    if kinds != add_up_kinds(totals):
        problems.append("the sealed sums by kind are not those of the sealed entries")
    if hidden:
        problems.append(f"{hidden} entries are in no seal and wait for none")
    return problems
