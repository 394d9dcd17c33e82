"""Zones, the providers in them, and their nodes."""

from __future__ import annotations

import pgtrigger
from django.conf import settings
from django.db import models
from django.db.models import F, Q

from marketplace.common.models import IdField


class Tier(models.TextChoices):
    SERVERLESS = "serverless", "Serverless"
    MARKETPLACE = "marketplace", "Marketplace"
    CONVENTIONAL = "conventional", "Conventional"


class NodeStatus(models.TextChoices):
    #: Not rented yet: its cells are on sale from ``boot_s`` ahead on, and the market rents the
    #: machine when one of them is sold.
    OFFERED = "offered", "Offered"
    #: Joined, never heard of since.
    JOINING = "joining", "Joining"
    ONLINE = "online", "Online"
    #: Outside its hours of sale, while its device serves another node's zone; its machine is heard.
    RESTING = "resting", "Resting"
    #: Silent for longer than a few heartbeats.
    OFFLINE = "offline", "Offline"
    #: Not sold any more; what was sold is still served.
    DRAINING = "draining", "Draining"
    #: Its process is being stopped and hands over what it runs; it may come back.
    STOPPING = "stopping", "Stopping"
    #: Failed several jobs in a row, or the operator wants it so; only an operator ends it.
    SUSPENDED = "suspended", "Suspended"
    LEFT = "left", "Left"


#: Nodes whose free cells may be sold.
ON_SALE = (NodeStatus.OFFERED, NodeStatus.ONLINE, NodeStatus.RESTING)
#: No machine of a provider: not rented yet, or away for good.
ABSENT = (NodeStatus.OFFERED, NodeStatus.LEFT)
#: Nodes that run nothing: what is leased to them is taken back.
GONE = (NodeStatus.OFFLINE, NodeStatus.SUSPENDED, NodeStatus.LEFT)
#: Nodes to which nothing is leased at present.
NOT_RUNNING = (*GONE, NodeStatus.STOPPING, NodeStatus.RESTING)


class GpuType(models.Model):
    """Nodes of one GPU type promise a job the same rate."""

    #: Such as ``A100-80GB`` or ``cpu``, as the node's self-test names it.
    name = models.CharField(primary_key=True, max_length=64)
    created_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.name


class Provider(models.Model):
    """An organisation that lists nodes and is paid for them, or asks to be let."""

    id = IdField(prefix="prv")
    organisation = models.OneToOneField(
        "accounts.Organisation", on_delete=models.PROTECT, related_name="provider"
    )
    created_at = models.DateTimeField()
    #: Until then it may list nothing: a node sees the data of the jobs it trains.
    approved_at = models.DateTimeField(null=True, blank=True)
    #: The operator who approved it; none where providers need no approval.
    approved_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    #: Since when an operator vouches for it: owners may ask for verified providers only, and its
    #: word alone counts in a spot check.
    verified_at = models.DateTimeField(null=True, blank=True)
    #: Since when an operator lets it list and sell nothing.
    suspended_at = models.DateTimeField(null=True, blank=True)
    suspended_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    #: In words, for the provider.
    suspended_reason = models.CharField(max_length=300, blank=True, default="")

    organisation_id: str

    def __str__(self) -> str:
        return str(self.organisation)


class Zone(models.Model):
    """One auction: one base model and the nodes that keep it resident."""

    id = IdField(prefix="zone")
    name = models.SlugField(max_length=40, unique=True)
    base_model_name = models.CharField(max_length=128)
    #: ``bundled:<name>``, a directory, or a Hugging Face hub id.
    base_model_source = models.CharField(max_length=512)
    base_model_revision = models.CharField(max_length=128, null=True, blank=True)
    #: Of the base model's files: those bundled, or what the first node has. Nodes check it.
    base_model_sha256 = models.CharField(max_length=64, default="", blank=True)
    #: Where ``tokenizer.json`` is, as ``base_model_source`` says a place; empty: with the model.
    tokenizer_source = models.CharField(max_length=512, default="", blank=True)
    dtype = models.CharField(max_length=16, default="auto")
    four_bit = models.BooleanField(default=False)
    #: ``ModelShape`` as JSON; what memory is computed from.
    model_shape = models.JSONField()
    slot_s = models.PositiveIntegerField()
    horizon_slots = models.PositiveIntegerField()
    #: Start of slot 0.
    epoch_at = models.DateTimeField()
    #: The resident base model's share of each node's memory.
    base_memory_gb = models.FloatField()
    #: Parameters of the price policy, by name; ``policy_settings`` says which there are.
    settings = models.JSONField(default=dict, blank=True)
    max_sequence_length = models.PositiveIntegerField()
    #: ``WorkCosts`` as JSON, from the first node's self-test; empty: from the model's shape. All
    #: work, capacities and prices of the zone are in these units, so they never change once a bid
    #: was placed.
    work_costs = models.JSONField(default=dict, blank=True)
    #: Tokens of a row that shows what usual jobs cost.
    reference_sequence_length = models.PositiveIntegerField()
    #: Jobs a node is sold to at once; each gets that share of the speed measured so.
    jobs_per_node = models.PositiveIntegerField(default=4)
    #: Seconds between checkpoints: the work a dead node loses.
    checkpoint_every_s = models.FloatField(default=60.0)
    #: Seconds a lease outlives the slot it was given for.
    lease_grace_s = models.FloatField(default=30.0)
    heartbeat_every_s = models.FloatField(default=10.0)
    is_open = models.BooleanField(default=True)
    #: Days after which results of its jobs are deleted, and data sets counted for it; null: never.
    retain_days = models.PositiveIntegerField(null=True, blank=True)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(slot_s__gt=0, horizon_slots__gt=0, jobs_per_node__gt=0),
                name="fleet_zone_counts_positive",
            ),
            models.CheckConstraint(
                condition=Q(reference_sequence_length__gt=0)
                & Q(reference_sequence_length__lte=F("max_sequence_length")),
                name="fleet_zone_reference_within_model",
            ),
            models.CheckConstraint(
                condition=Q(
                    base_memory_gb__gt=0,
                    checkpoint_every_s__gt=0,
                    lease_grace_s__gt=0,
                    heartbeat_every_s__gt=0,
                ),
                name="fleet_zone_measures_positive",
            ),
        ]

    def __str__(self) -> str:
        return self.name


