"""What providers may ask of the market's API."""

from __future__ import annotations

from rest_framework import serializers

from marketplace.api.market.fields import AskField, MomentField, StrictSerializer, TimeOfDayField
from marketplace.fleet.joining import NODES_PER_TOKEN
from marketplace.fleet.models import Tier

_ASK = "What you ask for one whole slot of a node, in dollars; it may be nothing."


class AskRequest(StrictSerializer):
    ask = AskField(help_text=f"{_ASK} Slots that are sold keep theirs.")


class HoursRequest(StrictSerializer):
    """What changes; members that are left out stay as they are."""

    opens = TimeOfDayField(
        required=False,
        allow_null=True,
        help_text="From when it is sold each day, UTC; null, with closes: all day.",
    )
    closes = TimeOfDayField(
        required=False,
        allow_null=True,
        help_text="Until when. A time before opens is on the next day.",
    )
    maintenance_from_at = MomentField(
        required=False, allow_null=True, help_text="Nothing is sold from then on; null: no pause."
    )
    maintenance_until_at = MomentField(
        required=False, allow_null=True, help_text="Until then; within 90 days."
    )


class JoinTokenRequest(StrictSerializer):
    # Hours have a beginning and an end, and nodes that share a GPU have hours.
    schema_rules = {
        "if": {"properties": {"opens": {"type": "string"}}, "required": ["opens"]},
        "then": {"properties": {"closes": {"type": "string"}}, "required": ["closes"]},
        "else": {"properties": {"closes": {"type": "null"}, "is_shared": {"enum": [False]}}},
    }

    zone = serializers.CharField(max_length=40, help_text="Name of the zone, see /api/zones.")
    ask = AskField(help_text=_ASK)
    nodes = serializers.IntegerField(
        min_value=1,
        max_value=NODES_PER_TOKEN,
        required=False,
        default=1,
        help_text="GPUs of the machine; each becomes a node of its own, for the same ask.",
    )
    tier = serializers.ChoiceField(
        Tier.values,
        required=False,
        default=Tier.MARKETPLACE.value,
        help_text="What kind of machine it is.",
    )
    opens = TimeOfDayField(
        required=False,
        allow_null=True,
        help_text="From when it is sold each day, UTC; without it, all day.",
    )
    closes = TimeOfDayField(
        required=False,
        allow_null=True,
        help_text="Until when. A time before opens is on the next day.",
    )
    available_until = MomentField(
        required=False,
        allow_null=True,
        help_text="It is on sale until then; null: until you drain it.",
    )
    is_shared = serializers.BooleanField(
        required=False,
        default=False,
        help_text="The GPUs serve another zone at other hours: the commands join beside the node "
        "that is there. It needs opens and closes.",
    )
