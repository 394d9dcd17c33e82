"""What changes the fleet."""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Q
from django.db.models.functions import Coalesce

from marketplace.accounts.models import Organisation, User
from marketplace.common.errors import Conflict, NotAllowed, UserError
from marketplace.fleet import base_models, locks, selectors
from marketplace.fleet.broker import node_broker_url
from marketplace.fleet.memory import ModelShape
from marketplace.fleet.models import (
    GONE,
    Ask,
    GpuType,
    JoinToken,
    Node,
    NodeStatus,
    Policy,
    Provider,
    Speed,
    Tier,
    Zone,
)
from marketplace.fleet.secrets import (
    join_secret_new,
    node_api_token,
    secret_hash,
    used_by_hash,
)
from marketplace.fleet.speeds import SpeedRow, observed_speed
from workers.protocol.messages import (
    PROTOCOL_VERSION,
    BaseModelRef,
    Heartbeat,
    JoinReply,
    JoinRequest,
    NodeFacts,
    SpeedMeasurement,
)
from workers.protocol.wire import to_json

#: A thousand dollars a slot: above it, a slip of the keyboard.
ASK_LIMIT_MICROS = 1_000 * 1_000_000
FAULTS_IN_ROW_MAX = 3
#: Between these a node goes by its own heartbeats.
_ITS_OWN = (NodeStatus.JOINING, NodeStatus.ONLINE, NodeStatus.STOPPING, NodeStatus.OFFLINE)
JOIN_TOKEN_LIFE = timedelta(hours=24)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def zone_ensure(
    *,
    name: str,
    base_model_name: str,
    base_model_source: str,
    slot_s: int,
    horizon_slots: int,
    epoch_at: datetime,
    base_memory_gb: float,
    max_sequence_length: int,
    now: datetime,
    model_shape: ModelShape | None = None,
    dtype: str = "auto",
    policy: str = Policy.RESIDUAL,
    policy_settings: dict[str, Any] | None = None,
    reference_sequence_length: int | None = None,
    **terms: Any,
) -> Zone:
    """The zone of that name, made if there is none; an existing one is left as it is.

    ``terms`` are further columns of ``Zone``, such as ``jobs_per_node`` or ``lease_grace_s``. The
    model's shape is read from its ``config.json`` when the model is on this machine.
    """
    existing = Zone.objects.filter(name=name).first()
    if existing is not None:
        return existing
    shape = model_shape or base_models.model_shape_read(base_model_source)
    zone, _ = Zone.objects.get_or_create(
        name=name,
        defaults={
            "base_model_name": base_model_name,
            "base_model_source": base_model_source,
            "dtype": dtype,
            "model_shape": asdict(shape),
            "slot_s": slot_s,
            "horizon_slots": horizon_slots,
            "epoch_at": epoch_at,
            "base_memory_gb": base_memory_gb,
            "policy": policy,
            "settings": policy_settings or {},
            "max_sequence_length": max_sequence_length,
            "reference_sequence_length": reference_sequence_length or max_sequence_length,
            "created_at": now,
            **terms,
        },
    )
    return zone


def provider_ensure(*, organisation: Organisation, now: datetime) -> Provider:
    """The organisation as a provider."""
    with transaction.atomic():
        provider, _ = Provider.objects.get_or_create(
            organisation=organisation, defaults={"created_at": now}
        )
        if not organisation.is_provider:
            organisation.is_provider = True
            organisation.save(update_fields=["is_provider", "updated_at"])
    return provider


