"""How a node comes to be listed: a one-time token, a self-test, credentials of its own."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, time, timedelta

from django.db import transaction

from marketplace.accounts.models import Organisation, User
from marketplace.common.errors import Conflict, NotAllowed, UserError
from marketplace.fleet import locks, selectors
from marketplace.fleet.asks import check_ask, check_availability
from marketplace.fleet.doubts import find_impossible, find_outlier
from marketplace.fleet.first_node import ensure_work_costs, pin_base_model
from marketplace.fleet.models import (
    Ask,
    GpuType,
    JoinToken,
    JoinUse,
    Node,
    NodeStatus,
    Provider,
    Tier,
    Zone,
)
from marketplace.fleet.providers import check_may_list, ensure_provider
from marketplace.fleet.releases import agree_on_version
from marketplace.fleet.sale_hours import SaleHours, check_hours, set_joining_hours
from marketplace.fleet.secrets import create_join_secret, derive_node_token, hash_secret, hash_user
from marketplace.fleet.self_test import (
    check_facts,
    check_name,
    compute_memory_for_sale,
    find_self_test_speed,
)
from marketplace.fleet.shared_devices import check_hours_apart, find_device_for_join
from workers.protocol.joining import JoinStepReport, clean_detail, list_names
from workers.protocol.messages import JoinModelsReply, JoinModelsRequest, JoinReply, JoinRequest
from workers.protocol.node_facts import NodeFacts
from workers.protocol.wire import to_json

JOIN_TOKEN_LIFE = timedelta(hours=24)
#: GPUs of one machine that join with one token.
NODES_PER_TOKEN = 16


@dataclass(frozen=True, slots=True)
class ListingTerms:
    """What a node that joins is put on sale with."""

    #: For one slot of the whole node.
    ask_micros: int
    tier: str = Tier.MARKETPLACE
    #: ``None``: from the moment it joins, and until it leaves.
    available_from_at: datetime | None = None
    available_until_at: datetime | None = None
    #: Each day, UTC; ``None``: all day.
    opens: time | None = None
    closes: time | None = None
    #: Its GPU serves another zone at other hours.
    is_shared: bool = False

    def check(self, now: datetime) -> None:
        """Refuse terms that cannot be.

        Raises
        ------
        UserError
            ``invalid_ask``, ``invalid_availability``, ``invalid_hours`` or ``invalid_tier``.
        """
        check_ask(self.ask_micros)
        check_hours(SaleHours(self.opens, self.closes), now)
        if self.is_shared and self.opens is None:
            raise UserError("invalid_hours", "Say in which hours this node is sold.", param="opens")
        check_availability(self.available_from_at, self.available_until_at, now)
        if self.tier not in Tier.values:
            raise UserError(
                "invalid_tier", f"A tier is one of {', '.join(Tier.values)}.", param="tier"
            )


def create_join_token(
    *,
    zone: Zone,
    provider: Provider,
    created_by: User | None,
    terms: ListingTerms,
    now: datetime,
    life: timedelta = JOIN_TOKEN_LIFE,
    node: Node | None = None,
    nodes: int = 1,
) -> tuple[JoinToken, str]:
    """A token for one node, or ``nodes`` of one machine, and its secret, which is not stored.

    With ``node`` the token lets that node join again, for new credentials or a new self-test.

    Raises
    ------
    NotAllowed
        ``provider_not_approved``, ``provider_suspended`` or ``not_your_node``.
    UserError
        ``invalid_node_count``, or as ``ListingTerms.check``.
    """
    check_may_list(provider)
    terms.check(now)
    if not 1 <= nodes <= NODES_PER_TOKEN:
        raise UserError(
            "invalid_node_count",
            f"A join command lists 1 to {NODES_PER_TOKEN} GPUs of one machine.",
            param="nodes",
        )
    if node is not None and (node.provider_id, node.zone_id) != (provider.pk, zone.pk):
        raise NotAllowed("not_your_node", "This node is listed by someone else or elsewhere.")
    secret = create_join_secret()
    token = JoinToken.objects.create(
        zone=zone,
        provider=provider,
        created_by=created_by,
        secret_hash=hash_secret(secret),
        tier=terms.tier,
        ask_micros=terms.ask_micros,
        available_from_at=terms.available_from_at,
        available_until_at=terms.available_until_at,
        sale_opens=terms.opens,
        sale_closes=terms.closes,
        created_at=now,
        expires_at=now + life,
        node=node,
        uses_left=nodes,
    )
    return token, secret


def open_listing(
    *,
    organisation: Organisation,
    zone: Zone,
    created_by: User,
    terms: ListingTerms,
    nodes: int = 1,
    now: datetime,
) -> tuple[JoinToken, str]:
    """As ``create_join_token``, by somebody of the organisation that is to list the nodes.

    It becomes a provider by that, where none need be approved.
    """
    with transaction.atomic():
        return create_join_token(
            zone=zone,
            provider=ensure_provider(organisation=organisation, now=now),
            created_by=created_by,
            terms=terms,
            nodes=nodes,
            now=now,
        )


def list_join_models(*, request: JoinModelsRequest, now: datetime) -> JoinModelsReply:
    """The base models that the holder of a join token must load and measure.

    Raises
    ------
    NotAllowed
        As ``join_node``.
    Conflict
        ``version_not_spoken``: the node is of a release that this market does not speak with;
        ``join_token_used``, where the node says who it is.
    """
    tokens = JoinToken.objects.select_related("zone", "provider__organisation")
    token = _check_usable(tokens.filter(secret_hash=hash_secret(request.token)).first(), now)
    if token.uses_left == 0 and request.name and not _may_use_again(token, request):
        raise _build_used_conflict()
    version = agree_on_version(least=request.least_version, most=request.version)
    return JoinModelsReply((selectors.build_base_model_ref(token.zone),), version)


def note_join_step(*, report: JoinStepReport, now: datetime) -> None:
    """Note how far a machine is, for its provider to see.

    Raises
    ------
    NotAllowed
        As ``join_node``.
    UserError
        ``invalid_node``: its name cannot be.
    """
    check_name(report.name)
    with transaction.atomic():
        token = _check_usable(locks.lock_join_token(hash_secret(report.token)), now)
        share = report.share
        steps = token.progress.get(report.name, {}) | {
            report.step: {
                "share": None if share is None else min(1.0, max(0.0, share)),
                "detail": clean_detail(report.detail),
                "failed": report.failed,
                "at": now.isoformat(),
            }
        }
        others = [(name, row) for name, row in token.progress.items() if name != report.name]
        # Of names that were tried and given up, the latest stay.
        others.sort(key=lambda pair: max(step["at"] for step in pair[1].values()))
        token.progress = dict(others[-(NODES_PER_TOKEN - 1) :]) | {report.name: steps}
        token.save(update_fields=["progress"])


def join_node(*, request: JoinRequest, now: datetime) -> JoinReply:
    """List the node that holds a join token, or repeat the answer to its lost first try.

    Raises
    ------
    NotAllowed
        ``unknown_join_token``, ``join_token_expired``, ``join_token_revoked``,
        ``provider_suspended`` or ``unknown_neighbour``.
    Conflict
        ``join_token_used`` by another machine, ``node_name_taken``, or ``version_not_spoken``.
        Beside another node of its device also ``hours_overlap`` or ``hours_missing``.
    UserError
        ``invalid_node``: the self-test lacks something or names something impossible;
        ``invalid_hours``: it shares its device and has none.
    """
    with transaction.atomic():
        token = _check_usable(locks.lock_join_token(hash_secret(request.token)), now)
        used_by = hash_user(name=request.name, hostname=request.facts.hostname)
        use = JoinUse.objects.filter(token=token, used_by_hash=used_by).select_related("node")
        node = next((use.node for use in use), None)
        if node is None:
            if token.uses_left == 0:
                raise _build_used_conflict()
            node = _list_node(token=token, request=request, now=now)
            JoinUse.objects.create(token=token, node=node, used_by_hash=used_by)
            token.node = token.node or node
            token.used_at = token.used_at or now
            token.uses_left -= 1
            token.save(update_fields=["node", "used_at", "uses_left"])
    return _build_join_reply(node, token.zone, request.token)


def _may_use_again(token: JoinToken, request: JoinModelsRequest) -> bool:
    """Whether the node may be one whose answer was lost, perhaps under its second name."""
    users = [hash_user(name=name, hostname=request.hostname) for name in list_names(request.name)]
    return JoinUse.objects.filter(token=token, used_by_hash__in=users).exists()


def _build_used_conflict() -> Conflict:
    return Conflict(
        "join_token_used",
        "This join token was used by another node. Create one token for each machine, and say how "
        "many GPUs it has.",
    )


def _check_usable(token: JoinToken | None, now: datetime) -> JoinToken:
    if token is None:
        raise NotAllowed(
            "unknown_join_token",
            "This join token is not known. Create one in the provider console.",
        )
    if token.expires_at <= now:
        raise NotAllowed("join_token_expired", "This join token has expired. Create another one.")
    if token.revoked_at is not None:
        raise NotAllowed("join_token_revoked", "This join token was revoked. Create another one.")
    check_may_list(token.provider)
    return token


def _list_node(*, token: JoinToken, request: JoinRequest, now: datetime) -> Node:
    """The node's row, new or joined again. Call while holding the token."""
    # Two machines may take one name at once, and an operator may suspend the provider meanwhile.
    check_may_list(locks.lock_provider(token.provider_id))
    zone, facts = token.zone, request.facts
    device = find_device_for_join(
        provider=token.provider, neighbour_token=request.neighbour_token, now=now
    )
    known = token.node if token.used_at is None else None
    measured = check_facts(zone, request.name, facts)
    doubt = find_impossible(zone, facts, measured)
    # What a zone's first node settles is for nodes that nobody doubts.
    if doubt is None or zone.base_model_sha256:
        pin_base_model(zone, measured)
    costs = ensure_work_costs(zone, facts) if doubt is None else selectors.get_work_costs(zone)
    is_rented = known is not None and _is_rented_as(known, facts)
    gpu_type, _ = GpuType.objects.get_or_create(name=facts.gpu_type, defaults={"created_at": now})
    speed = find_self_test_speed(zone, measured, costs)
    node = (
        known
        or _find_same_machine(token, request)
        or Node(zone=zone, provider=token.provider, name=request.name, joined_at=now)
    )
    if known is None:
        node.tier = token.tier
        node.ask_micros = token.ask_micros
        node.available_from_at = token.available_from_at
        node.available_until_at = token.available_until_at
    set_joining_hours(node, token=token, device=device, now=now)
    doubt = doubt or find_outlier(zone, facts, measured, speed=speed, node=node)
    node.gpu_type = gpu_type
    node.self_test_speed = speed
    node.measured_speeds = []
    node.compute_capacity = speed * zone.slot_s
    node.memory_gb = compute_memory_for_sale(zone, facts, measured)
    if is_rented:
        # Its cells are sold: it may not be off sale until its first heartbeat.
        node.status, node.boot_s, node.joined_at = NodeStatus.ONLINE, 0.0, now
        node.available_until_at = None
    else:
        # Joining again ends no suspension, and who sent a self-test that can hardly be waits.
        if doubt is not None and node.suspended_at is None:
            node.suspended_at, node.suspended_reason = now, doubt
        node.status = NodeStatus.JOINING if node.suspended_at is None else NodeStatus.SUSPENDED
    node.faults_in_row = 0
    node.left_at = None
    node.last_heartbeat_at = now
    node.api_token_hash = hash_secret(derive_node_token(join_secret=request.token, node_id=node.pk))
    node.api_token_set_at = now
    node.old_api_token_hash = ""
    node.plan_session = ""
    node.load_s = max(0.0, facts.load_s)
    node.facts = to_json(facts)
    check_hours_apart(node)
    node.save()
    latest = Ask.objects.filter(node=node).order_by("-set_at", "-pk").first()
    if latest is None or latest.ask_micros != node.ask_micros:
        Ask.objects.create(
            node=node, ask_micros=node.ask_micros, set_by=token.created_by, set_at=now
        )
    return node


