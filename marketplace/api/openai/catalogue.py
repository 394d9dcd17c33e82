"""``/v1/models``: base models of open zones, and the organisation's own adapters."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.api.callers import get_caller
from marketplace.api.openai import schemas
from marketplace.api.openai.job_values import serialize_tuned_models
from marketplace.api.openai.names import find_model
from marketplace.api.openai.views import OpenAiView
from marketplace.common.errors import UserError
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import list_open_zones
from marketplace.jobs.selectors import list_continuable_jobs

#: Adapters in the list, the newest; each can be asked for by its name.
TUNED_SHOWN = 1000


class ModelsView(OpenAiView):
    scopes = {"GET": "jobs:read"}

    @extend_schema(
        operation_id="list_models", responses={200: schemas.MODEL_LIST, **schemas.ERRORS}
    )
    def get(self, request: Request) -> Response:
        jobs = list_continuable_jobs(get_caller(request).organisation)
        tuned = list(jobs.select_related("zone", "organisation")[:TUNED_SHOWN])
        data = [_show_base(zone) for zone in list_open_zones()] + serialize_tuned_models(tuned)
        return Response({"object": "list", "data": data})


class ModelView(OpenAiView):
    scopes = {"GET": "jobs:read", "DELETE": "jobs:write"}

    @extend_schema(operation_id="retrieve_model", responses={200: schemas.MODEL, **schemas.ERRORS})
    def get(self, request: Request, model: str) -> Response:
        found = find_model(model, organisation=get_caller(request).organisation)
        if found.job is None:
            return Response(_show_base(found.zone))
        return Response(serialize_tuned_models([found.job])[0])

    @extend_schema(operation_id="delete_model", responses={400: schemas.ERROR})
    def delete(self, request: Request, model: str) -> Response:
        find_model(model, organisation=get_caller(request).organisation)
        raise UserError(
            "unsupported_operation",
            "A model stays with the job that made it and cannot be deleted. It costs nothing "
            "while nobody asks it.",
            param="model",
        )


def _show_base(zone: Zone) -> dict[str, Any]:
    return {
        "id": zone.name,
        "object": "model",
        "created": int(zone.created_at.timestamp()),
        "owned_by": "finetender",
        "parent": zone.base_model_name,
    }