def join_token_create(
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
    """
    _check_ask(ask_micros)
    _check_availability(available_from_at, available_until_at, now)
    if tier not in Tier.values:
        raise UserError("invalid_tier", f"A tier is one of {', '.join(Tier.values)}.", param="tier")
    if node is not None and (node.provider_id, node.zone_id) != (provider.pk, zone.pk):
        raise NotAllowed("not_your_node", "This node is listed by someone else or elsewhere.")
    secret = join_secret_new()
    token = JoinToken.objects.create(
        zone=zone,
        provider=provider,
        created_by=created_by,
        secret_hash=secret_hash(secret),
        tier=tier,
        ask_micros=ask_micros,
        available_from_at=available_from_at,
        available_until_at=available_until_at,
        created_at=now,
        expires_at=now + life,
        node=node,
    )
    return token, secret


def join_models(*, token: str, now: datetime) -> tuple[BaseModelRef, ...]:
    """The base models that the holder of a join token must load and measure."""
    found = JoinToken.objects.select_related("zone").filter(secret_hash=secret_hash(token)).first()
    return (selectors.base_model_ref(_usable(found, now).zone),)


def node_join(*, request: JoinRequest, now: datetime) -> JoinReply:
    """List the node that holds a join token, or repeat the answer to its lost first try.

    Raises
    ------
    NotAllowed
        ``unknown_join_token`` or ``join_token_expired``.
    Conflict
        ``join_token_used`` by another machine, or ``node_name_taken``.
    UserError
        ``invalid_node``: the self-test lacks something or names something impossible.
    """
    with transaction.atomic():
        token = _usable(locks.join_token_lock(secret_hash(request.token)), now)
        used_by = used_by_hash(name=request.name, hostname=request.facts.hostname)
        if token.used_at is not None:
            if token.used_by_hash != used_by or token.node is None:
                raise Conflict(
                    "join_token_used",
                    "This join token was used by another node. Create one token for each node.",
                )
            return _join_reply(token.node, token.zone, request.token)
        node = _node_list(token=token, request=request, now=now)
        token.node = node
        token.used_at = now
        token.used_by_hash = used_by
        token.save(update_fields=["node", "used_at", "used_by_hash"])
        return _join_reply(node, token.zone, request.token)


def node_heartbeat(*, node: Node, heartbeat: Heartbeat, now: datetime) -> Node:
    """The node is alive; one that was silent, or was being stopped, is on sale again.

    One that drains, is suspended or has left stays so: only its provider changes that.
    """
    with transaction.atomic():
        node = locks.node_lock(node.pk)
        node.last_heartbeat_at = now
        node.memory_used_gb = heartbeat.memory_used_gb
        if node.status in _ITS_OWN:
            node.status = NodeStatus.STOPPING if heartbeat.draining else NodeStatus.ONLINE
        node.save(update_fields=["last_heartbeat_at", "memory_used_gb", "status"])
    return node


def nodes_offline_sweep(*, now: datetime) -> tuple[str, ...]:
    """Mark silent nodes; one that was draining has left. Returns the ids that changed."""
    changed: list[str] = []
    for zone in Zone.objects.order_by("pk"):
        silent = (
            Node.objects.filter(zone=zone)
            .annotate(heard_at=Coalesce("last_heartbeat_at", "joined_at"))
            .filter(heard_at__lte=selectors.silent_since(zone, now))
        )
        own = Q(status__in=[NodeStatus.JOINING, NodeStatus.ONLINE, NodeStatus.STOPPING])
        draining = Q(status=NodeStatus.DRAINING)
        with transaction.atomic():
            locks.nodes_lock(silent.filter(own | draining).values_list("pk", flat=True))
            # Asked again under the lock: a heartbeat may have come in between.
            changed += silent.filter(own | draining).values_list("pk", flat=True)
            silent.filter(own).update(status=NodeStatus.OFFLINE)
            silent.filter(draining).update(status=NodeStatus.LEFT, left_at=now)
    return tuple(sorted(changed))


def node_ask_set(*, node: Node, ask_micros: int, set_by: User | None, now: datetime) -> Node:
    """A new ask for cells not yet sold; those sold keep the ask of their sale."""
    _check_ask(ask_micros)
    with transaction.atomic():
        node = locks.node_lock(node.pk)
        if node.ask_micros != ask_micros:
            node.ask_micros = ask_micros
            node.save(update_fields=["ask_micros"])
            Ask.objects.create(node=node, ask_micros=ask_micros, set_by=set_by, set_at=now)
    return node


def node_availability_set(
    *,
    node: Node,
    available_from_at: datetime | None,
    available_until_at: datetime | None,
    now: datetime,
) -> Node:
    """When cells of the node may be sold; those sold outside it are still served."""
    _check_availability(available_from_at, available_until_at, now)
    with transaction.atomic():
        node = locks.node_lock(node.pk)
        node.available_from_at = available_from_at
        node.available_until_at = available_until_at
        node.save(update_fields=["available_from_at", "available_until_at"])
    return node


def node_drain(*, node: Node, now: datetime) -> Node:
    """Sell no more of the node and let it leave when what was sold is served."""
    with transaction.atomic():
        node = locks.node_lock(node.pk)
        if node.status == NodeStatus.LEFT:
            raise Conflict("node_left", "This node has left already.")
        node.status = NodeStatus.DRAINING
        node.save(update_fields=["status"])
    return node


def node_undrain(*, node: Node, now: datetime) -> Node:
    """Put a draining or suspended node back on sale."""
    with transaction.atomic():
        node = locks.node_lock(node.pk)
        if node.status not in (NodeStatus.DRAINING, NodeStatus.SUSPENDED):
            raise Conflict(
                "node_not_draining", "Only a draining or suspended node can be put back on sale."
            )
        node.status = (
            NodeStatus.OFFLINE if selectors.node_is_silent(node, now) else NodeStatus.ONLINE
        )
        node.faults_in_row = 0
        node.save(update_fields=["status", "faults_in_row"])
    return node


def node_fault_note(*, node: Node, now: datetime) -> Node:
    """A job failed on the node through no fault of its owner; too many in a row suspend it."""
    with transaction.atomic():
        node = locks.node_lock(node.pk)
        node.faults_in_row += 1
        if node.faults_in_row >= FAULTS_IN_ROW_MAX and node.status not in GONE:
            node.status = NodeStatus.SUSPENDED
        node.save(update_fields=["faults_in_row", "status"])
    return node


def node_work_note(*, node: Node) -> None:
    """The node delivered a checkpoint or an adapter: it works."""
    Node.objects.filter(pk=node.pk, faults_in_row__gt=0).update(faults_in_row=0)


def node_leave(*, node: Node, now: datetime) -> Node:
    """The drained node is gone; doing so twice changes nothing."""
    with transaction.atomic():
        node = locks.node_lock(node.pk)
        if node.status != NodeStatus.LEFT:
            node.status = NodeStatus.LEFT
            node.left_at = now
            node.save(update_fields=["status", "left_at"])
    return node


def speed_observe(
    *,
    node: Node,
    batch_size: int,
    sequence_length: int,
    jobs: int,
    samples_per_s: float,
    now: datetime,
) -> None:
    """Let what a running job reports move its row of the speed table.

    ``samples_per_s`` is that job's own; ``jobs`` is how many the node was training.
    """
    total = samples_per_s * jobs
    if not 0 < total < float("inf"):
        return
    with transaction.atomic():
        speed, created = Speed.objects.get_or_create(
            zone_id=node.zone_id,
            gpu_type_id=node.gpu_type_id,
            batch_size=batch_size,
            sequence_length=sequence_length,
            jobs=jobs,
            defaults={"samples_per_s": total, "observations": 1, "updated_at": now},
        )
        if created:
            return
        speed = locks.speed_lock(speed.pk)
        speed.samples_per_s = observed_speed(
            current=speed.samples_per_s,
            measured=speed.measured_samples_per_s,
            observed=total,
        )
        speed.observations += 1
        speed.updated_at = now
        speed.save(update_fields=["samples_per_s", "observations", "updated_at"])


def _usable(token: JoinToken | None, now: datetime) -> JoinToken:
    if token is None:
        raise NotAllowed(
            "unknown_join_token",
            "This join token is not known. Create one in the provider console.",
        )
    if token.expires_at <= now:
        raise NotAllowed("join_token_expired", "This join token has expired. Create another one.")
    return token


def _node_list(*, token: JoinToken, request: JoinRequest, now: datetime) -> Node:
    """The node's row, new or joined again. Call while holding the token."""
    zone, facts = token.zone, request.facts
    measured = _check_facts(zone, request.name, facts)
    gpu_type, _ = GpuType.objects.get_or_create(name=facts.gpu_type, defaults={"created_at": now})
    _speeds_record(zone=zone, gpu_type=gpu_type, speeds=measured, now=now)
    capacity = selectors.reference_capacity(
        zone,
        [
            SpeedRow(row.batch_size, row.sequence_length, row.jobs, row.samples_per_s)
            for row in measured
        ],
    )
    if capacity is None:
        raise _invalid(f"The self-test measured no speed with {zone.jobs_per_node} jobs or fewer.")
    node = token.node or Node(
        zone=zone, provider=token.provider, name=request.name, joined_at=now, tier=token.tier
    )
    if not node.queue:
        node.queue = f"node.{node.pk}"
    node.gpu_type = gpu_type
    node.compute_capacity = capacity
    node.memory_gb = _memory_for_sale(zone, facts, measured)
    node.status = NodeStatus.JOINING
    node.left_at = None
    node.last_heartbeat_at = now
    node.api_token_hash = secret_hash(node_api_token(join_secret=request.token, node_id=node.pk))
    node.facts = to_json(facts)
    if token.node is None:
        node.ask_micros = token.ask_micros
        node.available_from_at = token.available_from_at
        node.available_until_at = token.available_until_at
        try:
            with transaction.atomic():
                node.save(force_insert=True)
        except IntegrityError:
            raise Conflict(
                "node_name_taken",
                f"You have a node named {request.name!r} already. Choose another name.",
                param="name",
            ) from None
        Ask.objects.create(
            node=node, ask_micros=node.ask_micros, set_by=token.created_by, set_at=now
        )
    else:
        node.save()
    return node


def _memory_for_sale(zone: Zone, facts: NodeFacts, measured: tuple[SpeedMeasurement, ...]) -> float:
    """The node's GB, less what its base model takes beyond the zone's figure."""
    excess = max(0.0, max(row.base_memory_gb for row in measured) - zone.base_memory_gb)
    memory_gb = facts.memory_gb - excess
    if memory_gb <= zone.base_memory_gb:
        raise _invalid(
            f"{facts.memory_gb:g} GB leave no room for a job beside {zone.base_model_name}, which "
            f"takes {zone.base_memory_gb + excess:g} GB. List a node with more memory."
        )
    return memory_gb


def _speeds_record(
    *,
    zone: Zone,
    gpu_type: GpuType,
    speeds: tuple[SpeedMeasurement, ...],
    now: datetime,
) -> None:
    """Add a self-test to the table: the slowest node of a type sets its promise."""
    for row in speeds:
        speed, created = Speed.objects.get_or_create(
            zone=zone,
            gpu_type=gpu_type,
            batch_size=row.batch_size,
            sequence_length=row.sequence_length,
            jobs=row.jobs,
            defaults={
                "samples_per_s": row.samples_per_s,
                "measured_samples_per_s": row.samples_per_s,
                "job_memory_gb": row.job_memory_gb,
                "base_memory_gb": row.base_memory_gb,
                "updated_at": now,
            },
        )
        if created:
            continue
        speed = locks.speed_lock(speed.pk)
        speed.samples_per_s = min(speed.samples_per_s, row.samples_per_s)
        speed.measured_samples_per_s = min(
            speed.measured_samples_per_s or row.samples_per_s, row.samples_per_s
        )
        speed.job_memory_gb = max(speed.job_memory_gb or 0.0, row.job_memory_gb)
        speed.base_memory_gb = max(speed.base_memory_gb or 0.0, row.base_memory_gb)
        speed.updated_at = now
        speed.save()


def _join_reply(node: Node, zone: Zone, join_secret: str) -> JoinReply:
    return JoinReply(
        node_id=node.pk,
        api_token=node_api_token(join_secret=join_secret, node_id=node.pk),
        broker_url=node_broker_url(),
        queue=node.queue,
        heartbeat_every_s=zone.heartbeat_every_s,
        base_models=(selectors.base_model_ref(zone),),
    )


def _check_facts(zone: Zone, name: str, facts: NodeFacts) -> tuple[SpeedMeasurement, ...]:
    """The measurements that are of this zone's model."""
    if facts.protocol_version != PROTOCOL_VERSION:
        raise _invalid(
            f"The node speaks protocol {facts.protocol_version}, the market "
            f"{PROTOCOL_VERSION}. Install the same version on both."
        )
    if not _NAME.fullmatch(name):
        raise _invalid("A node's name is 1 to 64 letters, digits, dots, dashes or underscores.")
    if not _NAME.fullmatch(facts.gpu_type):
        raise _invalid(f"{facts.gpu_type[:80]!r} does not name a GPU type.")
    if facts.memory_gb <= 0:
        raise _invalid("The self-test found no memory.")
    measured = tuple(row for row in facts.speeds if row.base_model == zone.base_model_name)
    if not measured:
        raise _invalid(f"The self-test measured no speed of {zone.base_model_name}. Run it again.")
    for row in measured:
        if min(row.batch_size, row.sequence_length, row.jobs) < 1 or row.samples_per_s <= 0:
            raise _invalid(
                "The self-test names a speed, batch, length or count that is not positive."
            )
        if max(row.batch_size, row.sequence_length, row.jobs) > 1_000_000:
            raise _invalid("The self-test names a batch, length or count beyond a million.")
        if min(row.job_memory_gb, row.base_memory_gb) < 0:
            raise _invalid("The self-test names a negative amount of memory.")
    return measured


def _check_ask(ask_micros: int) -> None:
    if not 0 <= ask_micros <= ASK_LIMIT_MICROS:
        raise UserError(
            "invalid_ask",
            f"An ask is from 0 to {ASK_LIMIT_MICROS // 1_000_000} dollars per slot.",
            param="ask",
        )


def _check_availability(from_at: datetime | None, until_at: datetime | None, now: datetime) -> None:
    if until_at is not None and until_at <= max(now, from_at or now):
        raise UserError(
            "invalid_availability",
            "The end of the availability must be in the future and after its start.",
            param="available_until_at",
        )


def _invalid(message: str) -> UserError:
    return UserError("invalid_node", message)
