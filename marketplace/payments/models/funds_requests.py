"""Requests for money in a wallet."""

from django.conf import settings
from django.db import models
from django.db.models import Q

from marketplace.accounts.models import Organisation
from marketplace.common.models import IdField


class FundsRequest(models.Model):
    """An organisation asks for money in its wallet; the operator grants it or declines."""

    organisation_id: str

    id = IdField(prefix="fund")
    # An index below begins with it.
    organisation = models.ForeignKey(
        Organisation, on_delete=models.PROTECT, related_name="funds_requests", db_index=False
    )
    amount_micros = models.BigIntegerField()
    asked_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+"
    )
    asked_at = models.DateTimeField()
    answered_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+"
    )
    answered_at = models.DateTimeField(null=True)
    #: None while there is no answer.
    is_granted = models.BooleanField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                name="funds_request_one_open",
                fields=["organisation"],
                condition=Q(is_granted__isnull=True),
            ),
            models.CheckConstraint(name="funds_request_positive", condition=Q(amount_micros__gt=0)),
            models.CheckConstraint(
                name="funds_request_answered_whole",
                condition=Q(is_granted__isnull=True, answered_at__isnull=True)
                | Q(is_granted__isnull=False, answered_at__isnull=False),
            ),
        ]
        indexes = [models.Index(name="funds_request_latest", fields=["organisation", "-asked_at"])]

    def __str__(self) -> str:
        return f"{self.amount_micros} for {self.organisation_id}"
