"""``/v1/files``: training data, and what jobs report when they are done."""

from __future__ import annotations

import csv
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from io import StringIO
from typing import Any

from django.core.cache import cache
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework import serializers as s
from rest_framework.parsers import FormParser, MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from marketplace.accounts.models import Organisation
from marketplace.api.answers import GIVEN, LEFT_OUT, Answer, ConstantText, UnixTime
from marketplace.api.callers import Caller, get_caller
from marketplace.api.idempotency import answer_once, find_shared_key
from marketplace.api.market.requests import check_body
from marketplace.api.openai import schemas
from marketplace.api.openai.lists import build_list, read_after
from marketplace.api.openai.names import JOB, name_file, parse_file, unknown_file
from marketplace.api.openai.requests import FINE_TUNE, RESULTS, FileRequest
from marketplace.api.openai.schemas import list_of
from marketplace.api.openai.views import OpenAiView
from marketplace.api.pagination import read_limit
from marketplace.common import clock
from marketplace.common.downloads import FileDownload, LinesDownload
from marketplace.common.errors import Conflict, UserError
from marketplace.common.ids import ULID_LENGTH
from marketplace.jobs.downloads import open_adapter
from marketplace.jobs.models import Artifact, Dataset, Job, JobStatus, Upload, UploadStatus
from marketplace.jobs.selectors import build_upload_error, load_metric_series
from marketplace.jobs.services import (
    delete_adapter,
    delete_dataset,
    receive_upload,
    wait_for_upload,
)
from marketplace.jobs.upload_choices import CUT, REFUSE, UploadChoices

log = logging.getLogger(__name__)

#: As OpenAI's: lines that are no rows are refused, examples that are too long are cut.
CHOICES = UploadChoices(faulty_lines=REFUSE, long_rows=CUT)
#: How long a request waits for its file to be read.
WAIT_S = 20.0
LIMIT_MAX = 10_000
#: The same where results are among them, each of which is written to see how long it is.
RESULTS_LIMIT = 100
_SIZE_KEPT_S = 24 * 3600
#: A list does not wait for a storage that did not answer, once for each of its files.
_AWAY, _AWAY_S = "api:results-away", 60
_PURPOSES = (FINE_TUNE, RESULTS)
_RESULT_COLUMNS = ("step", "epoch", "train_loss", "valid_loss", "learning_rate")


class OpenAIFileSerializer(Answer):
    id = s.CharField()
    object = ConstantText("file")
    bytes = s.IntegerField()
    created_at = UnixTime()
    filename = s.CharField(help_text="Name of the file.")
    purpose = s.ChoiceField(
        ["fine-tune", "fine-tune-results"],
        help_text="fine-tune: training data; fine-tune-results: what a job made.",
    )
    status = s.CharField(help_text="uploaded, processed or error.")
    expires_at = s.IntegerField(
        allow_null=True, source=GIVEN, help_text="Always null: files are kept."
    )
    status_details = s.CharField(
        allow_null=True, help_text="What is wrong with the file; null: nothing."
    )
    rows = s.IntegerField(required=False, help_text="Usable rows, of training data that are read.")
    tokens = s.IntegerField(required=False, help_text="Tokens of the usable rows.")
    format = s.CharField(required=False, help_text="What its rows are, such as chat or preference.")

    def get_id(self, row: _File) -> str:
        return name_file(row.pk)

    def get_bytes(self, row: _File) -> int:
        if not isinstance(row, Job):
            return row.bytes
        return _find_results_size(row)

    def get_created_at(self, row: _File) -> datetime:
        return row.finished_at or row.created_at if isinstance(row, Job) else row.created_at

    def get_filename(self, row: _File) -> str:
        if isinstance(row, Job):
            return f"{row.pk}-results.csv"
        return f"{row.job_id}-adapter.zip" if isinstance(row, Artifact) else row.name

    def get_purpose(self, row: _File) -> str:
        return RESULTS if isinstance(row, (Job, Artifact)) else FINE_TUNE

    def get_status(self, row: _File) -> str:
        if not isinstance(row, Upload):
            return "processed"
        return "error" if row.status == UploadStatus.REFUSED else "uploaded"

    def get_status_details(self, row: _File) -> str | None:
        if isinstance(row, Upload) and row.status == UploadStatus.REFUSED:
            return (row.error or {}).get("message")
        return None

    def get_rows(self, row: _File) -> Any:
        return row.rows if isinstance(row, Dataset) else LEFT_OUT

    def get_tokens(self, row: _File) -> Any:
        return row.tokens if isinstance(row, Dataset) else LEFT_OUT

    def get_format(self, row: _File) -> Any:
        return row.format if isinstance(row, Dataset) else LEFT_OUT


