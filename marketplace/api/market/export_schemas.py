"""The shapes of exports and pushes for the OpenAPI document."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from drf_spectacular.utils import inline_serializer
from rest_framework import serializers as s

from marketplace.exports.models import ExportForm, ExportStatus, PushStatus


def _export_fields() -> dict[str, Any]:
    return {
        "id": s.CharField(),
        "object": s.CharField(),
        "job_id": s.CharField(),
        "form": s.ChoiceField(ExportForm.values),
        "status": s.ChoiceField(ExportStatus.values),
        "price": s.CharField(help_text="Dollars; held, and paid when the file is there."),
        "bytes": s.IntegerField(allow_null=True),
        "sha256": s.CharField(allow_null=True),
        "filename": s.CharField(),
        "failure_reason": s.CharField(allow_null=True),
        "created_at": s.DateTimeField(),
        "finished_at": s.DateTimeField(allow_null=True),
        "kept_until": s.DateTimeField(allow_null=True, help_text="The file is deleted then."),
    }


def _push_fields() -> dict[str, Any]:
    return {
        "id": s.CharField(),
        "object": s.CharField(),
        "job_id": s.CharField(),
        "export_id": s.CharField(allow_null=True),
        "repository": s.CharField(),
        "private": s.BooleanField(),
        "status": s.ChoiceField(PushStatus.values),
        "url": s.CharField(allow_null=True),
        "failure_reason": s.CharField(allow_null=True),
        "created_at": s.DateTimeField(),
        "finished_at": s.DateTimeField(allow_null=True),
    }


EXPORT = inline_serializer(name="Export", fields=_export_fields())
EXPORTS = inline_serializer(
    name="ExportPage",
    fields={
        "data": s.ListField(child=deepcopy(EXPORT)),
        "has_more": s.BooleanField(),
        "prices": s.DictField(
            child=s.CharField(allow_null=True),
            help_text="What each form costs now, in dollars; null: no node is online.",
        ),
    },
)
PUSH = inline_serializer(name="Push", fields=_push_fields())
PUSH_PAGE = inline_serializer(
    name="PushPage",
    fields={
        "data": s.ListField(child=deepcopy(PUSH)),
        "has_more": s.BooleanField(),
    },
)
LINK = inline_serializer(
    name="FileLink",
    fields={
        "object": s.CharField(),
        "job_id": s.CharField(),
        "file": s.CharField(),
        "url": s.CharField(help_text="Works without a key; fetch it with GET, in parts too."),
        "expires_at": s.DateTimeField(),
    },
)
