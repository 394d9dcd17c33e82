"""What OpenAI's clients may ask for with files and jobs; what OpenAI ignores is ignored too."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

from drf_spectacular.drainage import set_override
from drf_spectacular.utils import PolymorphicProxySerializer, extend_schema_field
from rest_framework import serializers

from marketplace.api.market.fields import (
    DEADLINE_SCHEMA,
    DeadlineField,
    MetadataField,
    PriceField,
    StrictSerializer,
)
from marketplace.api.market.requests import JobSettingsField, PreparationField, VerifiedOnlyField
from marketplace.jobs.services.parts import PARTS_MAX

FINE_TUNE, RESULTS = "fine-tune", "fine-tune-results"
SUPERVISED, DPO = "supervised", "dpo"
METHODS = (SUPERVISED, DPO, "reinforcement")
AUTO = "auto"
INTEGRATIONS_MAX = 5


@extend_schema_field({"type": "string", "enum": [FINE_TUNE]})
class PurposeField(serializers.CharField):
    """What a file is for; another purpose is refused in OpenAI's words."""


class FileRequest(serializers.Serializer[Any]):
    file = serializers.FileField(
        allow_empty_file=True, help_text="JSON lines of conversations or preferences."
    )
    purpose = PurposeField(max_length=40, help_text="fine-tune.")


class PartedUploadRequest(serializers.Serializer[Any]):
    filename = serializers.CharField(max_length=255, help_text="Name of the file.")
    purpose = PurposeField(max_length=40, help_text="fine-tune.")
    bytes = serializers.IntegerField(
        min_value=1, help_text="Size of the whole file in bytes; a market takes files up to a size."
    )
    mime_type = serializers.CharField(
        max_length=200, help_text="Its media type; the content decides, not this."
    )


class PartRequest(serializers.Serializer[Any]):
    def get_fields(self) -> dict[str, serializers.Field]:
        # As a member of the class it would hide the serializer's own ``data``.
        return {"data": serializers.FileField(help_text="The bytes of the part.")}


class UploadCompletion(serializers.Serializer[Any]):
    part_ids = serializers.ListField(
        child=serializers.CharField(max_length=60),
        min_length=1,
        max_length=PARTS_MAX,
        help_text="Ids of the parts in the order of the file.",
    )
    md5 = serializers.RegexField(
        r"^[0-9a-fA-F]{32}$",
        required=False,
        allow_null=True,
        help_text="MD5 of the whole file in hexadecimal digits; it is compared where it is given.",
    )
    faulty_lines = serializers.ChoiceField(
        ["refuse", "leave_out"],
        required=False,
        default="refuse",
        help_text="Of lines that are no rows. A member of this market's own.",
    )
    long_rows = serializers.ChoiceField(
        ["refuse", "cut", "leave_out"],
        required=False,
        default="cut",
        help_text="Of rows longer than the zone's model takes. A member of this market's own.",
    )
    zone = serializers.CharField(
        max_length=40,
        required=False,
        help_text="Zone whose tokenizer counts the tokens. A member of this market's own.",
    )


class NumberOrAuto(serializers.Field):
    """A number of a range, or ``auto``."""

    def __init__(self, *, low: float, high: float, is_whole: bool = False, **options: Any) -> None:
        super().__init__(required=False, allow_null=True, **options)
        self._low, self._high, self._is_whole = low, high, is_whole
        kind = "integer" if is_whole else "number"
        number = {"type": kind, "minimum": low, "maximum": high}
        words = {"type": "string", "enum": [AUTO]}
        set_override(self, "field", {"anyOf": [words, number, {"type": "null"}]})

    def to_internal_value(self, data: Any) -> float | str:
        if data == AUTO:
            return AUTO
        if self._is_whole and isinstance(data, float) and data.is_integer():
            data = int(data)  # JSON knows one kind of numbers
        kinds = int if self._is_whole else (int, float)
        is_number = isinstance(data, kinds) and not isinstance(data, bool)
        if not is_number or not math.isfinite(data) or not self._low <= data <= self._high:
            kind = "a whole number" if self._is_whole else "a number"
            raise serializers.ValidationError(
                f"Give {kind} from {self._low:g} to {self._high:g}, or 'auto'."
            )
        return data

    def to_representation(self, value: Any) -> Any:
        return value


class Hyperparameters(serializers.Serializer[Any]):
    batch_size = NumberOrAuto(
        low=1, high=256, is_whole=True, help_text="Rows of a step, 1 to 256, or auto."
    )
    learning_rate_multiplier = NumberOrAuto(
        low=1e-6,
        high=1e6,
        help_text="Times the learning rate that the market would choose, or auto.",
    )
    n_epochs = NumberOrAuto(
        low=1, high=50, is_whole=True, help_text="Times that all rows are read, 1 to 50, or auto."
    )
    beta = NumberOrAuto(
        low=1e-6, high=2, help_text="How far DPO may go from the base model, up to 2, or auto."
    )


class MethodSettings(serializers.Serializer[Any]):
    hyperparameters = Hyperparameters(
        required=False, allow_null=True, help_text="Settings of the method."
    )


class Method(serializers.Serializer[Any]):
    type = serializers.ChoiceField(
        METHODS, help_text="supervised or dpo; reinforcement is refused."
    )
    supervised = MethodSettings(
        required=False, allow_null=True, help_text="Settings where the type is supervised."
    )
    dpo = MethodSettings(
        required=False, allow_null=True, help_text="Settings where the type is dpo."
    )


