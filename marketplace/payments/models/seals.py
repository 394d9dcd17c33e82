"""Seals of the ledger: a chain of hashes over entries, with accounts' sums up to each by month."""

import pgtrigger
from django.db import models

from marketplace.payments.models.ledger import Entry, LedgerAccount


class UnsealedEntry(models.Model):
    """An entry that no seal covers yet; a trigger of entries adds it."""

    entry_id: str

    # The trigger adds it with its entry, which nothing deletes.
    entry = models.OneToOneField(
        Entry,
        primary_key=True,
        on_delete=models.PROTECT,
        related_name="unsealed",
        db_constraint=False,
    )

    def __str__(self) -> str:
        return self.entry_id


class LedgerSeal(models.Model):
    """A run of entries that are sealed together: nothing in them changes without its trace."""

    #: From 1 on, without a gap.
    number = models.PositiveBigIntegerField(primary_key=True)
    #: The keys of its entries, in order.
    entry_ids = models.JSONField()
    #: Of all entries and postings up to here.
    entries = models.PositiveBigIntegerField()
    postings = models.PositiveBigIntegerField()
    #: Where the operational cost of all jobs up to here went: the fields of ``SharedAsks``.
    shared_asks = models.JSONField()
    #: SHA-256 in hex over the digest before, the entries and the sums of months that they moved.
    digest = models.CharField(max_length=64, unique=True)
    sealed_at = models.DateTimeField()

    class Meta:
        triggers = [
            pgtrigger.Protect(name="append_only", operation=pgtrigger.Update | pgtrigger.Delete)
        ]

    def __str__(self) -> str:
        return f"{self.number} {self.digest}"


class SealedSum(models.Model):
    """The sum of an account's postings of one month in all sealed entries; seals move it on."""

    account_id: str

    # The constraint below has an index that begins with it.
    account = models.ForeignKey(
        LedgerAccount, on_delete=models.PROTECT, related_name="sealed", db_index=False
    )
    #: The first day of the month in UTC in which the entries are booked.
    month = models.DateField()
    amount_micros = models.BigIntegerField()

    class Meta:
        constraints = [models.UniqueConstraint(name="sealed_sum_once", fields=["account", "month"])]
        triggers = [pgtrigger.Protect(name="keep", operation=pgtrigger.Delete)]

    def __str__(self) -> str:
        return f"{self.amount_micros} of {self.account_id} in {self.month:%Y-%m}"


class SealedKindSum(models.Model):
    """The same sum of all accounts of a kind: pages of the house read no account of anybody's."""

    kind = models.CharField(max_length=20)
    #: As of ``SealedSum``.
    month = models.DateField()
    amount_micros = models.BigIntegerField()

    class Meta:
        constraints = [models.UniqueConstraint(name="kind_sum_once", fields=["kind", "month"])]
        triggers = [pgtrigger.Protect(name="keep", operation=pgtrigger.Delete)]

    def __str__(self) -> str:
        return f"{self.amount_micros} of {self.kind} in {self.month:%Y-%m}"
