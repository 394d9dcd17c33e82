"""What may be asked of the market's API about data sets."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema_field
from phonenumbers import SUPPORTED_REGIONS
from rest_framework import serializers

from marketplace.api.market.fields import StrictSerializer
from marketplace.api.market.requests import NAME, SettingsField
from marketplace.api.market.setting_schemas import COMPONENTS, build_setting_schemas
from marketplace.api.text_patterns import NOT_BLANK
from marketplace.vendors.wishes import LANGUAGES
from workers.protocol.records import COLUMNS

PREPARATION = build_setting_schemas()[COMPONENTS["preparation"]]["properties"]


class UploadRequest(StrictSerializer):
    """What becomes of rows that cannot be used as they are: nothing changes unless it is asked."""

    faulty_lines = serializers.ChoiceField(
        ["refuse", "leave_out"],
        required=False,
        default="refuse",
        help_text="Of lines that are no rows. A refusal and the data set name them.",
    )
    long_rows = serializers.ChoiceField(
        ["refuse", "cut", "leave_out"],
        required=False,
        default="refuse",
        help_text="Of rows longer than the zone's model takes. The data set counts them.",
    )


@extend_schema_field(
    {
        "type": "object",
        "propertyNames": {"enum": sorted(COLUMNS)},
        "additionalProperties": {"type": "string", "minLength": 1, "pattern": NOT_BLANK},
    }
)
class TextsField(SettingsField):
    """One text by each name."""


@extend_schema_field(PREPARATION["roles"])
class RolesField(SettingsField):
    """What columns hold, by their names."""


class DatasetUploadRequest(UploadRequest):
    file = serializers.FileField(
        allow_empty_file=True, help_text="JSON lines, one JSON list, CSV or plain text."
    )
    name = serializers.CharField(
        max_length=200, required=False, default="", allow_blank=True, help_text=NAME
    )
    zone = serializers.CharField(
        max_length=40, required=False, help_text="Zone whose tokenizer counts the tokens."
    )
    columns = TextsField(
        required=False,
        default=dict,
        help_text='Columns of a table by the names that training knows: {"prompt": "question"}.',
    )
    roles = RolesField(
        required=False,
        default=dict,
        help_text="What each key of JSON rows holds that training does not know: "
        '{"frage": "prompt", "antwort": "completion", "notiz": "left_out"}.',
    )


class PlanRequest(StrictSerializer):
    roles = RolesField(
        required=False,
        help_text='What each column of the file holds: {"frage": "prompt", "notiz": "left_out"}.',
    )
    drop_duplicates = serializers.BooleanField(
        required=False, help_text="Leave out rows that repeat earlier ones."
    )
    mask_personal_data = serializers.BooleanField(
        required=False, help_text="Replace addresses, numbers and keys by marks; names stay."
    )
    phone_regions = serializers.ListField(
        child=serializers.ChoiceField(sorted(SUPPORTED_REGIONS)),
        required=False,
        help_text="ISO 3166 codes whose phone numbers are found without a country's prefix; "
        "none are all.",
    )
    languages = serializers.ListField(
        child=serializers.ChoiceField(LANGUAGES),
        required=False,
        help_text="Languages to keep, ISO 639-1; none keeps all.",
    )
    zone = serializers.CharField(
        max_length=40, required=False, help_text="Zone to count for; the data set's own if none."
    )
