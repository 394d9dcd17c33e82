"""What may be asked of the fleet; nothing here writes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from math import ceil
from typing import Any, NamedTuple

from django.db.models import Count, Max, Q, QuerySet

from marketplace.accounts.models import Organisation
from marketplace.common.errors import NotFound
from marketplace.fleet import base_models
from marketplace.fleet.models import ABSENT, ON_SALE, JoinToken, Node, NodeStatus, Provider, Zone
from marketplace.fleet.secrets import hash_secret
from marketplace.fleet.slots import (
    first_slot_from,
    last_slot_until,
    slot_at,
    slot_ends_at,
    slot_starts_at,
)
from marketplace.fleet.speeds import NodeSpeed, compute_type_rate
from marketplace.fleet.text_encoder import TokenizerFiles
from scheduler import types as scheduler
from workers.protocol.job_spec import BaseModelRef, WorkCosts
from workers.protocol.model_shape import ModelShape, load_shape
from workers.protocol.work_costs import build_work_costs

__all__ = [
    "build_base_model_ref",
    "build_node_spec",
    "compute_silence_limit",
    "find_ask_band",
    "find_largest_room_gb",
    "find_node_by_api_token",
    "find_nodes_by_api_tokens",
    "find_provider",
    "find_zone_tokenizer",
    "first_slot_from",
    "get_model_shape",
    "get_open_zone",
    "get_own_join_token",
    "get_own_node",
    "get_work_costs",
    "get_zones_by_name",
    "is_node_silent",
    "last_slot_until",
    "list_nodes_on_sale",
    "list_online_nodes",
    "list_open_zones",
    "list_trusted_nodes",
    "list_waiting_providers",
    "load_rates",
    "slot_at",
    "slot_ends_at",
    "slot_starts_at",
]

#: Other providers of a GPU type that a band of asks takes.
BAND_PROVIDERS = 5
#: Heartbeats a node may miss before it counts as gone.
HEARTBEATS_MISSED = 3


class AskBand(NamedTuple):
    """What providers of a kind of GPU ask for a slot, in micro-dollars."""

    low: int
    high: int


def find_provider(organisation: Organisation) -> Provider | None:
    """The organisation as a provider, approved or not; ``None`` when it never asked."""
    return Provider.objects.filter(organisation=organisation).first()


def list_waiting_providers() -> QuerySet[Provider]:
    """Those who ask to list nodes, the longest waiting first."""
    waiting = Provider.objects.filter(approved_at__isnull=True)
    return waiting.select_related("organisation").order_by("created_at", "pk")


def list_providers() -> QuerySet[Provider]:
    """Everybody who may list nodes, or might but for a suspension."""
    approved = Provider.objects.select_related("organisation").exclude(approved_at=None)
    return approved.order_by("organisation__name", "pk")


def list_open_join_tokens(provider: Provider, *, now: datetime) -> QuerySet[JoinToken]:
    """Join tokens that a machine may still use, newest first."""
    unused = JoinToken.objects.filter(provider=provider, uses_left__gt=0, revoked_at=None)
    return unused.filter(expires_at__gt=now).select_related("zone").order_by("-created_at")


def get_own_node(organisation: Organisation, node_id: str) -> Node:
    """One of the nodes that an organisation lists or listed.

    Raises
    ------
    NotFound
        ``unknown_node``, whether there is none or it is somebody else's.
    """
    # PostgreSQL takes no NUL in a text, and no id has one.
    nodes = Node.objects.filter(provider__organisation=organisation)
    found = nodes.select_related("zone").filter(pk=node_id.replace("\0", "")).first()
    if found is None:
        raise NotFound("unknown_node", f"{organisation.name} lists no such node.")
    return found


def get_own_join_token(organisation: Organisation, token_id: str) -> JoinToken:
    """One of the join tokens of an organisation, open or not.

    Raises
    ------
    NotFound
        ``unknown_join_token``.
    """
    tokens = JoinToken.objects.filter(provider__organisation=organisation)
    found = tokens.select_related("zone").filter(pk=token_id.replace("\0", "")).first()
    if found is None:
        raise NotFound("unknown_join_token", "There is no such join token.")
    return found


def list_open_zones() -> QuerySet[Zone]:
    return Zone.objects.filter(is_open=True).order_by("name")


def get_zones_by_name(names: Iterable[str]) -> dict[str, Zone]:
    """Zones by name, closed ones too; unknown names are left out."""
    # PostgreSQL refuses to be asked for a text with a null byte.
    asked = [name for name in names if "\0" not in name]
    return {zone.name: zone for zone in Zone.objects.filter(name__in=asked)}


def get_open_zone(name: str) -> Zone:
    """The open zone of a name.

    Raises
    ------
    NotFound
        ``unknown_zone``, with the names there are.
    """
    zone = Zone.objects.filter(name=name, is_open=True).first()
    if zone is None:
        names = ", ".join(list_open_zones().values_list("name", flat=True)) or "none yet"
        raise NotFound(
            "unknown_zone", f"There is no zone {name!r}; there are: {names}.", param="zone"
        )
    return zone


def find_ask_band(node: Node) -> AskBand | None:
    """The middle 80 % of asks for the same GPU in the zone.

    ``None`` where so few other providers list one that it would be their asks.
    """
    alike = Node.objects.filter(zone=node.zone, gpu_type=node.gpu_type).exclude(
        status=NodeStatus.LEFT
    )
    others = alike.exclude(provider_id=node.provider_id)
    if others.values("provider").distinct().count() < BAND_PROVIDERS:
        return None
    asks = sorted(alike.values_list("ask_micros", flat=True))
    last = len(asks) - 1
    return AskBand(low=asks[round(last * 0.1)], high=asks[round(last * 0.9)])


def build_base_model_ref(zone: Zone) -> BaseModelRef:
    """What a node loads to serve the zone."""
    return BaseModelRef(
        name=zone.base_model_name,
        source=zone.base_model_source,
        revision=zone.base_model_revision or None,
        dtype=zone.dtype,
        four_bit=zone.four_bit,
        sha256=zone.base_model_sha256 or None,
    )


def list_present_nodes(organisation: Organisation) -> QuerySet[Node]:
    """A provider's nodes that have not left, by name, with their zones and kinds of GPU."""
    own = Node.objects.filter(provider__organisation=organisation).exclude(status__in=ABSENT)
    return own.select_related("zone", "gpu_type").order_by("name")


