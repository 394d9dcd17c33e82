"""What OpenAI's clients may ask for; members that OpenAI ignores are ignored here too."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from marketplace.api.market.fields import MetadataField, PriceField, StrictSerializer
from marketplace.api.market.requests import JobSettingsField, PreparationField, VerifiedOnlyField
from marketplace.common.errors import UserError
from marketplace.jobs.services.parts import PARTS_MAX
from workers.protocol.generation import STOP_CHARS_MAX, STOPS_MAX, TOP_TOKENS_MAX

FINE_TUNE, RESULTS = "fine-tune", "fine-tune-results"
SUPERVISED, DPO = "supervised", "dpo"
METHODS = (SUPERVISED, DPO, "reinforcement")
AUTO = "auto"
INTEGRATIONS_MAX = 5


class FileRequest(serializers.Serializer[Any]):
    file = serializers.FileField(allow_empty_file=True)
    purpose = serializers.CharField(max_length=40)


class PartedUploadRequest(serializers.Serializer[Any]):
    filename = serializers.CharField(max_length=255)
    purpose = serializers.CharField(max_length=40)
    bytes = serializers.IntegerField(min_value=1)
    mime_type = serializers.CharField(max_length=200)


class PartRequest(serializers.Serializer[Any]):
    def get_fields(self) -> dict[str, serializers.Field]:
        # As a member of the class it would hide the serializer's own ``data``.
        return {"data": serializers.FileField()}


class UploadCompletion(serializers.Serializer[Any]):
    part_ids = serializers.ListField(
        child=serializers.CharField(max_length=60), min_length=1, max_length=PARTS_MAX
    )
    md5 = serializers.RegexField(r"^[0-9a-fA-F]{32}$", required=False, allow_null=True)


class NumberOrAuto(serializers.Field):
    """A number of a range, or ``auto``."""

    def __init__(self, *, low: float, high: float, is_whole: bool = False, **options: Any) -> None:
        super().__init__(required=False, allow_null=True, **options)
        self._low, self._high, self._is_whole = low, high, is_whole

    def to_internal_value(self, data: Any) -> float | str:
        if data == AUTO:
            return AUTO
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


_WHOLE = extend_schema_field({"oneOf": [{"type": "string"}, {"type": "integer"}]})
_NUMBER = extend_schema_field({"oneOf": [{"type": "string"}, {"type": "number"}]})


@_WHOLE
class WholeOrAuto(NumberOrAuto):
    def __init__(self, *, low: int, high: int, **options: Any) -> None:
        super().__init__(low=low, high=high, is_whole=True, **options)


@_NUMBER
class RealOrAuto(NumberOrAuto):
    pass


class Hyperparameters(serializers.Serializer[Any]):
    batch_size = WholeOrAuto(low=1, high=256)
    learning_rate_multiplier = RealOrAuto(low=1e-6, high=1e6)
    n_epochs = WholeOrAuto(low=1, high=50)
    beta = RealOrAuto(low=1e-6, high=2)


class MethodSettings(serializers.Serializer[Any]):
    hyperparameters = Hyperparameters(required=False, allow_null=True)


class Method(serializers.Serializer[Any]):
    type = serializers.ChoiceField(METHODS)
    supervised = MethodSettings(required=False, allow_null=True)
    dpo = MethodSettings(required=False, allow_null=True)


class WandbSettings(serializers.Serializer[Any]):
    project = serializers.CharField(max_length=200)
    name = serializers.CharField(max_length=200, required=False, allow_null=True)
    entity = serializers.CharField(max_length=200, required=False, allow_null=True)
    tags = serializers.ListField(
        child=serializers.CharField(max_length=200), required=False, max_length=50
    )


class Integration(serializers.Serializer[Any]):
    type = serializers.ChoiceField(["wandb"])
    wandb = WandbSettings()


class CurrencyField(serializers.ChoiceField):
    """A currency in letters of either case."""

    def to_internal_value(self, data: Any) -> Any:
        return super().to_internal_value(data.lower() if isinstance(data, str) else data)


class BidTerms(StrictSerializer):
    """The bid, as ``extra_body={"bid": {...}}`` gives it; a misspelt member is refused."""

    max_price = PriceField(required=False, help_text="The most the job is worth, in dollars.")
    currency = CurrencyField(["usd"], required=False, default="usd")
    deadline = serializers.CharField(
        max_length=60,
        required=False,
        help_text="A moment such as 2026-11-21T06:00:00Z, or a time from now such as 6h or 90m. "
        "Without it, the latest deadline on sale.",
    )
    adapter = JobSettingsField("adapter")
    training = JobSettingsField("training")
    preparation = PreparationField()
    verified_only = VerifiedOnlyField()


class FineTuningJobRequest(serializers.Serializer[Any]):
    model = serializers.CharField(max_length=400)
    training_file = serializers.CharField(max_length=60)
    validation_file = serializers.CharField(max_length=60, required=False, allow_null=True)
    suffix = serializers.RegexField(
        re.compile(r"[^\x00-\x1f:]{1,64}"), max_length=64, required=False, allow_null=True
    )
    seed = serializers.IntegerField(
        min_value=0, max_value=2**31 - 1, required=False, allow_null=True
    )
    metadata = MetadataField(required=False, allow_null=True)
    integrations = serializers.ListField(
        child=Integration(), required=False, allow_null=True, max_length=INTEGRATIONS_MAX
    )
    method = Method(required=False, allow_null=True)
    hyperparameters = Hyperparameters(required=False, allow_null=True)
    bid = BidTerms(required=False, allow_null=True)


class TextField(serializers.CharField):
    """A text that may be empty, and stays as it is."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_blank=True, trim_whitespace=False, **options)


