"""How the API shows a provider its nodes, join tokens and rates."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from rest_framework import serializers as s

from marketplace.api.answers import (
    GIVEN,
    Answer,
    ConstantText,
    Moment,
    NullText,
    TimeOfDay,
    Usd,
)
from marketplace.auction.node_rates import NodeRates, RateBlock, RateState
from marketplace.fleet.device_timeslices import Rest, find_rest
from marketplace.fleet.join_progress import TOKEN_STATUSES, TokenStatus
from marketplace.fleet.models import ABSENT, JoinToken, Node, NodeStatus, Tier
from marketplace.fleet.sale_hours import SaleHours, read_sale_hours
from marketplace.fleet.selectors import AskBand, find_present_status

_OPENS = "From when it is sold each day, UTC; null: all day."
_CLOSES = "Until when it is sold each day, UTC; before opens, it is on the next day."


class PresentNode(NamedTuple):
    """A node as it stands at a moment."""

    node: Node
    status: str
    rest: Rest | None
    hours: SaleHours


class OwnNodeSerializer(Answer):
    id = s.CharField(source="node.id")
    object = ConstantText("node")
    name = s.CharField(source="node.name")
    zone = s.CharField(source="node.zone.name")
    gpu_type = s.CharField(source="node.gpu_type_id", help_text="Kind of GPU.")
    tier = s.ChoiceField(Tier.values, source="node.tier", help_text="What kind of machine it is.")
    memory_gb = s.FloatField(source="node.memory_gb", help_text="Memory of the GPU, in GB.")
    units_per_slot = s.FloatField(
        source="node.compute_capacity", help_text="Work units that it is sold as in a slot."
    )
    ask = Usd(source="node.ask_micros", help_text="What you ask for a slot.")
    status = s.ChoiceField(NodeStatus.values, help_text="Whether it works, rests or is away.")
    opens = TimeOfDay(source="hours.opens", allow_null=True, help_text=_OPENS)
    closes = TimeOfDay(source="hours.closes", allow_null=True, help_text=_CLOSES)
    maintenance_from_at = Moment(
        source="hours.maintenance_from_at",
        allow_null=True,
        help_text="Nothing is sold from then on; null: no maintenance is planned.",
    )
    maintenance_until_at = Moment(
        source="hours.maintenance_until_at", allow_null=True, help_text="When maintenance ends."
    )
    available_from = Moment(
        source="node.available_from_at",
        allow_null=True,
        help_text="It is on sale from then on; null: from now on.",
    )
    available_until = Moment(
        source="node.available_until_at",
        allow_null=True,
        help_text="It is on sale until then; null: without end.",
    )
    shared_gpu = s.CharField(
        allow_null=True,
        help_text="Nodes with the same value take turns on a GPU, each in its hours.",
    )
    rests_until = Moment(
        source="rest.until_at",
        allow_null=True,
        help_text="Of a node that rests: when its hours begin.",
    )
    gpu_serves = s.CharField(
        source="rest.zone_name",
        allow_null=True,
        help_text="Of a node that rests: the zone that its GPU serves.",
    )
    drained_at = Moment(
        source="node.drained_at",
        allow_null=True,
        help_text="Since then nothing more of it is sold; null: it is not drained.",
    )
    withdrawn_at = Moment(
        source="node.leave_asked_at",
        allow_null=True,
        help_text="Since then it is to leave once what was sold is served.",
    )
    left_at = Moment(source="node.left_at", allow_null=True, help_text="When it left.")
    suspended_at = Moment(
        source="node.suspended_at",
        allow_null=True,
        help_text="Since then the market trusts it with no job; only its operator lifts that.",
    )
    suspended_reason = NullText(source="node.suspended_reason", help_text="Why, in words.")
    last_heartbeat_at = Moment(
        source="node.last_heartbeat_at",
        allow_null=True,
        help_text="When it was last heard of; null: never.",
    )
    joined_at = Moment(source="node.joined_at", help_text="When it joined.")

    def get_shared_gpu(self, present: PresentNode) -> str | None:
        device_id = present.node.shared_device_id
        return f"gpu_{device_id}" if device_id else None


def show_nodes(nodes: Sequence[Node], *, now: datetime) -> list[dict[str, Any]]:
    """Each node as it stands; their zones are read."""
    return OwnNodeSerializer.show_each(
        PresentNode(
            node,
            node.status if node.status in ABSENT else find_present_status(node, now),
            find_rest(node, now=now),
            read_sale_hours(node, now=now),
        )
        for node in nodes
    )


class PresentToken(NamedTuple):
    """A join token as it stands at a moment."""

    token: JoinToken
    status: TokenStatus


class JoinTokenSerializer(Answer):
    id = s.CharField(source="token.id")
    object = ConstantText("join_token")
    zone = s.CharField(source="token.zone.name")
    ask = Usd(source="token.ask_micros", help_text="What its nodes are listed for, a slot.")
    tier = s.ChoiceField(Tier.values, source="token.tier", help_text="What kind of machine it is.")
    status = s.ChoiceField(
        TOKEN_STATUSES, help_text="open: a machine may join with it; otherwise why not."
    )
    uses_left = s.IntegerField(
        source="token.uses_left", help_text="Nodes that it may still list, while it is open."
    )
    opens = TimeOfDay(source="token.sale_opens", allow_null=True, help_text=_OPENS)
    closes = TimeOfDay(source="token.sale_closes", allow_null=True, help_text=_CLOSES)
    available_until = Moment(
        source="token.available_until_at",
        allow_null=True,
        help_text="Its nodes are on sale until then; null: without end.",
    )
    created_at = Moment(source="token.created_at")
    expires_at = Moment(
        source="token.expires_at", help_text="Until then a machine may join with it."
    )
    revoked_at = Moment(
        source="token.revoked_at", allow_null=True, help_text="When it was revoked; null: never."
    )


class InstallWaySerializer(Answer):
    title = s.CharField(help_text="What they need.")
    lines = s.CharField(help_text="Commands for a shell; the secret is in them.")


class JoinTokenWithSecretSerializer(JoinTokenSerializer):
    secret = s.CharField(source=GIVEN, help_text="Shown once: ftjoin_…")
    commands = InstallWaySerializer(
        many=True, source=GIVEN, help_text="What to run on the machine, one of them."
    )


class JoinStepSerializer(Answer):
    step = s.CharField(source="label", help_text="What is done.")
    state = s.ChoiceField(
        ["done", "now", "failed", "ahead"], help_text="How far it is with the step."
    )
    detail = NullText(help_text="What it found, or why it failed.")
    share = s.FloatField(allow_null=True, help_text="Of a step under way, where it is counted.")


class JoiningMachineSerializer(Answer):
    name = s.CharField(help_text="Name of the node.")
    steps = JoinStepSerializer(many=True, help_text="In their order.")


class JoinProgressSerializer(JoinTokenSerializer):
    machines = JoiningMachineSerializer(
        many=True, source=GIVEN, help_text="Nodes that join with it, or did."
    )


class RateBlockSerializer(Answer):
    starts_at = Moment(help_text="When it begins.")
    ends_at = Moment(help_text="When it ends.")
    day_ahead = Usd(source="day_ahead_micros", help_text="What was posted for a slot, a day ahead.")
    in_force = Usd(
        source="in_force_micros",
        allow_null=True,
        help_text="The least that is paid now for a slot on sale; null: none is on sale.",
    )
    state = s.ChoiceField(
        [state.name.lower() for state in RateState],
        help_text="on_sale, partly; ask_above_rate: your ask is above the posted rate; lowered: "
        "the last prices went below your ask; not_offered: not in its hours.",
    )

    def get_state(self, block: RateBlock) -> str:
        return block.state.name.lower()


class PostedRates(NamedTuple):
    """The rates of a node, where any are posted, and what others ask."""

    node: Node
    rates: NodeRates | None
    others: AskBand | None


class NodeRatesSerializer(Answer):
    object = ConstantText("node.rates")
    node_id = s.CharField(source="node.pk")
    ask = Usd(
        source="rates.ask_micros",
        allow_null=True,
        help_text="Your ask that these rates were posted by; null: none are posted.",
    )
    floor = Usd(
        source="rates.floor_micros",
        allow_null=True,
        help_text="No later price is lower. An ask at it sells in every block.",
    )
    others_low = Usd(
        source="others.low",
        allow_null=True,
        help_text="Nine in ten ask at least that for the same GPU; null: too few providers do.",
    )
    others_high = Usd(
        source="others.high", allow_null=True, help_text="Nine in ten ask at most that."
    )
    blocks = RateBlockSerializer(many=True, help_text="Blocks of the day, the next one first.")

    def get_blocks(self, posted: PostedRates) -> Sequence[RateBlock]:
        return () if posted.rates is None else posted.rates.blocks