class ZoneChange(models.Model):
    """Parameters of a zone's prices as somebody set them, and what they were. Append-only."""

    zone = models.ForeignKey(Zone, on_delete=models.PROTECT, related_name="changes")
    before = models.JSONField()
    after = models.JSONField()
    #: Null: by a command on the machine.
    set_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, related_name="+"
    )
    reason = models.CharField(max_length=300, blank=True)
    set_at = models.DateTimeField()

    zone_id: str

    class Meta:
        triggers = [
            pgtrigger.Protect(name="append_only", operation=pgtrigger.Update | pgtrigger.Delete)
        ]

    def __str__(self) -> str:
        return f"{self.zone_id} at {self.set_at}"


class SharedDevice(models.Model):
    """A GPU whose nodes serve a zone each, in turn: at one time the process of one of them runs.

    Its provider's row is locked while hours of its nodes change, so that they stay apart. That they
    do not overlap is a constraint of the database, too (``fleet_node_hours_apart``, migration 17).
    """

    provider = models.ForeignKey(Provider, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"gpu_{self.pk}"


class Node(models.Model):
    """A machine that runs jobs of one zone."""

    id = IdField(prefix="node")
    zone = models.ForeignKey(Zone, on_delete=models.PROTECT, related_name="nodes")
    provider = models.ForeignKey(Provider, on_delete=models.PROTECT, related_name="nodes")
    name = models.CharField(max_length=64)
    gpu_type = models.ForeignKey(GpuType, on_delete=models.PROTECT, related_name="nodes")
    tier = models.CharField(max_length=16, choices=Tier.choices, default=Tier.MARKETPLACE)
    #: C_kp: work units per slot, from ``fleet.speeds.estimate_speed``.
    compute_capacity = models.FloatField()
    #: Work units a second that the last self-test found.
    self_test_speed = models.FloatField(default=1.0)
    #: Work units a second of the whole node that its jobs did since, the latest last.
    measured_speeds = models.JSONField(default=list, blank=True)
    #: C_km: the zone's GB for the base model and the node's for jobs, without its pack's.
    memory_gb = models.FloatField()
    #: For one whole slot of the node.
    ask_micros = models.BigIntegerField()
    status = models.CharField(max_length=12, choices=NodeStatus.choices, default=NodeStatus.JOINING)
    available_from_at = models.DateTimeField(null=True, blank=True)
    available_until_at = models.DateTimeField(null=True, blank=True)
    #: Of a machine that is offered: seconds from its sale until it can run.
    boot_s = models.FloatField(default=0.0)
    #: Of one that was sold before it was rented: when its machine was started.
    rented_at = models.DateTimeField(null=True, blank=True)
    #: Hours of the day, UTC, in which it is sold; by them and by maintenance, ``sale_hours`` sets
    #: the window above.
    sale_opens = models.TimeField(null=True, blank=True)
    sale_closes = models.TimeField(null=True, blank=True)
    maintenance_from_at = models.DateTimeField(null=True, blank=True)
    maintenance_until_at = models.DateTimeField(null=True, blank=True)
    #: The end of the window before there were hours.
    offered_until_at = models.DateTimeField(null=True, blank=True)
    #: What it takes turns on with other nodes; null: it has its device to itself.
    shared_device = models.ForeignKey(
        SharedDevice, on_delete=models.PROTECT, null=True, blank=True, related_name="nodes"
    )
    #: The longest that its base model took to load since it joined, in seconds.
    load_s = models.FloatField(default=0.0)
    last_heartbeat_at = models.DateTimeField(null=True)
    #: When its provider was told that it is silent, at last.
    silence_told_at = models.DateTimeField(null=True, editable=False)
    memory_used_gb = models.FloatField(null=True)
    #: Slices that failed by the market's fault since the last checkpoint or adapter.
    faults_in_row = models.PositiveIntegerField(default=0)
    #: SHA-256 of the node's bearer token.
    api_token_hash = models.CharField(max_length=64, unique=True)
    api_token_set_at = models.DateTimeField(null=True)
    #: Of the token before it; empty where there is none.
    old_api_token_hash = models.CharField(max_length=64, default="", blank=True, db_index=True)
    #: Null until the newer token was used: its answer may have been lost.
    old_api_token_until_at = models.DateTimeField(null=True)
    #: The process of the node that gets its plans.
    plan_session = models.CharField(max_length=64, default="", blank=True)
    #: ``NodeFacts`` of the last self-test.
    facts = models.JSONField()
    joined_at = models.DateTimeField()
    #: Since when its provider sells nothing more of it, whether it is heard or silent.
    drained_at = models.DateTimeField(null=True, blank=True)
    #: Since when the market trusts it with no job; its provider cannot change that.
    suspended_at = models.DateTimeField(null=True, blank=True)
    #: The operator who suspended it; null where the market did so by itself.
    suspended_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    #: In words, for the provider.
    suspended_reason = models.CharField(max_length=300, blank=True, default="")
    #: When its provider asked to take it away: it goes once what was sold is served.
    leave_asked_at = models.DateTimeField(null=True, blank=True)
    left_at = models.DateTimeField(null=True)

    zone_id: str
    provider_id: str
    gpu_type_id: str
    shared_device_id: int | None

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["provider", "name"], name="fleet_node_name_once"),
            models.CheckConstraint(
                condition=Q(shared_device__isnull=True)
                | Q(sale_opens__isnull=False)
                | Q(status=NodeStatus.LEFT),
                name="fleet_node_shares_in_hours",
            ),
            models.CheckConstraint(
                condition=Q(
                    compute_capacity__gt=0,
                    self_test_speed__gt=0,
                    memory_gb__gt=0,
                    ask_micros__gte=0,
                ),
                name="fleet_node_measures_positive",
            ),
            models.CheckConstraint(
                condition=Q(available_until_at__isnull=True)
                | Q(available_from_at__isnull=True)
                | Q(available_until_at__gt=F("available_from_at")),
                name="fleet_node_availability_ordered",
            ),
        ]
        indexes = [
            models.Index(fields=["zone", "status"], name="fleet_node_of_zone"),
        ]

    def __str__(self) -> str:
        return self.name


