"""The settings of a job as JSON schemas: for the OpenAPI document, the SDK and the guide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phonenumbers import SUPPORTED_REGIONS

from marketplace.api.text_patterns import NO_NUL
from marketplace.auction.bidding.terms import LORA_SETTINGS
from marketplace.vendors.models import VendorKind
from marketplace.vendors.skills import Skill
from marketplace.vendors.wishes import (
    COLUMN_CHARS_MAX,
    COLUMNS_MAX,
    GOLD_CHARS_MAX,
    GOLD_ROWS_MAX,
    GOLD_ROWS_MIN,
    INSTRUCTIONS_CHARS_MAX,
    LANGUAGES,
    PLAN_CHARS_MAX,
    REVIEW_S_MAX,
    ROLES,
    VALIDATION_SHARE_MAX,
)
from workers.protocol.job_settings import (
    ALL_LINEAR,
    INIT_TEXT_CHARS_MAX,
    LORA_FORMS,
    TARGET_CHARS_MAX,
    TARGETS_MAX,
)
from workers.protocol.job_spec import AdapterKind
from workers.protocol.setting_list import AUTO, Setting, list_settings

#: Names of the schemas among the document's components, by the member that has them.
COMPONENTS: Mapping[str, str] = {
    "adapter": "AdapterSettings",
    "training": "TrainingSettings",
    "preparation": "PreparationSettings",
}
#: What each of them says.
WORDS = {
    "adapter": "What is learnt; what is left out, the market chooses.",
    "training": "How it is learnt; what is left out, the market chooses.",
    "preparation": "What a vendor does with the data first, and who may see them for it.",
}


_IS_PROMPT = {
    "properties": {"kind": {"enum": [AdapterKind.SOFT_PROMPT.value]}},
    "required": ["kind"],
}
#: Which settings go together: those of a kind of adapter have no meaning for the other.
_TOGETHER: Mapping[str, Mapping[str, Any]] = {
    "adapter": {
        "if": _IS_PROMPT,
        "then": {
            "properties": {
                **{name: {"enum": [AUTO]} for name in LORA_SETTINGS},
                **{name: {"enum": [False, AUTO]} for name in LORA_FORMS},
            }
        },
        "else": {"properties": {"virtual_tokens": {"enum": [AUTO]}, "looks_up": {"enum": [False]}}},
    }
}


def build_setting_schemas() -> dict[str, dict[str, Any]]:
    """Build the components, by name."""
    members = {
        group: {each.name: _describe(each) for each in list_settings(group)}
        for group in ("adapter", "training")
    }
    members["preparation"] = _describe_preparation()
    return {
        name: {
            "type": "object",
            "description": WORDS[group],
            "properties": members[group],
            "additionalProperties": False,
            **_TOGETHER.get(group, {}),
        }
        for group, name in COMPONENTS.items()
    }


def add_setting_schemas(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Put the schemas that the document names among its components, as a hook."""
    schemas = result["components"]["schemas"]
    schemas |= build_setting_schemas()
    result["components"]["schemas"] = dict(sorted(schemas.items()))
    return result


def _describe(setting: Setting) -> dict[str, Any]:
    schema = _describe_value(setting)
    words = setting.words
    if setting.aliases:
        words += f" Also taken as {', '.join(f'`{alias}`' for alias in setting.aliases)}."
    if setting.default == AUTO:
        schema = {"anyOf": [schema, {"type": "string", "enum": [AUTO]}]}
    return {**schema, "default": setting.default, "description": words}


