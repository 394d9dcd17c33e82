"""What a job, a lease and a job's history can be: closed lists."""

from __future__ import annotations

from django.db import models


class JobStatus(models.TextChoices):
    #: Waits for its next cell.
    QUEUED = "queued", "Queued"
    RUNNING = "running", "Running"
    #: Off one node, not yet on another.
    MOVING = "moving", "Moving"
    SUCCEEDED = "succeeded", "Succeeded"
    FAILED = "failed", "Failed"
    CANCELLED = "cancelled", "Cancelled"
    #: Its owner ended it for now: another job may go on from its last checkpoint.
    PAUSED = "paused", "Paused"


class SliceStatus(models.TextChoices):
    #: The lease is current.
    OPEN = "open", "Open"
    FINISHED = "finished", "Finished"
    PAUSED = "paused", "Paused"
    FAILED = "failed", "Failed"
    #: The node went silent or let the lease run out.
    LOST = "lost", "Lost"
    #: The market took it back: the job was cancelled or has failed.
    REVOKED = "revoked", "Revoked"


class FaultOf(models.TextChoices):
    USER = "user", "The owner's input"
    SYSTEM = "system", "The house"


class EventKind(models.TextChoices):
    """The closed list of what can happen to a job."""

    OPENED = "opened", "Opened"
    PREPARED = "prepared", "Data prepared"
    DISPUTED = "disputed", "Delivery disputed"
    START_DROPPED = "start_dropped", "Goes on without its warm start"
    STARTED = "started", "Started on a node"
    PAUSED = "paused", "Paused until its next slot"
    MOVING = "moving", "Leaving a node for another"
    NODE_LOST = "node_lost", "Node lost"
    FAULT = "fault", "Failed on a node"
    CHECKPOINTED = "checkpointed", "Checkpoint stored"
    REPLAN_WANTED = "replan_wanted", "Needs a new plan"
    REPLANNED = "replanned", "New plan"
    ADAPTER_STORED = "adapter_stored", "Adapter stored"
    SUCCEEDED = "succeeded", "Succeeded"
    FAILED = "failed", "Failed"
    CANCELLED = "cancelled", "Cancelled"
    OWNER_PAUSED = "owner_paused", "Paused by its owner"
    SETTLED = "settled", "Settled"
    REFUNDED = "refunded", "Refunded"