def _is_rented_as(node: Node, facts: NodeFacts) -> bool:
    """Whether the machine was rented as this node, whose cells were sold before.

    Raises
    ------
    Conflict
        ``other_gpu``: it is of another kind than was sold.
    """
    if node.status != NodeStatus.OFFERED:
        return False
    if facts.gpu_type != node.gpu_type_id:
        raise Conflict(
            "other_gpu",
            f"This machine has a {facts.gpu_type}, but a {node.gpu_type_id} was sold.",
        )
    return True


def _find_same_machine(token: JoinToken, request: JoinRequest) -> Node | None:
    """The provider's node of that name, when this is it again and not another under its name.

    It shows the token that the node has; one that left, or whose credentials were revoked, has
    none. Call while holding the provider.

    Raises
    ------
    Conflict
        ``node_name_taken``: the request comes from another machine or state directory.
    """
    found = Node.objects.filter(provider=token.provider, name=request.name).first()
    if found is None:
        return None
    node = locks.lock_node(found.pk)
    has_credentials = node.status != NodeStatus.LEFT and node.api_token_set_at is not None
    held = request.held_token and hash_secret(request.held_token)
    shown = held and held in (node.api_token_hash, node.old_api_token_hash)
    if node.zone_id != token.zone_id or (has_credentials and not shown):
        raise Conflict(
            "node_name_taken",
            f"You have a node named {request.name!r} already. Choose another name; or, if this is "
            "that machine, join with the state directory it had, or take the node away first.",
            param="name",
        )
    return node


def _build_join_reply(node: Node, zone: Zone, join_secret: str) -> JoinReply:
    return JoinReply(
        node_id=node.pk,
        api_token=derive_node_token(join_secret=join_secret, node_id=node.pk),
        heartbeat_every_s=zone.heartbeat_every_s,
        base_models=(selectors.build_base_model_ref(zone),),
        shares_device=node.shared_device_id is not None,
    )