@extend_schema_field({"oneOf": [{"type": "string"}, {"type": "array", "items": {}}]})
class ContentField(TextField):
    """A text, or a list of text parts."""

    def to_internal_value(self, data: Any) -> str:
        if isinstance(data, list):
            texts = [part.get("text") for part in data if isinstance(part, Mapping)]
            parts = [text for text in texts if isinstance(text, str)]
            if len(parts) != len(data):
                raise serializers.ValidationError("Only parts with a text are read.")
            data = "".join(parts)
        return super().to_internal_value(data)


class MessageRequest(serializers.Serializer[Any]):
    role = serializers.ChoiceField(["developer", "system", "user", "assistant"])
    content = ContentField()


@extend_schema_field(
    {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
)
class StopField(serializers.Field):
    """Texts before which an answer ends."""

    def to_internal_value(self, data: Any) -> tuple[str, ...]:
        stops = [data] if isinstance(data, str) else data
        is_good = isinstance(stops, list) and len(stops) <= STOPS_MAX
        if not is_good or not all(
            isinstance(stop, str) and 1 <= len(stop) <= STOP_CHARS_MAX and "\0" not in stop
            for stop in stops
        ):
            raise serializers.ValidationError(
                f"Give at most {STOPS_MAX} texts of 1 to {STOP_CHARS_MAX} characters."
            )
        return tuple(stops)

    def to_representation(self, value: Any) -> Any:
        return value


class StreamOptions(serializers.Serializer[Any]):
    include_usage = serializers.BooleanField(required=False, default=False)


class AnswerRequest(serializers.Serializer[Any]):
    """What questions of both kinds have in common."""

    model = serializers.CharField(max_length=400)
    temperature = serializers.FloatField(min_value=0, max_value=2, required=False, allow_null=True)
    top_p = serializers.FloatField(min_value=1e-6, max_value=1, required=False, allow_null=True)
    seed = serializers.IntegerField(
        min_value=-(2**63), max_value=2**63 - 1, required=False, allow_null=True
    )
    stop = StopField(required=False, allow_null=True)
    max_tokens = serializers.IntegerField(
        min_value=1, max_value=1_000_000, required=False, allow_null=True
    )
    stream = serializers.BooleanField(required=False, allow_null=True)
    stream_options = StreamOptions(required=False, allow_null=True)
    n = serializers.IntegerField(min_value=1, max_value=1, required=False, allow_null=True)

    #: What would change the answer, and is not done here; empty and 0 change nothing.
    refused = (
        *("tools", "functions", "response_format", "logit_bias"),
        *("frequency_penalty", "presence_penalty", "top_k", "min_p", "repetition_penalty"),
    )

    def to_internal_value(self, data: Any) -> Any:
        for name in self.refused:
            if isinstance(data, Mapping) and data.get(name) and not _is_default(name, data):
                raise UserError(
                    "unsupported_parameter", f"{name} is not done here. Leave it out.", param=name
                )
        return super().to_internal_value(data)


def _is_default(name: str, asked: Mapping[str, Any]) -> bool:
    """Whether what is asked for is what is done without it."""
    match name:
        case "tools":
            return asked.get("tool_choice") == "none"
        case "functions":
            return asked.get("function_call") == "none"
        case "response_format":
            return asked[name] == {"type": "text"}
        case "repetition_penalty":
            return asked[name] == 1
        case _:
            return False


class ChatRequest(AnswerRequest):
    messages = serializers.ListField(child=MessageRequest(), min_length=1, max_length=1000)
    max_completion_tokens = serializers.IntegerField(
        min_value=1, max_value=1_000_000, required=False, allow_null=True
    )
    logprobs = serializers.BooleanField(required=False, allow_null=True)
    top_logprobs = serializers.IntegerField(
        min_value=0, max_value=TOP_TOKENS_MAX, required=False, allow_null=True
    )


@extend_schema_field(
    {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
)
class PromptField(TextField):
    """A text, or a list of one."""

    def to_internal_value(self, data: Any) -> str:
        if isinstance(data, list) and len(data) == 1:
            data = data[0]
        return super().to_internal_value(data)


class CompletionRequest(AnswerRequest):
    prompt = PromptField()
    logprobs = serializers.IntegerField(min_value=0, max_value=5, required=False, allow_null=True)

    refused = (*AnswerRequest.refused, "suffix", "echo", "best_of")
