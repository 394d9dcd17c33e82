"""What an owner asks of a preparation, checked."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from phonenumbers import SUPPORTED_REGIONS

from marketplace.common.errors import UserError
from marketplace.jobs.importing import ROLES
from marketplace.vendors.models import VendorKind
from marketplace.vendors.skills import Skill
from workers.protocol.job_terms import PreparationWish
from workers.protocol.record_formats import ValueRefusal, parse_row_object

#: ISO 639-1 codes that rows may be kept by.
LANGUAGES = (
    *("ar", "cs", "da", "de", "el", "en", "es", "fi", "fr", "he", "hi", "hu", "id", "it"),
    *("ja", "ko", "nl", "no", "pl", "pt", "ro", "ru", "sv", "th", "tr", "uk", "vi", "zh"),
)
COLUMNS_MAX = 64
COLUMN_CHARS_MAX = 64
PLAN_CHARS_MAX = 40
VALIDATION_SHARE_MAX = 0.5
INSTRUCTIONS_CHARS_MAX = 4_000
#: Rows with known answers, where there are any, and letters of one. One or two say nothing.
GOLD_ROWS_MIN = 5
GOLD_ROWS_MAX = 50
GOLD_CHARS_MAX = 4_000
#: Longest time that an owner may take to look at a delivery.
REVIEW_S_MAX = 7 * 24 * 3600


def parse_wish(asked: Mapping[str, Any]) -> PreparationWish:
    """Read a wish from a request or from a bid's row.

    Raises
    ------
    UserError
        ``invalid_preparation``, with the field at fault.
    """
    unknown = sorted(set(asked) - set(PreparationWish.__slots__))
    if unknown:
        known = ", ".join(PreparationWish.__slots__)
        raise _invalid(unknown[0], f"There is no setting {unknown[0]!r}; there are {known}.")
    kinds = _read_names(asked, "kinds", VendorKind.values) or PreparationWish().kinds
    share = asked.get("validation_share", PreparationWish().validation_share)
    if isinstance(share, bool) or not isinstance(share, int | float):
        raise _invalid("validation_share", "The share of held-out rows is a number.")
    if not 0 <= share <= VALIDATION_SHARE_MAX:
        raise _invalid(
            "validation_share", f"The share of held-out rows is 0 to {VALIDATION_SHARE_MAX}."
        )
    return PreparationWish(
        kinds=kinds,
        roles=_read_roles(asked),
        drop_duplicates=_read_flag(asked, "drop_duplicates", default=True),
        mask_personal_data=_read_flag(asked, "mask_personal_data", default=False),
        phone_regions=_read_regions(asked),
        languages=_read_names(asked, "languages", LANGUAGES),
        validation_share=float(share),
        skills=_read_names(asked, "skills", Skill.values),
        instructions=_read_instructions(asked),
        gold=_read_gold(asked),
        review_s=_read_review(asked),
        plan=_read_plan(asked),
    )


def _read_roles(asked: Mapping[str, Any]) -> dict[str, str]:
    value = asked.get("roles", {})
    words = f"roles name for each column of the file one of: {', '.join(ROLES)}."
    if not isinstance(value, Mapping) or len(value) > COLUMNS_MAX:
        raise _invalid("roles", words)
    roles = cast(Mapping[Any, Any], value)
    for column, role in roles.items():
        is_name = isinstance(column, str) and 1 <= len(column) <= COLUMN_CHARS_MAX
        if not is_name or role not in ROLES:
            raise _invalid("roles", words)
    return {column.strip().casefold(): role for column, role in roles.items()}


def _read_plan(asked: Mapping[str, Any]) -> str:
    value = asked.get("plan", "")
    if not isinstance(value, str) or len(value) > PLAN_CHARS_MAX or "\0" in value:
        raise _invalid("plan", "plan is the id of a plan of this data set.")
    return value


def _read_instructions(asked: Mapping[str, Any]) -> str:
    text = asked.get("instructions", "")
    if not isinstance(text, str) or len(text) > INSTRUCTIONS_CHARS_MAX or "\0" in text:
        raise _invalid(
            "instructions", f"Instructions are a text of at most {INSTRUCTIONS_CHARS_MAX:,} signs."
        )
    return text.strip()


def _read_gold(asked: Mapping[str, Any]) -> dict[str, str]:
    """Rows as JSON objects or as their text, by the row's place in the file."""
    value = asked.get("gold", {})
    words = (
        f"gold names {GOLD_ROWS_MIN} to {GOLD_ROWS_MAX} rows by their place in the file from 1, "
        f"each with the row as it should be, in at most {GOLD_CHARS_MAX:,} letters."
    )
    if not isinstance(value, Mapping):
        raise _invalid("gold", words)
    if value and not GOLD_ROWS_MIN <= len(cast(Mapping[Any, Any], value)) <= GOLD_ROWS_MAX:
        raise _invalid("gold", words)
    found: dict[str, str] = {}
    for number, row in cast(Mapping[Any, Any], value).items():
        is_number = isinstance(number, str) and re.fullmatch(r"[1-9][0-9]{0,8}", number)
        text = row if isinstance(row, str) else json.dumps(row, ensure_ascii=False)
        if not is_number or not _is_row(text) or len(text) > GOLD_CHARS_MAX:
            raise _invalid("gold", words)
        found[number] = text
    return found


def _is_row(text: str) -> bool:
    """Whether a text is a row that trains, as JSON."""
    try:
        value = json.loads(text)
        parse_row_object(value, line=1, data_format=None, max_messages=GOLD_CHARS_MAX)
    except (ValueError, RecursionError, AttributeError, TypeError, ValueRefusal):
        return False
    return isinstance(value, dict)


def _read_review(asked: Mapping[str, Any]) -> int:
    seconds = asked.get("review_s", 0)
    if isinstance(seconds, float) and seconds.is_integer():
        seconds = int(seconds)  # JSON knows one kind of numbers
    if isinstance(seconds, bool) or not isinstance(seconds, int):
        raise _invalid("review_s", "The time to look at a delivery is a whole number of seconds.")
    if not 0 <= seconds <= REVIEW_S_MAX:
        raise _invalid(
            "review_s", f"The time to look at a delivery is 0 to {REVIEW_S_MAX:,} seconds."
        )
    return seconds


def _read_flag(asked: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = asked.get(name, default)
    if not isinstance(value, bool):
        raise _invalid(name, f"{name} is true or false.")
    return value


def _read_regions(asked: Mapping[str, Any]) -> tuple[str, ...]:
    value = asked.get("phone_regions", ())
    if not isinstance(value, list | tuple) or not all(one in SUPPORTED_REGIONS for one in value):
        raise _invalid("phone_regions", "phone_regions is a list of ISO 3166 codes such as US, DE.")
    return tuple(dict.fromkeys(value))


def _read_names(asked: Mapping[str, Any], name: str, known: Sequence[str]) -> tuple[str, ...]:
    value = asked.get(name, ())
    if not isinstance(value, list | tuple) or not all(one in known for one in value):
        raise _invalid(name, f"{name} is a list of: {', '.join(known)}.")
    return tuple(dict.fromkeys(value))


def _invalid(field: str, message: str) -> UserError:
    return UserError("invalid_preparation", message, param=f"preparation.{field}")