class WandbSettings(serializers.Serializer[Any]):
    project = serializers.CharField(max_length=200, help_text="Project that the run belongs to.")
    name = serializers.CharField(
        max_length=200,
        required=False,
        allow_null=True,
        help_text="Name of the run; without it, the job's.",
    )
    entity = serializers.CharField(
        max_length=200,
        required=False,
        allow_null=True,
        help_text="Team or user of the project; without it, the key's own.",
    )
    tags = serializers.ListField(
        child=serializers.CharField(max_length=200),
        required=False,
        max_length=50,
        help_text="Tags of the run.",
    )


class MlflowSettings(serializers.Serializer[Any]):
    experiment = serializers.CharField(
        max_length=200, help_text="Experiment that the run belongs to; made where there is none."
    )
    name = serializers.CharField(
        max_length=200,
        required=False,
        allow_null=True,
        help_text="Name of the run; without it, the job's.",
    )
    tags = serializers.ListField(
        # MLflow takes no others.
        child=serializers.RegexField(r"^[A-Za-z0-9_-][A-Za-z0-9_ .:-]*$", max_length=200),
        required=False,
        max_length=50,
        help_text="Tags of the run; each has the value true.",
    )


class WandbIntegration(serializers.Serializer[Any]):
    type = serializers.ChoiceField(["wandb"], help_text="wandb.")
    wandb = WandbSettings(
        help_text="Where measurements of the job go; your organisation's key sends them."
    )


class MlflowIntegration(serializers.Serializer[Any]):
    type = serializers.ChoiceField(["mlflow"], help_text="mlflow.")
    mlflow = MlflowSettings(
        help_text="Where measurements of the job go; your organisation's server takes them."
    )


_INTEGRATIONS: Mapping[str, type[serializers.Serializer[Any]]] = {
    "wandb": WandbIntegration,
    "mlflow": MlflowIntegration,
}


@extend_schema_field(
    PolymorphicProxySerializer("Integration", _INTEGRATIONS, resource_type_field_name="type")
)
class IntegrationField(serializers.Field[Any, Any, Any, Any]):
    """A service that measurements go to, and how the run is called there."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        kind = cast("dict[str, Any]", data).get("type") if isinstance(data, dict) else None
        if not isinstance(kind, str) or kind not in _INTEGRATIONS:
            raise serializers.ValidationError(f"type: Give one of {', '.join(_INTEGRATIONS)}.")
        given = _INTEGRATIONS[kind](data=data)
        given.is_valid(raise_exception=True)
        return cast("dict[str, Any]", given.validated_data)


class CurrencyField(serializers.ChoiceField):
    """A currency in letters of either case."""

    def to_internal_value(self, data: Any) -> Any:
        return super().to_internal_value(data.lower() if isinstance(data, str) else data)


@extend_schema_field(DEADLINE_SCHEMA)
class DeadlineText(serializers.CharField):
    """A deadline, which ``parse_deadline`` reads once the zone is known."""


class BidTerms(StrictSerializer):
    """The bid, as ``extra_body={"bid": {...}}`` gives it; a misspelt member is refused."""

    max_price = PriceField(required=False, help_text="The most the job is worth, in dollars.")
    currency = CurrencyField(["usd"], required=False, default="usd", help_text="usd.")
    deadline = DeadlineText(
        max_length=60,
        required=False,
        help_text="A moment such as 2026-11-21T06:00:00Z, or a time from now such as 6h or 90m. "
        "Without it, the latest deadline on sale.",
    )
    adapter = JobSettingsField("adapter")
    training = JobSettingsField("training")
    preparation = PreparationField()
    verified_only = VerifiedOnlyField()


class ResumeTerms(StrictSerializer):
    """The bid for the rest of a paused job."""

    max_price = PriceField(
        required=False,
        help_text="The most the rest is worth, in dollars. Without it, what the first bid leaves.",
    )
    deadline = DeadlineField(
        required=False,
        help_text="When it is to be done: a moment, or a time from now. Without it, the paused "
        "job's; once that has passed, the latest on sale.",
    )


class FineTuningResumeRequest(serializers.Serializer[Any]):
    bid = ResumeTerms(required=False, allow_null=True, help_text="What is bid for the rest.")


class FineTuningJobRequest(serializers.Serializer[Any]):
    model = serializers.CharField(
        max_length=400,
        help_text="A zone's name, its base model, or an adapter of yours to continue.",
    )
    training_file = serializers.CharField(max_length=60, help_text="Id of the file to train on.")
    validation_file = serializers.CharField(
        max_length=60,
        required=False,
        allow_null=True,
        help_text="Id of a file whose rows are held out; without it, a share of the others.",
    )
    suffix = serializers.RegexField(
        r"^[^:\u0000-\u001f\u007f-\u009f]*[^:\s\u0000-\u001f\u007f-\u009f][^:\u0000-\u001f\u007f-\u009f]*$",
        max_length=64,
        required=False,
        allow_null=True,
        help_text="Part of the adapter's name.",
    )
    seed = serializers.IntegerField(
        min_value=0,
        max_value=2**31 - 1,
        required=False,
        allow_null=True,
        help_text="Seed of the order of rows and of the first weights.",
    )
    metadata = MetadataField(
        required=False,
        allow_null=True,
        help_text="Up to 16 pairs of texts of your own; bid_max_price and bid_deadline are a bid.",
    )
    integrations = serializers.ListField(
        child=IntegrationField(),
        required=False,
        allow_null=True,
        max_length=INTEGRATIONS_MAX,
        help_text="Where measurements of the job are sent.",
    )
    method = Method(
        required=False,
        allow_null=True,
        help_text="How it is trained; without it, as the file's rows ask for.",
    )
    hyperparameters = Hyperparameters(
        required=False,
        allow_null=True,
        help_text="The same as those of the method, which count first.",
    )
    bid = BidTerms(
        required=False, allow_null=True, help_text="What the job is worth to you, and by when."
    )
