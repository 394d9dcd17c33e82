"""The types of a job's terms in the Python SDK, written from what the API takes."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any, cast

from rest_framework import serializers

from marketplace.api.market.requests import SettingsField, TermsRequest
from marketplace.auction.bidding.job_request import ASKED_AS_IS

#: Where the SDK has them.
SDK_TERMS = "frontend/sdk/finetender/terms.py"
_HEAD = '''"""The terms of a job, as the market takes them.

Written by ``manage.py settings_write`` from the market's own definitions; not edited by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

Settings = Mapping[str, Any]


'''
_KINDS: Mapping[type[serializers.Field], str] = {
    SettingsField: "Settings",
    serializers.BooleanField: "bool",
    serializers.CharField: "str",
    serializers.DictField: "Mapping[str, str]",
}


def render_sdk_terms() -> str:
    """Write the module ``finetender.terms``."""
    request = cast(serializers.Serializer[Any], TermsRequest())
    members = {name: field for name, field in request.fields.items() if name in ASKED_AS_IS}
    lines = [
        "class JobTerms(TypedDict, total=False):",
        '    """What a bid and a quote may say."""',
        "",
    ]
    for name, field in members.items():
        lines += textwrap.wrap(
            str(field.help_text), 94, initial_indent="    #: ", subsequent_indent="    #: "
        )
        lines.append(f"    {name}: {_name_kind(field)}")
    return _HEAD + "\n".join(lines) + "\n"


def _name_kind(field: serializers.Field) -> str:
    name = next(name for kind, name in _KINDS.items() if isinstance(field, kind))
    return f"{name} | None" if field.allow_null else name
