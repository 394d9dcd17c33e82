"""``/v1/models``: base models of open zones, and the organisation's own adapters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.answers import Answer, AsStored
from marketplace.api.callers import get_caller
from marketplace.api.models import FineTuningRequest
from marketplace.api.openai import schemas
from marketplace.api.openai.job_serializers import find_suffix
from marketplace.api.openai.names import find_model, name_tuned_model
from marketplace.api.openai.schemas import always, list_of
from marketplace.api.openai.views import OpenAiView
from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import list_open_zones
from marketplace.jobs.models import Job
from marketplace.jobs.selectors import list_continuable_jobs
from marketplace.jobs.services import delete_adapter

#: Adapters in the list, the newest; each can be asked for by its name.
TUNED_SHOWN = 1000


class ModelSerializer(AsStored):
    id = s.CharField()
    object = always("model")
    created = s.IntegerField()
    owned_by = s.CharField()
    parent = s.CharField(help_text="The base model.")
    job_id = s.CharField(required=False)


class ModelsView(OpenAiView):
    scopes = {"GET": "jobs:read"}

    @extend_schema(
        operation_id="list_models",
        responses={
            200: list_of(ModelSerializer, "ListModelsResponse", is_paged=False),
            **schemas.ERRORS,
        },
    )
    def get(self, request: Request) -> Response:
        jobs = list_continuable_jobs(get_caller(request).organisation)
        tuned = list(jobs.select_related("zone", "organisation")[:TUNED_SHOWN])
        data = [_show_base(zone) for zone in list_open_zones()] + _show_tuned(tuned)
        return Response({"object": "list", "data": data})


class DeleteModelResponseSerializer(Answer):
    id = s.CharField(source="*")
    object = always("model")
    deleted = s.BooleanField()

    def get_deleted(self, _model: str) -> bool:
        return True


class ModelView(OpenAiView):
    scopes = {"GET": "jobs:read", "DELETE": "jobs:write"}

    @extend_schema(
        operation_id="retrieve_model", responses={200: ModelSerializer, **schemas.ERRORS}
    )
    def get(self, request: Request, model: str) -> Response:
        found = find_model(model, organisation=get_caller(request).organisation)
        if found.job is None:
            return Response(_show_base(found.zone))
        return Response(_show_tuned([found.job])[0])

    @extend_schema(
        operation_id="delete_model",
        responses={200: DeleteModelResponseSerializer, 400: schemas.ERROR},
    )
    def delete(self, request: Request, model: str) -> Response:
        """The adapter goes; its job and what it cost stay."""
        who = get_caller(request)
        job = find_model(model, organisation=who.organisation).job
        if job is None:
            raise UserError(
                "unsupported_operation", "A base model is not yours to delete.", param="model"
            )
        delete_adapter(job=job, asked_by=who.user, now=clock.now())
        return Response(DeleteModelResponseSerializer.show(model))


def _show_base(zone: Zone) -> dict[str, Any]:
    return {
        "id": zone.name,
        "object": "model",
        "created": int(zone.created_at.timestamp()),
        "owned_by": "finetender",
        "parent": zone.base_model_name,
    }


def _show_tuned(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    requests = FineTuningRequest.objects.in_bulk([job.bid_id for job in jobs])
    return [
        {
            "id": name_tuned_model(job, suffix=find_suffix(job, requests.get(job.bid_id))),
            "object": "model",
            "created": None if job.finished_at is None else int(job.finished_at.timestamp()),
            "owned_by": job.organisation_id,
            "parent": job.zone.name,
            "job_id": job.pk,
        }
        for job in jobs
    ]