def list_node_page(
    organisation: Organisation, *, after: str, limit: int
) -> tuple[list[Node], str | None]:
    """List a provider's present nodes of names above ``after``; and where the next page begins."""
    found = list(list_present_nodes(organisation).filter(name__gt=after)[: limit + 1])
    return found[:limit], found[limit - 1].name if len(found) > limit else None


def count_present_nodes(organisation: Organisation) -> Counter[str]:
    """Count a provider's nodes that have not left, by status."""
    by_status = list_present_nodes(organisation).order_by().values_list("status")
    return Counter(dict(by_status.annotate(Count("pk"))))


def list_nodes_on_sale(zone: Zone) -> QuerySet[Node]:
    """Nodes whose free cells may be sold now; availability is each node's own."""
    return (
        Node.objects.filter(zone=zone, status__in=ON_SALE)
        .select_related("gpu_type", "provider")
        .order_by("pk")
    )


def list_online_nodes(zone: Zone) -> QuerySet[Node]:
    """Of the nodes on sale, those that run: a machine that is not rented yet answers nothing."""
    return list_nodes_on_sale(zone).filter(status=NodeStatus.ONLINE)


def list_trusted_nodes(zone: Zone, *, verified_only: bool) -> QuerySet[Node]:
    """Nodes that run and may see what an owner gives to verified providers only, or to all."""
    online = list_online_nodes(zone)
    return online.exclude(provider__verified_at=None) if verified_only else online


def count_offered_nodes(zone: Zone) -> int:
    """Machines on sale in a zone that are rented when they are sold."""
    return Node.objects.filter(zone=zone, status=NodeStatus.OFFERED).count()


def build_node_spec(zone: Zone, node: Node, *, slot: int | None = None) -> scheduler.NodeSpec:
    """The engine's value of a node; only whole slots inside its availability are sold.

    Its provider is read.

    Parameters
    ----------
    slot
        The present one, where it matters when a machine that is not rented yet can be there.
    """
    available_from = (
        None if node.available_from_at is None else first_slot_from(zone, node.available_from_at)
    )
    if node.status == NodeStatus.OFFERED and slot is not None:
        # Sold at the end of this slot, it boots from the next one's begin on.
        available_from = slot + 1 + ceil(node.boot_s / zone.slot_s)
    return scheduler.NodeSpec(
        id=node.pk,
        gpu_type=node.gpu_type_id,
        compute_capacity=node.compute_capacity,
        memory_capacity=node.memory_gb,
        ask=float(node.ask_micros),
        available_from=available_from,
        available_until=(
            None
            if node.available_until_at is None
            else last_slot_until(zone, node.available_until_at)
        ),
        is_verified=node.provider.verified_at is not None,
    )


