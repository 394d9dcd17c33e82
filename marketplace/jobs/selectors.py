"""What may be asked about data sets and jobs; nothing here writes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import BinaryIO, cast

from django.db.models import Count, Exists, F, OuterRef, Q, QuerySet
from django.db.models.fields.files import FieldFile

from marketplace.accounts.models import Organisation
from marketplace.common.errors import NotFound, UserError
from marketplace.fleet.models import Node, Zone
from marketplace.fleet.selectors import is_node_silent
from marketplace.jobs.executed_work import list_slices
from marketplace.jobs.lease_checks import get_current_slice
from marketplace.jobs.loss_curves import Point, read_points
from marketplace.jobs.models import (
    Artifact,
    CandidatePrompts,
    Checkpoint,
    Dataset,
    Job,
    JobStatus,
    Slice,
    SliceStatus,
    Upload,
)
from workers.protocol.reports import Fault, TextSample
from workers.protocol.wire import from_json

#: Names under which a lease's files are fetched; a checkpoint's is its id.
DATASET_BLOB = "dataset"
VALIDATION_BLOB = "validation"
PROMPTS_BLOB = "prompts"
#: The adapter that the job begins with.
START_BLOB = "start"
#: Slices that are looked at for whether a job gets on.
_STALLED_MAX = 6


@dataclass(frozen=True, slots=True)
class Blob:
    """A stored file that a node may fetch."""

    file: FieldFile
    sha256: str
    bytes: int


def list_jobs_to_replan(zone: Zone) -> QuerySet[Job]:
    """Jobs that need new cells, those waiting longest first."""
    return (
        Job.objects.filter(zone=zone, needs_replan=True, status__in=Job.ACTIVE)
        .select_related("zone", "dataset")
        .order_by("replan_wanted_at", "pk")
    )


def list_jobs_with_plans(zone: Zone, *, bid_ids: Iterable[str]) -> list[Job]:
    """Active jobs of these bids that wait for no new plan, with what their work is measured by."""
    found = Job.objects.filter(
        zone=zone, bid_id__in=list(bid_ids), needs_replan=False, status__in=Job.ACTIVE
    )
    return list(found.select_related("zone", "dataset").order_by("pk"))


def list_late_jobs(zone: Zone) -> list[Job]:
    """Active jobs whose plan ends after their deadline, or that have none."""
    found = Job.objects.filter(_LATE, zone=zone, status__in=Job.ACTIVE)
    return list(found.select_related("zone", "dataset").order_by("deadline_at", "pk"))


def list_zones_with_late_jobs() -> list[str]:
    found = Job.objects.filter(_LATE, status__in=Job.ACTIVE)
    return list(found.order_by("zone_id").values_list("zone_id", flat=True).distinct())


_LATE = Q(needs_replan=True) | Q(finish_planned_at__gt=F("deadline_at"))


def list_nodes_to_avoid(job: Job) -> list[str]:
    """The node that lost or failed the job last: its next plan leaves it out if others can."""
    slices = list_slices(job)
    if not slices or slices[-1].status not in (SliceStatus.LOST, SliceStatus.FAILED):
        return []
    return [slices[-1].node_id]


def find_idlest_node(
    nodes: Iterable[Node], *, last_asked_id: str | None, now: datetime
) -> Node | None:
    """The node that is heard and runs the fewest jobs; another than was asked last, if any is."""
    there = [node for node in nodes if not is_node_silent(node, now)]
    jobs = count_running_jobs(there)
    return min(
        there,
        key=lambda node: (node.pk == last_asked_id, jobs.get(node.pk, 0), node.pk),
        default=None,
    )


def count_running_jobs(nodes: Iterable[Node]) -> dict[str, int]:
    """How many jobs run on each node, by its id; a node that runs none is left out."""
    running = Slice.objects.filter(node__in=nodes, status=SliceStatus.OPEN)
    return dict(running.values_list("node").annotate(Count("pk")))


def may_run(job: Job, node: Node) -> bool:
    """Whether a node may have a job's data, as the job's owner wants it."""
    return not job.verified_only or node.provider.verified_at is not None


def count_stalled_slices(job: Job) -> int:
    """How many of the job's latest slices, in a row, ended without a step that counts.

    Only those that its node handed back: a lost or failed slice says nothing of the slot's length.
    """
    ended = Slice.objects.filter(job=job).exclude(status=SliceStatus.OPEN)
    latest = ended.order_by("-closed_at", "-pk").values_list("status", "first_step", "last_step")
    stalled = 0
    for status, first_step, last_step in latest[:_STALLED_MAX]:
        if status != SliceStatus.PAUSED or last_step > first_step:
            break
        stalled += 1
    return stalled


def get_datasets(ids: Iterable[str]) -> dict[str, Dataset]:
    """Data sets by id as they are now; unknown ones are left out."""
    # No row has a name with a NUL byte, and PostgreSQL refuses the query.
    return Dataset.objects.in_bulk([pk for pk in ids if "\0" not in pk])


def list_unsettled_jobs() -> QuerySet[Job]:
    """Ended jobs whose money is not settled yet."""
    return (
        Job.objects.filter(finished_at__isnull=False, settled_at__isnull=True)
        .select_related("zone", "organisation")
        .order_by("finished_at", "pk")
    )


def list_continuable_jobs(organisation: Organisation) -> QuerySet[Job]:
    """Jobs whose adapters a new job may begin with, newest first."""
    done = Job.objects.filter(organisation=organisation, status=JobStatus.SUCCEEDED)
    return done.filter(Exists(Artifact.objects.filter(job=OuterRef("pk")))).order_by("-pk")


def get_finished_artifact(job: Job) -> Artifact:
    """The finished adapter of a job that has one, also a deleted one: its row stays."""
    return Artifact.everything.get(job=job, checkpoint=None)


def list_datasets(organisation: Organisation) -> QuerySet[Dataset]:
    """What an organisation may train on, newest first."""
    return Dataset.objects.filter(organisation=organisation).order_by("-created_at", "-pk")


def list_node_slices(node: Node, *, since: datetime) -> list[Slice]:
    """What a node has run since a moment, and runs now, in the order in which it began."""
    lately = Q(closed_at__gt=since) | Q(status=SliceStatus.OPEN)
    return list(Slice.objects.filter(lately, node=node).order_by("opened_at", "pk"))


def list_job_checkpoints(job: Job) -> QuerySet[Checkpoint]:
    """Checkpoints that can be fetched, newest first, with the one that it was resumed from."""
    own = Q(job=job)
    if job.terms.resumes is not None:
        own |= Q(pk=job.terms.resumes.checkpoint_id)
    return Checkpoint.objects.filter(own).exclude(file="").order_by("-step", "-pk")


def list_blames(job: Job) -> QuerySet[Slice]:
    """A job's slices that ended with their nodes' word that the input is at fault."""
    return job.slices.filter(status=SliceStatus.FAILED, result__fault=Fault.USER)


def find_unsuspected_checkpoint(job: Job) -> Checkpoint | None:
    """The newest checkpoint that can be fetched and that no provider stored that blames the input.

    Such a provider's own may be what the steps fail on.
    """
    providers = list_blames(job).values("node__provider")
    return list_job_checkpoints(job).exclude(slice__node__provider__in=providers).first()


def find_unsuspected_step(job: Job) -> int:
    """The step after which nothing is known of a job but by providers that blame its input."""
    start = find_unsuspected_checkpoint(job)
    return 0 if start is None else start.step


def has_lease(*, node: Node, lease_token: str) -> bool:
    """Whether a lease is or was the node's: what it stores under an earlier one may come twice."""
    return Slice.objects.filter(lease_token=lease_token, node=node).exists()


