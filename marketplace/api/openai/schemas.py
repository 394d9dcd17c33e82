"""The shapes of ``/v1`` for its OpenAPI document."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, inline_serializer
from rest_framework import serializers as s

Fields = dict[str, Any]


def _shape(name: str, fields: Fields, **options: Any) -> Any:
    return inline_serializer(name=name, fields=fields, **options)


def _constant(text: str) -> s.CharField:
    # A choice of one would need a name of its own in the document.
    return s.CharField(help_text=f"Always {text}.")


def _list(name: str, item: Any, *, has_ends: bool = False, is_paged: bool = True) -> Any:
    fields: Fields = {
        "object": _constant("list"),
        "data": s.ListField(child=deepcopy(item)),
    }
    if is_paged:
        fields["has_more"] = s.BooleanField()
    if has_ends:
        fields["first_id"] = s.CharField(allow_null=True)
        fields["last_id"] = s.CharField(allow_null=True)
    return _shape(name, fields)


AFTER = OpenApiParameter("after", str, description="Id of the last item of the page before.")
LIMIT = OpenApiParameter("limit", int, description="Items of the page.")
PAGE = [AFTER, LIMIT]
FILES_PAGE = [
    *PAGE,
    OpenApiParameter("purpose", str, description="fine-tune or fine-tune-results."),
    OpenApiParameter("order", str, description="asc or desc, by age."),
]
JOBS_PAGE = [
    *PAGE,
    OpenApiParameter(
        "metadata", str, description="metadata[key]=value: with the pair; null: without any."
    ),
]

ERROR = OpenApiResponse(
    _shape(
        "ErrorResponse",
        {
            "error": _shape(
                "Error",
                {
                    "message": s.CharField(help_text="What is wrong and what to do."),
                    "type": s.CharField(),
                    "param": s.CharField(allow_null=True),
                    "code": s.CharField(help_text="What programs compare; never changes."),
                },
            )
        },
    ),
    description="An error; members such as posted_price stand beside the four.",
)
ERRORS = {400: ERROR, 401: ERROR, 403: ERROR, 404: ERROR, 409: ERROR, 429: ERROR}

FILE = _shape(
    "OpenAIFile",
    {
        "id": s.CharField(),
        "object": _constant("file"),
        "bytes": s.IntegerField(),
        "created_at": s.IntegerField(help_text="Unix seconds."),
        "filename": s.CharField(),
        "purpose": s.ChoiceField(["fine-tune", "fine-tune-results"]),
        "status": s.CharField(help_text="uploaded, processed or error."),
        "expires_at": s.IntegerField(allow_null=True),
        "status_details": s.CharField(allow_null=True),
        "rows": s.IntegerField(required=False),
        "tokens": s.IntegerField(required=False),
        "format": s.CharField(required=False),
    },
)
_FILE_OF_UPLOAD = deepcopy(FILE)
_FILE_OF_UPLOAD.required = False
UPLOAD = _shape(
    "OpenAIUpload",
    {
        "id": s.CharField(),
        "object": _constant("upload"),
        "bytes": s.IntegerField(help_text="As announced."),
        "created_at": s.IntegerField(help_text="Unix seconds."),
        "expires_at": s.IntegerField(help_text="Unix seconds; its parts are deleted then."),
        "filename": s.CharField(),
        "purpose": s.CharField(),
        "status": s.ChoiceField(["pending", "completed", "cancelled", "expired"]),
        "file": _FILE_OF_UPLOAD,
    },
)
UPLOAD_PART = _shape(
    "OpenAIUploadPart",
    {
        "id": s.CharField(),
        "object": _constant("upload.part"),
        "created_at": s.IntegerField(help_text="Unix seconds."),
        "upload_id": s.CharField(),
    },
)
FILE_LIST = _list("ListFilesResponse", FILE, has_ends=True)
DELETED_FILE = _shape(
    "DeleteFileResponse",
    {"id": s.CharField(), "object": _constant("file"), "deleted": s.BooleanField()},
)
_HYPERPARAMETERS = _shape(
    "FineTuningJobHyperparameters",
    {
        "batch_size": s.IntegerField(),
        "learning_rate_multiplier": s.JSONField(help_text="A number, or 'auto'."),
        "n_epochs": s.IntegerField(),
        "beta": s.FloatField(required=False),
    },
)
_BID = _shape(
    "FineTuningJobBid",
    {
        "id": s.CharField(),
        "max_price": s.CharField(),
        "payment": s.CharField(help_text="What the job pays, in dollars."),
        "refunded": s.CharField(),
        "credit": s.CharField(),
        "currency": s.ChoiceField(["usd"]),
        "deadline": s.DateTimeField(),
        "finish_planned_at": s.DateTimeField(),
        "zone": s.CharField(),
        "verified_only": s.BooleanField(help_text="On nodes of verified providers only."),
        "position": s.IntegerField(help_text="Of the decision in the zone's log."),
        "hash": s.CharField(),
    },
)
JOB = _shape(
    "FineTuningJob",
    {
        "id": s.CharField(),
        "object": _constant("fine_tuning.job"),
        "created_at": s.IntegerField(help_text="Unix seconds."),
        "error": _shape(
            "FineTuningJobError",
            {
                "code": s.CharField(),
                "message": s.CharField(),
                "param": s.CharField(allow_null=True),
            },
            allow_null=True,
        ),
        "fine_tuned_model": s.CharField(allow_null=True),
        "finished_at": s.IntegerField(allow_null=True),
        "estimated_finish": s.IntegerField(allow_null=True),
        "hyperparameters": _HYPERPARAMETERS,
        "model": s.CharField(),
        "organization_id": s.CharField(),
        "result_files": s.ListField(child=s.CharField()),
        "seed": s.IntegerField(),
        "status": s.CharField(
            help_text="validating_files, queued, running, succeeded, failed or cancelled."
        ),
        "trained_tokens": s.IntegerField(allow_null=True),
        "training_file": s.CharField(),
        "validation_file": s.CharField(allow_null=True),
        "integrations": s.ListField(child=s.DictField()),
        "metadata": s.DictField(allow_null=True),
        "method": s.DictField(),
        "continued_from": s.CharField(allow_null=True),
        "bid": _BID,
    },
)
JOB_LIST = _list("ListPaginatedFineTuningJobsResponse", JOB)
EVENT_LIST = _list(
    "ListFineTuningJobEventsResponse",
    _shape(
        "FineTuningJobEvent",
        {
            "id": s.CharField(),
            "object": _constant("fine_tuning.job.event"),
            "created_at": s.IntegerField(),
            "level": s.ChoiceField(["info", "warn", "error"]),
            "message": s.CharField(),
            "type": s.ChoiceField(["message", "metrics"]),
            "data": s.DictField(),
        },
    ),
)
CHECKPOINT_LIST = _list(
    "ListFineTuningJobCheckpointsResponse",
    _shape(
        "FineTuningJobCheckpoint",
        {
            "id": s.CharField(),
            "object": _constant("fine_tuning.job.checkpoint"),
            "created_at": s.IntegerField(),
            "fine_tuned_model_checkpoint": s.CharField(),
            "fine_tuning_job_id": s.CharField(),
            "step_number": s.IntegerField(),
            "metrics": s.DictField(),
        },
    ),
    has_ends=True,
)
MODEL = _shape(
    "Model",
    {
        "id": s.CharField(),
        "object": _constant("model"),
        "created": s.IntegerField(),
        "owned_by": s.CharField(),
        "parent": s.CharField(help_text="The base model."),
        "job_id": s.CharField(required=False),
    },
)
MODEL_LIST = _list("ListModelsResponse", MODEL, is_paged=False)
_USAGE = _shape(
    "CompletionUsage",
    {
        "prompt_tokens": s.IntegerField(),
        "completion_tokens": s.IntegerField(),
        "total_tokens": s.IntegerField(),
        "cost": s.CharField(help_text="Dollars, as a decimal string."),
    },
)


def _answer(name: str, kind: str) -> Any:
    return _shape(
        name,
        {
            "id": s.CharField(),
            "object": _constant(kind),
            "created": s.IntegerField(),
            "model": s.CharField(),
            "choices": s.ListField(child=s.DictField()),
            "usage": deepcopy(_USAGE),
        },
    )


CHAT = _answer("CreateChatCompletionResponse", "chat.completion")
COMPLETION = _answer("CreateCompletionResponse", "text_completion")