class DeleteFileResponseSerializer(Answer):
    id = s.CharField(source="*")
    object = ConstantText("file")
    deleted = s.BooleanField(help_text="Always true.")

    def get_deleted(self, name: str) -> bool:
        return True


class FilesView(OpenAiView):
    parser_classes = [MultiPartParser, FormParser]
    takes_idempotency_key = True
    scopes = {"GET": "datasets:read", "POST": "datasets:write"}
    throttle_kind = "uploads"

    @extend_schema(
        operation_id="list_files",
        parameters=schemas.FILES_PAGE,
        responses={
            200: list_of(OpenAIFileSerializer, "ListFilesResponse", has_ends=True),
            **schemas.ERRORS,
        },
    )
    def get(self, request: Request) -> Response:
        limit = read_limit(request, default=LIMIT_MAX, most=LIMIT_MAX)
        purpose = request.query_params.get("purpose")
        order = request.query_params.get("order", "desc")
        if order not in ("asc", "desc"):
            raise UserError("invalid_order", "'order' is asc or desc.", param="order")
        purposes = _PURPOSES if purpose is None else (purpose,)
        limit = min(limit, RESULTS_LIMIT) if RESULTS in purposes else limit
        found = _list_files(
            get_caller(request).organisation,
            purposes=purposes,
            after=read_after(request),
            is_rising=order == "asc",
            limit=limit + 1,
        )
        page = build_list(found, limit=limit, show=OpenAIFileSerializer.show_each, has_ends=True)
        return Response(page)

    @extend_schema(
        operation_id="create_file",
        request={"multipart/form-data": FileRequest},
        responses={200: OpenAIFileSerializer, **schemas.ERRORS},
    )
    def post(self, request: Request) -> Response:
        who, now = get_caller(request), clock.now()
        key = find_shared_key(request, who.organisation, now=now)
        return answer_once(
            request, who.organisation, lambda: _store(request, who, key, now), now=now, key=key
        )


class FileView(OpenAiView):
    scopes = {"GET": "datasets:read", "DELETE": "datasets:write"}

    @extend_schema(
        operation_id="retrieve_file", responses={200: OpenAIFileSerializer, **schemas.ERRORS}
    )
    def get(self, request: Request, file_id: str) -> Response:
        found = _find_file(get_caller(request).organisation, file_id)
        return Response(OpenAIFileSerializer.show(found))

    @extend_schema(
        operation_id="delete_file", responses={200: DeleteFileResponseSerializer, **schemas.ERRORS}
    )
    def delete(self, request: Request, file_id: str) -> Response:
        who = get_caller(request)
        found = _find_file(who.organisation, file_id)
        name = name_file(found.pk)
        if isinstance(found, Dataset):
            delete_dataset(dataset=found, asked_by=who.user, now=clock.now())
        elif isinstance(found, Artifact):
            delete_adapter(job=found.job, asked_by=who.user, now=clock.now())
        else:
            raise Conflict(
                "file_not_deletable",
                "A job's measurements belong to the job, and a file that is still read, or was "
                "refused, is forgotten after a day.",
            )
        return Response(DeleteFileResponseSerializer.show(name))


class FileContentView(OpenAiView):
    scopes = {"GET": "datasets:read"}

    @extend_schema(
        operation_id="download_file",
        responses={
            (200, "application/octet-stream"): OpenApiResponse(OpenApiTypes.BINARY),
            **schemas.ERRORS,
        },
    )
    def get(self, request: Request, file_id: str) -> FileDownload | LinesDownload:
        found = _find_file(get_caller(request).organisation, file_id)
        if isinstance(found, Artifact):
            given = request.headers.get("Range")
            return open_adapter(found, name=found.job_id, range_header=given, now=clock.now())
        if isinstance(found, Job):
            return LinesDownload(
                _write_results(found), content_type="text/csv", name=f"{found.pk}-results.csv"
            )
        if isinstance(found, Upload):
            raise Conflict("file_not_processed", "The file is not read yet, or was refused.")
        return _download(request, found, name=f"{name_file(found.pk)}.jsonl")


def _download(request: Request, found: Dataset, *, name: str) -> FileDownload:
    return FileDownload(
        found.file.open("rb"),
        size=found.bytes,
        sha256=found.sha256,
        range_header=request.headers.get("Range"),
        name=name,
    )


