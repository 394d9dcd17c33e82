"""``/v1/models``: base models of open zones, and the organisation's own adapters."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from drf_spectacular.utils import extend_schema
from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.answers import LEFT_OUT, Answer, ConstantText, UnixTime
from marketplace.api.callers import get_caller
from marketplace.api.models import FineTuningRequest
from marketplace.api.openai import schemas
from marketplace.api.openai.job_serializers import find_suffix
from marketplace.api.openai.names import find_model, name_tuned_model
from marketplace.api.openai.schemas import list_of
from marketplace.api.openai.views import OpenAiView
from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import list_open_zones
from marketplace.jobs.selectors import list_continuable_jobs
from marketplace.jobs.services import delete_adapter
from marketplace.jobs.tuned_models import TunedModel

#: Adapters in the list, the newest; each can be asked for by its name.
TUNED_SHOWN = 1000


class _Model(NamedTuple):
    id: str
    created: datetime | None
    owned_by: str
    parent: str
    #: Of an adapter.
    job_id: Any = LEFT_OUT


class ModelSerializer(Answer):
    id = s.CharField(help_text="Name that requests take as model.")
    object = ConstantText("model")
    created = UnixTime()
    owned_by = s.CharField(help_text="Your organisation, or who the base model is from.")
    parent = s.CharField(help_text="The base model.")
    job_id = s.CharField(
        required=False, help_text="The job that made the adapter; base models have none."
    )


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
        models = [_name_base(zone) for zone in list_open_zones()]
        models += _name_tuned([TunedModel(job) for job in tuned])
        return Response({"object": "list", "data": ModelSerializer.show_each(models)})


class DeleteModelResponseSerializer(Answer):
    id = s.CharField(source="*")
    object = ConstantText("model")
    deleted = s.BooleanField(help_text="Always true.")

    def get_deleted(self, _model: str) -> bool:
        return True


class ModelView(OpenAiView):
    scopes = {"GET": "jobs:read", "DELETE": "jobs:write"}

    @extend_schema(
        operation_id="retrieve_model", responses={200: ModelSerializer, **schemas.ERRORS}
    )
    def get(self, request: Request, model: str) -> Response:
        found = find_model(model, organisation=get_caller(request).organisation)
        if found.tuned is None:
            return Response(ModelSerializer.show(_name_base(found.zone)))
        named = _name_tuned([found.tuned])[0]
        return Response(ModelSerializer.show(named))

    @extend_schema(
        operation_id="delete_model",
        responses={200: DeleteModelResponseSerializer, 400: schemas.ERROR},
    )
    def delete(self, request: Request, model: str) -> Response:
        """The adapter goes; its job and what it cost stay."""
        who = get_caller(request)
        tuned = find_model(model, organisation=who.organisation).tuned
        if tuned is None or tuned.checkpoint is not None:
            raise UserError(
                "unsupported_operation",
                "A base model is not yours to delete, and a checkpoint goes with its job.",
                param="model",
            )
        delete_adapter(job=tuned.job, asked_by=who.user, now=clock.now())
        return Response(DeleteModelResponseSerializer.show(model))


def _name_base(zone: Zone) -> _Model:
    return _Model(zone.name, zone.created_at, "finetender", zone.base_model_name)


def _name_tuned(models: Sequence[TunedModel]) -> list[_Model]:
    requests = FineTuningRequest.objects.in_bulk([model.job.bid_id for model in models])
    return [_name_one(model, requests.get(model.job.bid_id)) for model in models]


def _name_one(model: TunedModel, request: FineTuningRequest | None) -> _Model:
    job, checkpoint = model.job, model.checkpoint
    return _Model(
        name_tuned_model(job, suffix=find_suffix(job, request), checkpoint=checkpoint),
        job.finished_at if checkpoint is None else checkpoint.created_at,
        job.organisation_id,
        job.zone.name,
        job.pk,
    )
