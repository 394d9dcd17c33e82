"""What may be asked of the market's API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, cast

from drf_spectacular.drainage import set_override
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from marketplace.api.market.fields import (
    BEAT_PATTERN,
    AskField,
    DeadlineField,
    FormedText,
    MetadataField,
    PriceField,
    StrictSerializer,
    describe_amount,
    read_beat,
    write_amount,
    write_beat,
)
from marketplace.api.market.setting_schemas import COMPONENTS, WORDS, build_setting_schemas
from marketplace.api.views import build_object
from marketplace.auction.bidding.bundles import MOST_JOBS, SWEPT
from marketplace.auction.bidding.job_request import ASKED_AS_IS
from marketplace.auction.bidding.terms import (
    NAME_LIMIT,
    NAME_PATTERN,
    PRICE_LIMIT_MICROS,
    name_settings,
)
from marketplace.common.errors import UserError
from marketplace.common.money import to_micros

DEADLINE = (
    "When it is to be done: a moment, or a time from now. A time from now that lies beyond what is "
    "on sale is cut to the latest on sale; the answer has the moment, and choices says so."
)
NAME = "A name to find it by; without one, that of its data."
#: Bids of one ``bids:batch``.
BATCH_MAX = 100


@extend_schema_field({"type": "object", "additionalProperties": {}})
class SettingsField(serializers.JSONField):
    """An object of settings; in a form it may come as JSON text."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        if isinstance(data, str):
            try:
                data = json.loads(data, object_pairs_hook=build_object)
            except (ValueError, RecursionError):
                raise serializers.ValidationError("This must be a JSON object.") from None
        if not isinstance(data, dict):
            raise serializers.ValidationError("This must be a JSON object.")
        return data


class JobSettingsField(SettingsField):
    """The settings of ``adapter`` or ``training``, by their own names."""

    def __init__(self, group: str) -> None:
        super().__init__(required=False, default=dict, help_text=WORDS[group])
        self._group = group
        set_override(self, "field", {"$ref": f"#/components/schemas/{COMPONENTS[group]}"})

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        return name_settings(self._group, super().to_internal_value(data))


@extend_schema_field({"anyOf": [{"$ref": f"#/components/schemas/{COMPONENTS['preparation']}"}]})
class PreparationField(SettingsField):
    """What a vendor is to do with the data first; ``null``: they are trained on as they are."""

    def __init__(self) -> None:
        super().__init__(
            required=False,
            allow_null=True,
            default=None,
            help_text="Have a vendor prepare the data first: {} takes the defaults; null trains on "
            "the data as they are.",
        )


class VerifiedOnlyField(serializers.BooleanField):
    """Whether a job runs on nodes of verified providers only; ``null``: as its owner has it."""

    def __init__(self) -> None:
        super().__init__(
            required=False,
            allow_null=True,
            default=None,
            help_text="Only nodes of providers that the operator has verified. Without it, as your "
            "organisation has it. It leaves fewer plans to choose from; slots cost the same.",
        )


class WorkRequest(StrictSerializer):
    """What is trained, and how: of every request that is about a job."""

    zone = serializers.CharField(max_length=40, help_text="Name of the zone, see /api/zones.")
    dataset_id = serializers.CharField(
        max_length=40,
        help_text="What it trains on: a data set, or an upload, which is waited for while it is "
        "read.",
    )
    adapter = JobSettingsField("adapter")
    training = JobSettingsField("training")
    verified_only = VerifiedOnlyField()


