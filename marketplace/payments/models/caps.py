"""How much an organisation, one of its members or API keys may spend in a day or a month."""

from django.conf import settings
from django.db import models
from django.db.models import Q

from marketplace.accounts.models import ApiKey, Organisation
from marketplace.common.models import IdField


class CapPeriod(models.TextChoices):
    DAY = "day", "a day"
    MONTH = "month", "a month"


class SpendingCap(models.Model):
    """The most that open bids and prices paid may come to in one day or month, in UTC."""

    id = IdField(prefix="cap")
    organisation = models.ForeignKey(
        Organisation, on_delete=models.PROTECT, related_name="spending_caps"
    )
    #: The member whose bids count; null: all members.
    member = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+"
    )
    #: Of programs with this key only.
    api_key = models.ForeignKey(ApiKey, null=True, on_delete=models.PROTECT, related_name="+")
    period = models.CharField(max_length=8, choices=CapPeriod.choices)
    amount_micros = models.BigIntegerField()
    #: Start of the period that the last notice was about, and the percentage it named.
    noticed_from_at = models.DateTimeField(null=True)
    noticed_percent = models.PositiveSmallIntegerField(default=0)

    organisation_id: str
    member_id: str | None
    api_key_id: str | None

    class Meta:
        constraints = [
            models.UniqueConstraint(
                name="spending_cap_once",
                fields=["organisation", "member", "api_key", "period"],
                nulls_distinct=False,
            ),
            models.CheckConstraint(
                name="spending_cap_not_negative", condition=Q(amount_micros__gte=0)
            ),
            models.CheckConstraint(
                name="spending_cap_of_one",
                condition=Q(member__isnull=True) | Q(api_key__isnull=True),
            ),
        ]

    def __str__(self) -> str:
        whose = self.api_key_id or self.member_id or self.organisation_id
        return f"{self.amount_micros} {self.period} for {whose}"
