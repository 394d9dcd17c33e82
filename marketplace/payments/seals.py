"""Sealing the ledger: a chain of hashes over its entries, and the sums of accounts by month.

A seal takes the entries that none covers yet, whatever their transactions began in: the order of
commits is no order of keys. The auction's lane signs a seal as it signs the heads of its logs, so
that witnesses keep what the books said. Checks read the last seal and what came after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime

from django.db import transaction

from marketplace.common.locks import advisory_lock
from marketplace.payments.ledger_checks import SharedAsks, check_recent, sum_shared_asks
from marketplace.payments.models import LedgerSeal, SealedKindSum, SealedSum, UnsealedEntry
from marketplace.payments.seal_chain import (
    NO_DIGEST,
    SumKey,
    add_up,
    add_up_kinds,
    compute_digest,
    read_entries,
    read_kind_sums,
    read_sums,
)

#: Entries of one seal; the next takes the rest.
ENTRIES_OF_SEAL = 5000


def seal_ledger(*, now: datetime) -> int:
    """Seal every entry that is not, unless the books are wrong; the number of seals made.

    What is wrong stays unsealed, so that the next check finds it too. What is written after the
    check has begun waits for the next one.
    """
    waiting = list(UnsealedEntry.objects.order_by("pk").values_list("pk", flat=True))
    if not check_recent().balanced:
        return 0
    made = 0
    for start in range(0, len(waiting), ENTRIES_OF_SEAL):
        made += _seal_some(waiting[start : start + ENTRIES_OF_SEAL], now=now)
    return made


def _seal_some(checked_ids: Sequence[str], *, now: datetime) -> bool:
    with transaction.atomic(), advisory_lock("payments", "seal", wait=False) as alone:
        if not alone:
            return False
        waiting = UnsealedEntry.objects.filter(pk__in=checked_ids).order_by("pk")
        entry_ids = list(waiting.values_list("pk", flat=True))
        if not entry_ids:
            return False
        before = find_last_seal()
        rows = read_entries(entry_ids)
        moved = add_up(rows)
        sealed = read_sums(account_id for account_id, _ in moved)
        sums = {key: sealed.get(key, 0) + amount for key, amount in moved.items()}
        asks = SharedAsks(**before.shared_asks) if before else SharedAsks(0, 0, 0, 0, 0)
        added = sum_shared_asks(entry_ids)
        LedgerSeal.objects.create(
            number=before.number + 1 if before else 1,
            entry_ids=entry_ids,
            entries=(before.entries if before else 0) + len(entry_ids),
            postings=(before.postings if before else 0) + sum(len(r["postings"]) for r in rows),
            shared_asks={
                field.name: getattr(asks, field.name) + getattr(added, field.name)
                for field in fields(SharedAsks)
            },
            digest=compute_digest(before.digest if before else NO_DIGEST, rows, sums),
            sealed_at=now,
        )
        SealedSum.objects.bulk_create(
            [
                SealedSum(account_id=pk, month=f"{month}-01", amount_micros=amount)
                for (pk, month), amount in sums.items()
            ],
            update_conflicts=True,
            unique_fields=["account", "month"],
            update_fields=["amount_micros"],
        )
        _add_to_kinds(moved)
        UnsealedEntry.objects.filter(pk__in=entry_ids).delete()
    return True


def _add_to_kinds(moved: Mapping[SumKey, int]) -> None:
    """Move the sums of all accounts of a kind; call alone, as one who seals."""
    stored = read_kind_sums()
    SealedKindSum.objects.bulk_create(
        [
            SealedKindSum(
                kind=kind, month=f"{month}-01", amount_micros=stored.get((kind, month), 0) + amount
            )
            for (kind, month), amount in add_up_kinds(moved).items()
        ],
        update_conflicts=True,
        unique_fields=["kind", "month"],
        update_fields=["amount_micros"],
    )


def find_last_seal() -> LedgerSeal | None:
    return LedgerSeal.objects.order_by("-number").first()