def find_lease_blob(*, node: Node, lease_token: str, name: str, now: datetime) -> Blob:
    """A file of the job that a node holds under a current lease.

    Raises
    ------
    LeaseLost
    NotFound
        ``unknown_blob``.
    """
    job = get_current_slice(lease_token=lease_token, node=node, now=now).job
    if not may_run(job, node):
        raise NotFound("unknown_blob", "This job goes to nodes of verified providers only.")
    found = find_job_blob(job, name)
    if found is None:
        raise NotFound("unknown_blob", f"This lease has no file {name[:80]!r}.")
    return found


def find_job_blob(job: Job, name: str) -> Blob | None:
    """A file that a node needs to train a job: its data, what it begins with, a checkpoint."""
    found: Dataset | Checkpoint | CandidatePrompts | Artifact | None
    if name == DATASET_BLOB:
        found = job.dataset
    elif name == VALIDATION_BLOB:
        found = job.validation_dataset
    elif name == PROMPTS_BLOB:
        found = CandidatePrompts.objects.filter(job=job).first()
    elif name == START_BLOB and job.start is not None and not job.start.dropped:
        found = Artifact.everything.filter(pk=job.start.artifact_id).first()
    else:
        found = list_job_checkpoints(job).filter(pk=name).first()
    return found and Blob(file=found.file, sha256=found.sha256, bytes=found.bytes)