class TermsRequest(WorkRequest):
    """The terms that bids, quotes and bundles have in common, as ``JobRequest`` names them."""

    validation_dataset_id = serializers.CharField(
        max_length=40,
        required=False,
        allow_null=True,
        default=None,
        help_text="A data set of the same format whose rows are held out, instead of a share of "
        "the training data. Rows that stand in both are refused.",
    )
    model = serializers.CharField(
        max_length=400,
        required=False,
        default="",
        allow_blank=True,
        help_text="What to begin with: 'ft:' and the id of a job of yours whose adapter is to be "
        "continued, with ':ckpt-step-' and a step for that of a checkpoint; or that model's name "
        "in /v1/models; or, for one job, the model of a quote's warm start. 'resume:' and the id "
        "of a paused job of yours goes on with that job: its rest, with its own data and "
        "settings. Without it, the zone's base model.",
    )
    preparation = PreparationField()
    metadata = MetadataField(
        required=False,
        allow_null=True,
        default=None,
        help_text="Up to 16 pairs of texts of your own, shown with the bid and its job.",
    )


class QuoteRequest(TermsRequest):
    deadline = DeadlineField(help_text=DEADLINE)
    warm_start = serializers.BooleanField(
        required=False,
        default=False,
        help_text="Look for a warm start. While warm_start.outlook is 'asked', ask again.",
    )


class ExpressRequestBody(WorkRequest):
    name = FormedText(
        NAME_PATTERN,
        max_length=NAME_LIMIT,
        required=False,
        default="",
        allow_blank=True,
        help_text=NAME,
    )
    slo_s = serializers.FloatField(
        min_value=0.001, max_value=1e6, help_text="Seconds from now in which it is to be done."
    )


class BidRequest(TermsRequest):
    name = FormedText(
        NAME_PATTERN,
        max_length=NAME_LIMIT,
        required=False,
        default="",
        allow_blank=True,
        help_text=NAME,
    )
    price = PriceField(
        required=False,
        allow_null=True,
        help_text="The most the job is worth to you, in dollars. Who runs the market sees it. "
        "Leave it out and name a beat to be told the price first.",
    )
    beat = FormedText(
        BEAT_PATTERN,
        max_length=20,
        required=False,
        allow_null=True,
        default=None,
        help_text="In place of a price: the beat of a quote. The bid is then told its price, which "
        "you take or leave within a minute (bids/{id}/answer).",
    )
    deadline = DeadlineField(help_text=DEADLINE)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        attrs.setdefault("price", None)
        if (attrs["price"] is None) == (attrs["beat"] is None):
            raise UserError(
                "no_price",
                "Give a price, or the beat of a quote to be told the price first.",
                param="price",
            )
        return attrs

    def validate_beat(self, value: str | None) -> str | None:
        try:
            return None if value is None else write_beat(read_beat(value))
        except ValueError as error:
            raise serializers.ValidationError(str(error)) from None


class PriceAnswerRequest(StrictSerializer):
    take = serializers.BooleanField(help_text="Whether you take the price that the bid was told.")
    price = AskField(
        required=False,
        help_text="The price that you answer, in dollars; another one is refused.",
    )


@extend_schema_field({"anyOf": [{"type": "null"}]})
class NoPreparationField(SettingsField):
    """What no bundle has; an object is refused with what to do instead."""


def _describe_sweep() -> dict[str, Any]:
    """Lists of the values that each setting takes, as its own schema has it."""
    schemas = build_setting_schemas()
    values = {}
    for name in SWEPT:
        group, _, setting = name.partition(".")
        each = schemas[COMPONENTS[group]]["properties"][setting]
        items = {key: value for key, value in each.items() if key != "default"}
        values[name] = {
            "type": "array",
            "items": items,
            "minItems": 1,
            "maxItems": MOST_JOBS,
            "uniqueItems": True,
            "description": each["description"],
        }
    return {
        "type": "object",
        "properties": values,
        "additionalProperties": False,
        "minProperties": 1,
    }


@extend_schema_field(_describe_sweep())
class SweepField(SettingsField):
    """Values by setting."""