def find_training_data(organisation: Organisation, file_id: str, *, param: str) -> Dataset:
    """The data set of a file, once it is read.

    Raises
    ------
    UserError
        ``unknown_file``, or what is wrong with the file.
    Conflict
        ``file_not_processed``: it is still being read; ask again.
    """
    found = _find_file(organisation, file_id, param=param)
    if isinstance(found, Upload):
        found = wait_for_upload(found, within_s=WAIT_S)
        if found.status == UploadStatus.REFUSED:
            raise build_upload_error(found)
        found = found.dataset or found
    if isinstance(found, Dataset):
        return found
    if isinstance(found, (Job, Artifact)):
        raise UserError("invalid_file", "These are results, no training data.", param=param)
    raise Conflict(
        "file_not_processed",
        "The file is still being read; send the request again in a moment.",
        param=param,
        extra={"retry": True},
    )


def _store(request: Request, who: Caller, key: str, now: datetime) -> Response:
    asked = check_body(FileRequest, request.data)
    if asked["purpose"] != FINE_TUNE:
        raise UserError("unsupported_purpose", f"Files are for {FINE_TUNE} here.", param="purpose")
    upload = receive_upload(
        organisation=who.organisation,
        name=asked["file"].name,
        content=asked["file"],
        uploaded_by=who.user,
        choices=CHOICES,
        key=f"files:{key}",
        now=now,
    )
    upload = wait_for_upload(upload, within_s=WAIT_S)
    if upload.status == UploadStatus.REFUSED:
        raise build_upload_error(upload)
    return Response(OpenAIFileSerializer.show(upload.dataset or upload))


#: A job stands for the file of its measurements.
_File = Dataset | Upload | Job | Artifact


@dataclass(frozen=True, slots=True)
class _Source:
    """Rows that are files, by the prefix of their ids."""

    prefix: str
    rows: Any


def _list_sources(organisation: Organisation, purposes: Sequence[str]) -> list[_Source]:
    sources: list[_Source] = []
    if FINE_TUNE in purposes:
        unread = Upload.objects.filter(organisation=organisation, dataset=None)
        sources.append(_Source("ds_", Dataset.objects.filter(organisation=organisation)))
        sources.append(_Source("up_", unread.exclude(status=UploadStatus.STORED)))
    if RESULTS in purposes:
        done = Job.objects.filter(organisation=organisation, status=JobStatus.SUCCEEDED)
        sources.append(_Source(JOB, done))
        adapters = Artifact.objects.filter(job__in=done).select_related("job")
        sources.append(_Source("art_", adapters))
    return sources


def _list_files(
    organisation: Organisation,
    *,
    purposes: Sequence[str],
    after: str | None,
    is_rising: bool,
    limit: int,
) -> list[_File]:
    """Files in the order of their ULIDs, which is that of their making."""
    found: list[_File] = []
    for source in _list_sources(organisation, purposes):
        rows = source.rows
        if after is not None:
            bound = source.prefix + after
            rows = rows.filter(pk__gt=bound) if is_rising else rows.filter(pk__lt=bound)
        found += rows.order_by("pk" if is_rising else "-pk")[:limit]
    found.sort(key=lambda row: row.pk[-ULID_LENGTH:], reverse=not is_rising)
    return found[:limit]


def _find_file(organisation: Organisation, file_id: str, *, param: str | None = None) -> _File:
    ulid = parse_file(file_id, param=param)
    for source in _list_sources(organisation, _PURPOSES):
        row = source.rows.filter(pk=source.prefix + ulid).first()
        if row is not None:
            return row
    raise unknown_file(file_id, param=param)


def _find_results_size(job: Job) -> int:
    """The length of a job's results; 0 while they cannot be read."""
    # Nothing is added to a job that has succeeded.
    key = f"api:results:{job.pk}"
    size: int | None = cache.get(key)
    if size is not None:
        return size
    if cache.get(_AWAY):
        return 0
    try:
        size = sum(len(line) + 1 for line in _write_results(job))
    except OSError as error:
        log.warning("the results of job %s cannot be measured", job.pk, exc_info=error)
        if not isinstance(error, FileNotFoundError):
            cache.set(_AWAY, True, _AWAY_S)
        return 0
    cache.set(key, size, _SIZE_KEPT_S)
    return size


def _write_results(job: Job) -> Iterator[str]:
    """The measurements of a job as lines of CSV."""
    yield ",".join(_RESULT_COLUMNS)
    for point in load_metric_series(job):
        line = StringIO()
        values = [getattr(point, name) for name in _RESULT_COLUMNS]
        csv.writer(line, lineterminator="").writerow(values)
        yield line.getvalue()
