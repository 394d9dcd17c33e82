"""The back office for jobs: everything can be seen, nothing edited."""

from __future__ import annotations

from django.contrib import admin

from marketplace.common.back_office import OperatorsView
from marketplace.jobs.models import (
    Artifact,
    Checkpoint,
    Dataset,
    Job,
    JobEvent,
    NodePlan,
    Slice,
    Upload,
)


@admin.register(Job)
class JobAdmin(OperatorsView):
    list_display = (
        *("id", "name", "organisation", "zone", "status", "step", "total_steps"),
        *("needs_replan", "system_faults", "deadline_at", "finish_planned_at"),
    )
    list_filter = ("status", "fault", "needs_replan", "zone")
    search_fields = ("id", "bid_id", "name", "organisation__name")
    list_select_related = ("organisation", "zone")
    ordering = ("-created_at",)


@admin.register(Slice)
class SliceAdmin(OperatorsView):
    list_display = (
        *("id", "job", "node", "status", "first_slot", "last_slot"),
        *("lease_expires_at", "opened_at", "closed_at", "reason"),
    )
    list_filter = ("status", "node")
    list_select_related = ("job", "node")
    exclude = ("lease_token",)
    ordering = ("-opened_at",)


@admin.register(JobEvent)
class JobEventAdmin(OperatorsView):
    """Events that are rows; the job's page has those in files too."""

    list_display = ("at", "job", "seq", "kind", "actor", "message")
    list_filter = ("kind",)
    search_fields = ("job__id",)
    list_select_related = ("job",)
    ordering = ("-pk",)


@admin.register(Dataset)
class DatasetAdmin(OperatorsView):
    list_display = ("id", "name", "organisation", "format", "rows", "faulty", "bytes", "created_at")
    list_filter = ("format",)
    search_fields = ("id", "name", "sha256", "organisation__name")
    list_select_related = ("organisation",)
    exclude = ("file",)
    ordering = ("-created_at",)


@admin.register(Checkpoint)
class CheckpointAdmin(OperatorsView):
    list_display = ("id", "job", "step", "bytes", "valid_loss", "created_at")
    list_select_related = ("job",)
    exclude = ("file",)
    ordering = ("-created_at",)


@admin.register(Artifact)
class ArtifactAdmin(OperatorsView):
    list_display = ("id", "job", "bytes", "sha256", "created_at")
    list_select_related = ("job",)
    exclude = ("file",)
    ordering = ("-created_at",)


@admin.register(NodePlan)
class NodePlanAdmin(OperatorsView):
    list_display = ("node", "slot", "revision", "made_at", "taken_at")
    list_filter = ("node",)
    list_select_related = ("node",)
    exclude = ("plan", "lease_tokens")
    ordering = ("-pk",)


@admin.register(Upload)
class UploadAdmin(OperatorsView):
    list_display = ("id", "organisation", "name", "status", "bytes", "created_at")
    list_filter = ("status",)
    list_select_related = ("organisation",)
    ordering = ("-created_at",)
