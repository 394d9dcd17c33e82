"""What the market and a node tell each other: plans, joining, heartbeats, and their paths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workers.protocol.job_spec import BaseModelRef, CheckpointRef, JobSpec
from workers.protocol.node_facts import NodeFacts

#: Raised when a message changes its meaning; see ``joining`` for those that are still spoken.
PROTOCOL_VERSION = 3


@dataclass(frozen=True, slots=True)
class SliceSpec:
    """One job's share of one slot on one node, held under a lease."""

    lease_token: str
    #: Unix seconds. The node stops the job then unless the lease was renewed.
    lease_expires_at: float
    job: JobSpec
    #: Optimizer step to continue from; ``None`` starts from the first step.
    resume_from: CheckpointRef | None = None


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """What a node runs in the coming slot; jobs absent from it are detached."""

    node_id: str
    slot: int
    #: Unix seconds.
    starts_at: float
    ends_at: float
    slices: tuple[SliceSpec, ...] = ()
    version: int = PROTOCOL_VERSION
    #: Of two plans for one slot the one with the higher number holds.
    revision: int = 0
    #: ``ErrandSpec`` as JSON values, each to be done once, beside the slices: a node leaves out
    #: those that it does not understand.
    errands: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class JoinModelsRequest:
    """Asks, with a join token, which base models the self-test should measure."""

    token: str
    #: The first and the last version of messages that the node speaks; 0 where it does not say.
    least_version: int = 0
    version: int = 0
    #: As in ``JoinRequest`` and its facts, so that a token that another machine has used is refused
    #: before the self-test; empty where the node does not say.
    name: str = ""
    hostname: str = ""


@dataclass(frozen=True, slots=True)
class JoinModelsReply:
    base_models: tuple[BaseModelRef, ...]
    #: Of the messages that both speak from here on.
    version: int = PROTOCOL_VERSION


@dataclass(frozen=True, slots=True)
class JoinRequest:
    token: str
    name: str
    facts: NodeFacts
    #: The API token in the machine's state directory, where there is one: proof that it is the node
    #: of that name, and not another machine under its name.
    held_token: str = ""
    #: The API token of a node on the same device, with which this one is to take turns.
    neighbour_token: str = ""


@dataclass(frozen=True, slots=True)
class JoinReply:
    """The node's own credentials; all that it does later is under its token."""

    node_id: str
    api_token: str
    heartbeat_every_s: float
    base_models: tuple[BaseModelRef, ...]
    #: Whether it takes turns on its device with other nodes.
    shares_device: bool = False
    #: The key that signs the market's heads and the node's releases, in hex.
    market_key: str = ""
    #: Of the release that the market signed last; the node installs none of a lower one.
    release_serial: int = 0


#: Jobs that a heartbeat names; a node names those first that it did not run for longest.
KEPT_JOBS_MOST = 200


@dataclass(frozen=True, slots=True)
class Heartbeat:
    node_id: str
    at: float
    #: Leases the node is working on.
    lease_tokens: tuple[str, ...] = ()
    memory_used_gb: float | None = None
    draining: bool = False
    #: Seconds from the start of the node's process until its base models were loaded.
    load_s: float = 0.0
    #: Jobs of which rows or weights are on the node's disk, at most ``KEPT_JOBS_MOST``.
    kept_jobs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    #: Leases the node must drop at once.
    revoked: tuple[str, ...] = ()
    #: The node should finish what it runs and leave.
    drain: bool = False
    #: Of the kept jobs, those that go on nowhere: the node deletes all that it has of them.
    closed_jobs: tuple[str, ...] = ()


#: HTTP paths on the market, all under the node's bearer token except the two of ``join``,
#: whose bodies hold the join token. All are POST unless they say otherwise; an error's
#: body is problem+json with ``code`` and ``detail``.
PATH_JOIN = "/internal/v1/join"
PATH_JOIN_MODELS = "/internal/v1/join/models"
PATH_HEARTBEAT = "/internal/v1/heartbeat"
PATH_PROGRESS = "/internal/v1/progress"
PATH_RESULT = "/internal/v1/result"
#: PUT, one safetensors file. Format with ``lease_token`` and ``step``.
PATH_CHECKPOINT = "/internal/v1/leases/{lease_token}/checkpoints/{step}"
#: PUT, the adapter's weights in one safetensors file. Format with ``lease_token``.
PATH_ADAPTER = "/internal/v1/leases/{lease_token}/adapter"
#: Celery task of a node; its one keyword is ``plan``, a ``SlotPlan`` as JSON value.
TASK_RUN_SLOT = "workers.run_slot"