#: Bytes of a data set that are read to show some of its rows.
_PEEK_BYTES = 32_000_000
_EXCERPT_CHARS = 400


@dataclass(frozen=True, slots=True)
class Outlier:
    """A row whose loss stands out, as the page of the job shows it."""

    line: int
    loss: float
    #: The beginning of the line; empty where it was not read.
    excerpt: str = ""


def list_row_outliers(job: Job) -> list[Outlier]:
    """Rows that stand out after the last pass over the data, worst first.

    Until the job is done there are none: losses of an earlier pass are those of a model that had
    not learnt yet.
    """
    if job.status != JobStatus.SUCCEEDED:
        return []
    results = Slice.objects.filter(job=job, result__isnull=False).order_by("-closed_at")
    last = results.values_list("result", flat=True).first() or {}
    return [Outlier(line=row["line"], loss=row["loss"]) for row in last.get("outliers") or ()]


def list_samples(job: Job) -> list[TextSample]:
    """What the model wrote on held-out prompts before and after; empty unless the job succeeded."""
    if job.status != JobStatus.SUCCEEDED:
        return []
    finished = Slice.objects.filter(job=job, status=SliceStatus.FINISHED).order_by("-closed_at")
    result = finished.values_list("result", flat=True).first() or {}
    return [from_json(TextSample, sample) for sample in result.get("samples") or ()]


def add_excerpts(outliers: list[Outlier], *, dataset: Dataset) -> list[Outlier]:
    """The same with the beginnings of their lines, as far as the file is read."""
    wanted = {outlier.line for outlier in outliers}
    if not wanted or not dataset.file:
        return outliers
    found: dict[int, str] = {}
    read = 0
    with dataset.file.open("rb") as file:
        for number, line in enumerate(cast(BinaryIO, file), start=1):
            read += len(line)
            if number in wanted:
                text = line.decode("utf-8", "replace").strip()
                found[number] = text[:_EXCERPT_CHARS] + "…" * (len(text) > _EXCERPT_CHARS)
            if len(found) == len(wanted) or read > _PEEK_BYTES:
                break
    return [replace(outlier, excerpt=found.get(outlier.line, "")) for outlier in outliers]


def load_metric_series(
    job: Job, *, limit: int | None = 5_000, is_shown: bool = False
) -> list[Point]:
    """The job's progress as one rising series, read as ``read_points`` does.

    Steps done again after a lost node replace what was reported for them before.
    """
    series: list[Point] = []
    for point in read_points(job.pk, newest=limit, is_shown=is_shown):
        while series and series[-1].step >= point.step:
            if series[-1].slice_id == point.slice_id:
                break
            series.pop()
        series.append(point)
    return series


def build_upload_error(upload: Upload) -> UserError:
    """Why a refused upload was refused."""
    assert upload.error is not None
    return UserError(**upload.error)
