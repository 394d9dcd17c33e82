"""What may be asked of an organisation's own settings: keys, members, consents, messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from marketplace.accounts.erasure import RETAIN_DAYS_MAX, RETAIN_DAYS_MIN
from marketplace.accounts.models import Role
from marketplace.api.market.fields import FormedText, StrictSerializer
from marketplace.api.text_patterns import EMAIL, HTTPS_ROOT, HTTPS_URL
from marketplace.tracking.models import TrackingService
from marketplace.tracking.services import ADDRESS_CHARS
from marketplace.tracking.trackers import TRACKERS
from marketplace.webhooks.models import MessageForm
from marketplace.webhooks.news import NOTICE_KINDS
from marketplace.webhooks.outbox import EVENT_TYPES


class KeyRotationRequest(StrictSerializer):
    overlap_s = serializers.IntegerField(
        min_value=0,
        max_value=30 * 24 * 3600,
        required=False,
        default=24 * 3600,
        help_text="Seconds for which the earlier secret may still be used; a day without it.",
    )


@extend_schema_field({"type": "integer", "minimum": RETAIN_DAYS_MIN, "maximum": RETAIN_DAYS_MAX})
class RetainedDaysField(serializers.IntegerField):
    """Days, whose range ``jobs`` checks."""


class RetentionRequest(StrictSerializer):
    retain_days = RetainedDaysField(
        allow_null=True,
        help_text="Days after which data sets and results that nobody used are deleted; null: "
        "never.",
    )


class ConsentRequest(StrictSerializer):
    uses_donors = serializers.BooleanField(
        help_text="Whether your jobs may begin with adapters that others give."
    )
    gives_adapters = serializers.BooleanField(
        help_text="Whether jobs of others may begin with your adapters, for a royalty."
    )


class DatasetConsentRequest(StrictSerializer):
    uses_donors = serializers.BooleanField(
        allow_null=True,
        help_text="Whether jobs on it may begin with adapters of others; null: as your "
        "organisation.",
    )
    gives_adapters = serializers.BooleanField(
        allow_null=True,
        help_text="Whether jobs of others may begin with its adapters; null: as your organisation.",
    )


class AdapterConsentRequest(StrictSerializer):
    is_given = serializers.BooleanField(
        allow_null=True,
        help_text="Whether jobs of others may begin with it; null: as its data set.",
    )


class RoleRequest(StrictSerializer):
    role = serializers.ChoiceField(Role.values, help_text="What the member may do from now on.")


class InvitationRequest(RoleRequest):
    email = FormedText(
        EMAIL, max_length=254, help_text="A mail with the address that accepts goes there."
    )


@extend_schema_field({"type": "string", "enum": sorted({*EVENT_TYPES, *NOTICE_KINDS})})
class EventField(serializers.CharField):
    """A type of event; which of them a form has, ``webhooks`` checks."""


def _allow_events(events: Iterable[str]) -> dict[str, Any]:
    return {"properties": {"events": {"items": {"enum": sorted(events)}}}}


class WebhookRequest(StrictSerializer):
    # Chat rooms get sentences, of other events than programs get.
    schema_rules = {
        "if": {
            "properties": {"form": {"not": {"const": MessageForm.STANDARD.value}}},
            "required": ["form"],
        },
        "then": _allow_events(NOTICE_KINDS),
        "else": _allow_events(EVENT_TYPES),
    }

    url = FormedText(HTTPS_URL, max_length=500, help_text="An https address that is public.")
    form = serializers.ChoiceField(
        MessageForm.values,
        default=MessageForm.STANDARD,
        help_text="slack, teams: sentences for an incoming webhook of a channel, of these events: "
        + ", ".join(NOTICE_KINDS),
    )
    events = serializers.ListField(
        child=EventField(max_length=60),
        min_length=1,
        max_length=50,
        help_text="Types such as job.succeeded, job.failed, fine_tuning.job.succeeded.",
    )


class WandbKeyRequest(StrictSerializer):
    key = FormedText(
        f"^{TRACKERS[TrackingService.WANDB].key_pattern}$",
        max_length=200,
        help_text="Stored encrypted, never shown again.",
    )


class MlflowKeyRequest(StrictSerializer):
    address = FormedText(
        HTTPS_ROOT,
        max_length=ADDRESS_CHARS,
        help_text="Your tracking server: an https address that is public, without /api.",
    )
    key = FormedText(
        f"^{TRACKERS[TrackingService.MLFLOW].key_pattern}$",
        max_length=200,
        required=False,
        default="",
        allow_blank=True,
        help_text="A token, or NAME:PASSWORD; empty for a server without sign-in. Stored "
        "encrypted, never shown again.",
    )