def _describe_value(setting: Setting) -> dict[str, Any]:
    if setting.choices:
        return {"type": "string", "enum": list(setting.choices)}
    if setting.kind == "names":
        name = {"type": "string", "minLength": 1, "maxLength": TARGET_CHARS_MAX}
        names = {"type": "array", "items": name, "minItems": 1, "maxItems": TARGETS_MAX}
        return {"anyOf": [names, {"type": "string", "enum": [ALL_LINEAR]}]}
    if setting.kind == "string":
        return {"type": "string", "maxLength": INIT_TEXT_CHARS_MAX}
    schema: dict[str, Any] = {"type": setting.kind}
    if setting.allowed is not None:
        low, high = setting.allowed.get_ends(on_sale=True)
        is_open = setting.allowed.excludes_high and high == setting.allowed.high
        whole = int if setting.kind == "integer" else float
        schema["minimum"] = whole(low)
        schema["exclusiveMaximum" if is_open else "maximum"] = whole(high)
    return schema


def _describe_names(values: Any, default: list[str], words: str) -> dict[str, Any]:
    items = {"type": "string", "enum": list(values)}
    return {"type": "array", "items": items, "default": default, "description": words}


_REGIONS = {
    "type": "array",
    "items": {
        "type": "string",
        "maxLength": 2,
        "pattern": f"^({'|'.join(sorted(SUPPORTED_REGIONS))})$",
    },
    "default": [],
    "description": "Regions, ISO 3166, whose phone numbers are found without a country's prefix; "
    "none are all.",
}


def _describe_vendor_work() -> dict[str, Any]:
    return {
        "skills": _describe_names(Skill.values, [], "Skills that a vendor must have."),
        "instructions": {
            "type": "string",
            "maxLength": INSTRUCTIONS_CHARS_MAX,
            "pattern": NO_NUL,
            "default": "",
            "description": "What people or an outside vendor are to do, in your words.",
        },
        "gold": {
            "type": "object",
            "additionalProperties": {"type": "string", "maxLength": GOLD_CHARS_MAX},
            "propertyNames": {"pattern": "^[1-9][0-9]{0,8}$"},
            "maxProperties": GOLD_ROWS_MAX,
            "if": {"minProperties": 1},
            "then": {"minProperties": GOLD_ROWS_MIN},
            "default": {},
            "description": "Rows whose answer you know, each as JSON text, by their place in the "
            "file from 1, 5 or more. No vendor is told which they are. Fewer than 80 % right comes "
            "back once; then you may refuse it, and an operator decides.",
        },
        "review_s": {
            "type": "integer",
            "minimum": 0,
            "maximum": REVIEW_S_MAX,
            "default": 0,
            "description": "Seconds that you have to refuse a delivery; 0: the rule accepts it.",
        },
    }


def _describe_preparation() -> dict[str, Any]:
    return {
        "kinds": _describe_names(
            VendorKind.values, ["automatic"], "Kinds of vendor that may see the data."
        ),
        "roles": {
            "type": "object",
            "maxProperties": COLUMNS_MAX,
            "propertyNames": {"minLength": 1, "maxLength": COLUMN_CHARS_MAX, "pattern": NO_NUL},
            "additionalProperties": {"type": "string", "enum": list(ROLES)},
            "default": {},
            "description": "What each column of the file holds, by the column's name.",
        },
        "drop_duplicates": {
            "type": "boolean",
            "default": True,
            "description": "Leave out rows that stand there twice.",
        },
        "mask_personal_data": {
            "type": "boolean",
            "default": False,
            "description": "Replace addresses, numbers and keys by marks; names stay.",
        },
        "phone_regions": _REGIONS,
        "languages": _describe_names(LANGUAGES, [], "Languages kept, ISO 639-1; none keeps all."),
        "validation_share": {
            "type": "number",
            "minimum": 0,
            "maximum": VALIDATION_SHARE_MAX,
            "default": 0.1,
            "description": "Share of rows held out, none of which shares a prompt with the others.",
        },
        **_describe_vendor_work(),
        "plan": {
            "type": "string",
            "maxLength": PLAN_CHARS_MAX,
            "pattern": NO_NUL,
            "default": "",
            "description": "Id of the plan that you confirmed; its settings are taken over.",
        },
    }