def load_rates(zone: Zone) -> dict[str, float]:
    """Work units per slot promised to one job, by GPU type, as the nodes on sale are now.

    Types without a node on sale count for nothing; where no node is on sale at all, those that may
    come back speak.
    """
    return compute_rates(zone, load_speeds(zone))


#: Type, status, capacity, measured speeds and joining of a node.
SpeedRow = tuple[str, str, float, Sequence[Any], datetime]


def load_speeds(zone: Zone) -> list[SpeedRow]:
    """What the rates of a zone are computed from."""
    here = Node.objects.filter(zone=zone).exclude(status=NodeStatus.LEFT)
    columns = ("gpu_type_id", "status", "compute_capacity", "measured_speeds", "joined_at")
    return list(here.order_by("pk").values_list(*columns))


def compute_rates(zone: Zone, known: Sequence[SpeedRow]) -> dict[str, float]:
    """As ``load_rates``."""
    on_sale = [row for row in known if row[1] in ON_SALE]
    by_type: defaultdict[str, list[NodeSpeed]] = defaultdict(list)
    for gpu_type, _, capacity, measured, joined_at in on_sale or known:
        by_type[gpu_type].append(NodeSpeed(capacity, len(measured), joined_at))
    return {
        gpu_type: compute_type_rate(nodes, jobs_per_node=zone.jobs_per_node)
        for gpu_type, nodes in sorted(by_type.items())
    }


def get_work_costs(zone: Zone) -> WorkCosts:
    """What the zone's jobs are counted by."""
    return _find_work_costs(zone.pk, tuple(sorted(zone.work_costs.items())), get_model_shape(zone))


@lru_cache(maxsize=64)
def _find_work_costs(
    _zone_id: str, measured: tuple[tuple[str, int], ...], shape: ModelShape
) -> WorkCosts:
    return WorkCosts(**dict(measured)) if measured else build_work_costs(shape)


def find_zone_tokenizer(zone: Zone) -> TokenizerFiles:
    """The files of the tokenizer that a zone's nodes use.

    Raises
    ------
    UserError
        ``unknown_tokenizer``: they cannot be had.
    """
    source = zone.tokenizer_source or zone.base_model_source
    return base_models.find_tokenizer_files(source, zone.base_model_revision or None)


def get_model_shape(zone: Zone) -> ModelShape:
    return load_shape(zone.model_shape)


def find_largest_room_gb(zone: Zone) -> float | None:
    """GB for jobs of the node on sale that has most; ``None`` where none is on sale."""
    largest = list_nodes_on_sale(zone).aggregate(largest=Max("memory_gb"))["largest"]
    return None if largest is None else largest - zone.base_memory_gb


def find_node_by_api_token(token: str, *, now: datetime) -> Node | None:
    """The node that holds a bearer token."""
    return find_nodes_by_api_tokens([token], now=now).get(token)


def find_nodes_by_api_tokens(tokens: Iterable[str], *, now: datetime) -> dict[str, Node]:
    """The nodes that hold these bearer tokens, by token."""
    hashes = {hash_secret(token): token for token in tokens}
    nodes = Node.objects.select_related("zone", "provider").filter(
        Q(api_token_hash__in=hashes) | Q(old_api_token_hash__in=hashes)
    )
    found: dict[str, Node] = {}
    for node in nodes:
        if node.api_token_hash in hashes:
            found[hashes[node.api_token_hash]] = node
        until = node.old_api_token_until_at
        if node.old_api_token_hash in hashes and (until is None or until > now):
            found[hashes[node.old_api_token_hash]] = node
    return found


def compute_silence_limit(zone: Zone, now: datetime) -> datetime:
    """A node last heard of at or before this moment counts as gone."""
    return now - timedelta(seconds=HEARTBEATS_MISSED * zone.heartbeat_every_s)


def is_node_silent(node: Node, now: datetime) -> bool:
    """Whether a node does not answer; a machine that is not rented yet cannot."""
    if node.status == NodeStatus.OFFERED:
        return True
    heard = node.last_heartbeat_at or node.joined_at
    return heard <= compute_silence_limit(node.zone, now)


def find_present_status(node: Node, now: datetime) -> NodeStatus:
    """The status of a node that has not left, by what holds of it."""
    if node.suspended_at is not None:
        return NodeStatus.SUSPENDED
    if is_node_silent(node, now):
        return NodeStatus.OFFLINE
    if node.drained_at is not None:
        return NodeStatus.DRAINING
    return NodeStatus.RESTING if node.status == NodeStatus.RESTING else NodeStatus.ONLINE