class BundleQuoteRequest(TermsRequest):
    """Jobs that differ in some settings: all combinations of the values in ``sweep``."""

    sweep = SweepField(
        help_text='Values by setting, such as {"training.seed": [1, 2], "adapter.rank": [8, 16]}; '
        "2 to 16 jobs."
    )
    deadline = DeadlineField(help_text=DEADLINE)
    preparation = NoPreparationField(
        required=False,
        allow_null=True,
        default=None,
        help_text="null: a bundle trains on its data as they are. Have them prepared with a bid "
        "for one job first, and sweep the dataset_id of that job.",
    )

    def validate_preparation(self, preparation: dict[str, Any] | None) -> None:
        if preparation is not None:
            raise serializers.ValidationError(
                "A vendor prepares data for one job. Bid for one job with the preparation first, "
                "and sweep the data set that its job trains on: GET /api/jobs/{id} names it."
            )

    def validate_sweep(self, sweep: dict[str, Any]) -> dict[str, Any]:
        if not all(isinstance(values, list) for values in sweep.values()):
            raise serializers.ValidationError("Give each setting a list of values.")
        return sweep


class BundleRequest(BundleQuoteRequest):
    name = FormedText(
        NAME_PATTERN,
        max_length=NAME_LIMIT,
        required=False,
        default="",
        allow_blank=True,
        help_text=NAME,
    )
    all_or_none = serializers.BooleanField(
        required=False,
        default=True,
        help_text="true: all jobs win or none does, and the price is the most all are worth "
        "together. false: each stands for itself, and the price is the most each is worth.",
    )
    price = PriceField(help_text="The most all jobs are worth to you, or each of them; dollars.")


@extend_schema_field({"$ref": "#/components/schemas/BidRequest"})
class OneBidField(serializers.DictField):
    """A bid of several; each is checked, and answered, by itself."""


class BatchRequest(StrictSerializer):
    bids = serializers.ListField(
        child=OneBidField(),
        min_length=1,
        max_length=BATCH_MAX,
        help_text="Bids, each as POST /api/bids takes it; they are decided in this order.",
    )


def read_asked(body: Mapping[str, Any]) -> dict[str, Any]:
    """Give the members of a checked body that are fields of a ``JobRequest``."""
    return {name: body[name] for name in ASKED_AS_IS if name in body}


def check_body(kind: type[serializers.Serializer[Any]], data: Any) -> dict[str, Any]:
    """The members of a request body, checked.

    Raises
    ------
    rest_framework.exceptions.ValidationError
        With the members that are wrong.
    """
    return dict(_reader(kind).run_validation(data))  # type: ignore[arg-type]


@cache
def _reader(kind: type[serializers.Serializer[Any]]) -> serializers.Serializer[Any]:
    """One for all requests: reading changes nothing in it, and making one is expensive."""
    return cast(serializers.Serializer[Any], kind())


class DisputeRequest(StrictSerializer):
    reason = serializers.CharField(
        max_length=1000, help_text="What is wrong, in your words; whoever decides reads it."
    )


@extend_schema_field(describe_amount(least_micros=0, most_micros=PRICE_LIMIT_MICROS))
class RefundField(PriceField):
    """What goes back, in dollars; nothing may."""

    def to_internal_value(self, data: Any) -> int:
        return to_micros(write_amount(data), param=self.field_name or "refund")


class ResumeRequest(StrictSerializer):
    price = PriceField(
        required=False,
        allow_null=True,
        help_text="The most the rest is worth to you, in dollars. Without it, what the bid for the "
        "paused job leaves: both cost no more together than was bid then.",
    )
    deadline = DeadlineField(
        required=False,
        allow_null=True,
        help_text=DEADLINE + " Without it, the paused job's; once that has passed, the latest on "
        "sale.",
    )


class CancelRequest(StrictSerializer):
    refund_at_least = RefundField(
        required=False,
        allow_null=True,
        help_text="Dollars that GET said would go back. If less does by now, the answer is 409 "
        "refund_changed with the amount, and the job goes on; refund_unknown, if prices cannot be "
        "read. Without an amount it ends in any case.",
    )
