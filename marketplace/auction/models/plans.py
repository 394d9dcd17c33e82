"""Cells that a bid holds, and the work that was done in them."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q

from marketplace.auction.models.bids import FIRST_REVISION, Bid


class Reservation(models.Model):
    """One cell of one admitted bid, for queries; the log is the truth.

    The rows of a bid are the record of its plans: each new plan is a revision, and a cell that
    went back on sale has ``released_at``. Rows are never deleted.
    """

    bid_id: str
    zone_id: str
    node_id: str
    bid = models.ForeignKey(Bid, on_delete=models.PROTECT, related_name="reservations")
    # The index below begins with it.
    zone = models.ForeignKey(
        "fleet.Zone", on_delete=models.PROTECT, related_name="+", db_index=False
    )
    node = models.ForeignKey("fleet.Node", on_delete=models.PROTECT, related_name="+")
    #: Of the bid's plan, from ``FIRST_REVISION`` on.
    revision = models.PositiveIntegerField(default=FIRST_REVISION, db_default=FIRST_REVISION)
    slot = models.BigIntegerField()
    #: Work units; the column is named as the paper names them.
    samples = models.FloatField()
    memory_gb = models.FloatField()
    #: What the provider is to earn for this share of the slot (e_ikt), rounded up.
    operational_cost_micros = models.BigIntegerField()
    #: Micro-dollars a sample, as posted when the cell was sold; null: the ask is paid.
    posted_rate_micros = models.FloatField(null=True)
    released_at = models.DateTimeField(null=True)
    #: Of a cell that was given back shortly before it began: the rent that waited for it to be sold
    #: again; null while it does, and where none did.
    waited_micros = models.BigIntegerField(null=True)
    #: Of that, what goes back, and what of the rest is for the provider whose room stays idle.
    resold_micros = models.BigIntegerField(null=True)
    idle_micros = models.BigIntegerField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["bid", "slot"],
                condition=Q(released_at__isnull=True),
                name="auction_reservation_one_node_per_slot",
            )
        ]
        indexes = [
            models.Index(fields=["zone", "slot", "node"], name="auction_reservation_cell"),
        ]

    def __str__(self) -> str:
        return f"{self.bid_id} slot {self.slot} on {self.node_id}"


class WorkShare(models.Model):
    """What one node did of a job that was settled, and what its provider got for it."""

    bid_id: str
    node_id: str
    organisation_id: str

    # An index below begins with it.
    bid = models.ForeignKey(
        Bid, on_delete=models.PROTECT, related_name="work_shares", db_index=False
    )
    # So do those below with these two.
    node = models.ForeignKey(
        "fleet.Node", on_delete=models.PROTECT, related_name="work_shares", db_index=False
    )
    #: The provider.
    organisation = models.ForeignKey(
        "accounts.Organisation", on_delete=models.PROTECT, related_name="+", db_index=False
    )
    #: Optimizer steps that counted.
    steps = models.PositiveIntegerField()
    #: Work units of those steps, evaluations included.
    units = models.PositiveBigIntegerField()
    #: Its part of the operational cost, by its units.
    earned_micros = models.BigIntegerField()
    #: What of it was paid: less where the provider was at fault.
    paid_micros = models.BigIntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["bid", "node"], name="auction_work_share_once"),
            models.CheckConstraint(
                condition=Q(paid_micros__gte=0, paid_micros__lte=F("earned_micros")),
                name="auction_work_share_paid_within_earned",
            ),
        ]
        # The latest of one node, and of one provider.
        indexes = [
            models.Index(fields=["node", "-id"], name="auction_work_share_node"),
            models.Index(fields=["organisation", "-id"], name="auction_work_share_provider"),
        ]

    def __str__(self) -> str:
        return f"{self.steps} steps of {self.bid_id} on {self.node_id}"