class Ask(models.Model):
    """What a node asked, and since when. Append-only: a cell keeps the ask it was sold at."""

    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="asks")
    ask_micros = models.BigIntegerField()
    set_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, related_name="+"
    )
    set_at = models.DateTimeField()

    node_id: str

    class Meta:
        indexes = [models.Index(fields=["node", "-set_at", "-id"], name="fleet_ask_history")]

    def __str__(self) -> str:
        return f"{self.node_id} {self.ask_micros}"


class JoinToken(models.Model):
    """A right to list one node, or each GPU of one machine, with the terms they are listed on."""

    id = IdField(prefix="join")
    zone = models.ForeignKey(Zone, on_delete=models.PROTECT, related_name="+")
    provider = models.ForeignKey(Provider, on_delete=models.PROTECT, related_name="join_tokens")
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, related_name="+"
    )
    #: SHA-256 of the secret; the secret itself is shown once.
    secret_hash = models.CharField(max_length=64, unique=True)
    tier = models.CharField(max_length=16, choices=Tier.choices)
    ask_micros = models.BigIntegerField()
    available_from_at = models.DateTimeField(null=True, blank=True)
    available_until_at = models.DateTimeField(null=True, blank=True)
    #: As of ``Node``; null: it is sold all day, or in the hours that it has.
    sale_opens = models.TimeField(null=True, blank=True)
    sale_closes = models.TimeField(null=True, blank=True)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    #: Set when created to let a known node join again, else the first one that it listed.
    node = models.ForeignKey(
        Node, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    #: When it first listed a node.
    used_at = models.DateTimeField(null=True)
    #: Nodes that it may still list.
    uses_left = models.PositiveSmallIntegerField(default=1)
    #: How far the machine is: by the node's name and the step, what ``JoinStepReport`` says.
    progress = models.JSONField(default=dict)
    #: From then on it lists nothing, and its answer is not repeated.
    revoked_at = models.DateTimeField(null=True, blank=True)

    zone_id: str
    provider_id: str
    node_id: str | None

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(used_at__isnull=True) | Q(node__isnull=False),
                name="fleet_join_token_used_has_node",
            ),
            models.CheckConstraint(
                condition=Q(ask_micros__gte=0), name="fleet_join_token_ask_not_negative"
            ),
        ]

    def __str__(self) -> str:
        return self.id


class JoinUse(models.Model):
    """A node that a join token listed."""

    token = models.ForeignKey(JoinToken, on_delete=models.CASCADE, related_name="uses")
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="+")
    #: SHA-256 of the name and host that used it: a retry must come from there.
    used_by_hash = models.CharField(max_length=64)

    node_id: str

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["token", "used_by_hash"], name="fleet_join_use_once")
        ]

    def __str__(self) -> str:
        return self.node_id
