"""How a node comes to be listed: a one-time token, a self-test, credentials of its own."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import transaction

from marketplace.accounts.models import User
from marketplace.common.errors import Conflict, NotAllowed, UserError
from marketplace.fleet import locks, selectors
from marketplace.fleet.asks import check_ask, check_availability
from marketplace.fleet.models import (
    GONE,
    Ask,
    GpuType,
    JoinToken,
    Node,
    NodeStatus,
    Provider,
    Tier,
    Zone,
)
from marketplace.fleet.providers import check_may_list
from marketplace.fleet.secrets import (
    create_join_secret,
    derive_node_token,
    hash_secret,
    hash_user,
)
from marketplace.fleet.self_test import (
    check_facts,
    compute_memory_for_sale,
    find_self_test_speed,
    select_work_measurements,
)
from marketplace.fleet.work_costs import fit_work_costs
from workers.protocol.messages import (
    BaseModelRef,
    JoinReply,
    JoinRequest,
    NodeFacts,
    SpeedMeasurement,
    WorkCosts,
)
from workers.protocol.wire import to_json

JOIN_TOKEN_LIFE = timedelta(hours=24)


def create_join_token(
    *,
    zone: Zone,
    provider: Provider,
    created_by: User | None,
    ask_micros: int,
    now: datetime,
    tier: str = Tier.MARKETPLACE,
    available_from_at: datetime | None = None,
    available_until_at: datetime | None = None,
    life: timedelta = JOIN_TOKEN_LIFE,
    node: Node | None = None,
) -> tuple[JoinToken, str]:
    """A token for one node, and its secret, which is not kept.

    With ``node`` the token lets that node join again, for new credentials or a new self-test.

    Raises
    ------
    NotAllowed
        ``provider_not_approved``, ``provider_suspended`` or ``not_your_node``.
    UserError
        For an ask, times or a tier that cannot be.
    """
    check_may_list(provider)
    check_ask(ask_micros)
    check_availability(available_from_at, available_until_at, now)
    if tier not in Tier.values:
        raise UserError("invalid_tier", f"A tier is one of {', '.join(Tier.values)}.", param="tier")
    if node is not None and (node.provider_id, node.zone_id) != (provider.pk, zone.pk):
        raise NotAllowed("not_your_node", "This node is listed by someone else or elsewhere.")
    secret = create_join_secret()
    token = JoinToken.objects.create(
        zone=zone,
        provider=provider,
        created_by=created_by,
        secret_hash=hash_secret(secret),
        tier=tier,
        ask_micros=ask_micros,
        available_from_at=available_from_at,
        available_until_at=available_until_at,
        created_at=now,
        expires_at=now + life,
        node=node,
    )
    return token, secret


def list_join_models(*, token: str, now: datetime) -> tuple[BaseModelRef, ...]:
    """The base models that the holder of a join token must load and measure."""
    tokens = JoinToken.objects.select_related("zone", "provider__organisation")
    found = tokens.filter(secret_hash=hash_secret(token)).first()
    return (selectors.build_base_model_ref(_check_usable(found, now).zone),)


def join_node(*, request: JoinRequest, now: datetime) -> JoinReply:
    """List the node that holds a join token, or repeat the answer to its lost first try.

    Raises
    ------
    NotAllowed
        ``unknown_join_token``, ``join_token_expired``, ``join_token_revoked`` or
        ``provider_suspended``.
    Conflict
        ``join_token_used`` by another machine, or ``node_name_taken``.
    UserError
        ``invalid_node``: the self-test lacks something or names something impossible.
    """
    with transaction.atomic():
        token = _check_usable(locks.lock_join_token(hash_secret(request.token)), now)
        used_by = hash_user(name=request.name, hostname=request.facts.hostname)
        if token.used_at is None:
            node = _list_node(token=token, request=request, now=now)
            token.node = node
            token.used_at = now
            token.used_by_hash = used_by
            token.save(update_fields=["node", "used_at", "used_by_hash"])
        elif token.used_by_hash == used_by and token.node is not None:
            node = token.node
        else:
            raise Conflict(
                "join_token_used",
                "This join token was used by another node. Create one token for each node.",
            )
    return _build_join_reply(node, token.zone, request.token)


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
    measured = check_facts(zone, request.name, facts)
    _pin_base_model(zone, measured)
    gpu_type, _ = GpuType.objects.get_or_create(name=facts.gpu_type, defaults={"created_at": now})
    speed = find_self_test_speed(zone, measured, _ensure_work_costs(zone, facts))
    node = (
        token.node
        or _find_same_machine(token, request, now)
        or Node(zone=zone, provider=token.provider, name=request.name, joined_at=now)
    )
    if token.node is None:
        node.tier = token.tier
        node.ask_micros = token.ask_micros
        node.available_from_at = token.available_from_at
        node.available_until_at = token.available_until_at
    node.gpu_type = gpu_type
    node.self_test_speed = speed
    node.measured_speeds = []
    node.compute_capacity = speed * zone.slot_s
    node.memory_gb = compute_memory_for_sale(zone, facts, measured)
    # Joining again ends no suspension.
    node.status = NodeStatus.JOINING if node.suspended_at is None else NodeStatus.SUSPENDED
    node.faults_in_row = 0
    node.left_at = None
    node.last_heartbeat_at = now
    node.api_token_hash = hash_secret(derive_node_token(join_secret=request.token, node_id=node.pk))
    node.api_token_set_at = now
    node.old_api_token_hash = ""
    node.plan_session = ""
    node.facts = to_json(facts)
    node.save()
    latest = Ask.objects.filter(node=node).order_by("-set_at", "-pk").first()
    if latest is None or latest.ask_micros != node.ask_micros:
        Ask.objects.create(
            node=node, ask_micros=node.ask_micros, set_by=token.created_by, set_at=now
        )
    return node


def _pin_base_model(zone: Zone, measured: Sequence[SpeedMeasurement]) -> None:
    """The zone's base model is what its first node has, to the last bit.

    Raises
    ------
    Conflict
        ``other_base_model``: this node has another one, so that no job could move to it.
    """
    found = measured[0].base_sha256
    if not found:
        return
    if not zone.base_model_sha256:
        locked = locks.lock_zone(zone.pk)
        if not locked.base_model_sha256:
            locked.base_model_sha256 = found
            locked.save(update_fields=["base_model_sha256"])
        zone.base_model_sha256 = locked.base_model_sha256
    if found != zone.base_model_sha256:
        raise Conflict(
            "other_base_model",
            f"This machine's {zone.base_model_name} has other files than the zone's nodes have. "
            "Download it again, in the revision that the zone names.",
        )


def _ensure_work_costs(zone: Zone, facts: NodeFacts) -> WorkCosts:
    """The zone's costs of work, set for good by its first node."""
    measured = select_work_measurements(zone, facts)
    if not zone.work_costs:
        locked = locks.lock_zone(zone.pk)
        if not locked.work_costs:
            locked.work_costs = to_json(fit_work_costs(selectors.get_work_costs(locked), measured))
            locked.save(update_fields=["work_costs"])
        zone.work_costs = locked.work_costs
    return selectors.get_work_costs(zone)


def _find_same_machine(token: JoinToken, request: JoinRequest, now: datetime) -> Node | None:
    """The provider's node of that name, when this is it again and not another beside it.

    Call while holding the provider.

    Raises
    ------
    Conflict
        ``node_name_taken``: that node is elsewhere and alive.
    """
    found = Node.objects.filter(provider=token.provider, name=request.name).first()
    if found is None:
        return None
    node = locks.lock_node(found.pk)
    alive = node.status not in GONE and not selectors.is_node_silent(node, now)
    elsewhere = node.facts.get("hostname") != request.facts.hostname
    if node.zone_id != token.zone_id or (alive and elsewhere):
        raise Conflict(
            "node_name_taken",
            f"You have a node named {request.name!r} already. Choose another name.",
            param="name",
        )
    return node


def _build_join_reply(node: Node, zone: Zone, join_secret: str) -> JoinReply:
    return JoinReply(
        node_id=node.pk,
        api_token=derive_node_token(join_secret=join_secret, node_id=node.pk),
        heartbeat_every_s=zone.heartbeat_every_s,
        base_models=(selectors.build_base_model_ref(zone),),
    )
