"""What may be asked about data sets and jobs; nothing here writes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import BinaryIO, cast

from django.db.models import F, Q, QuerySet
from django.db.models.fields.files import FieldFile

from marketplace.common.errors import NotFound, UserError
from marketplace.fleet import selectors as fleet
from marketplace.fleet.models import Node, Zone
from marketplace.jobs.executed_work import is_user_fault, list_slices
from marketplace.jobs.lease_checks import get_current_slice
from marketplace.jobs.models import (
    CandidatePrompts,
    Checkpoint,
    Dataset,
    Job,
    JobEvent,
    JobStatus,
    MetricPoint,
    Slice,
    SliceStatus,
    Upload,
)
from workers.protocol.messages import AdapterSpec, DataFormat, TextSample, TrainingSpec
from workers.protocol.row_order import count_validation_rows
from workers.protocol.wire import from_json

#: Names under which a lease's files are fetched; a checkpoint's is its id.
DATASET_BLOB = "dataset"
VALIDATION_BLOB = "validation"
PROMPTS_BLOB = "prompts"
#: Cost of a preference row against one plain sequence: two forward and backward passes for the
#: adapter and two forward passes for the frozen base, with a backward pass counted as two.
PREFERENCE_COST = 8 / 3


@dataclass(frozen=True, slots=True)
class Blob:
    """A stored file that a node may fetch."""

    file: FieldFile
    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Work:
    """A job as the auction sees it, in the unit of the zone's node capacities."""

    #: M_i: reference samples.
    compute_demand: float
    #: r_i: GB beside the base model.
    memory_demand_gb: float
    #: s_ik: reference samples per slot by GPU type.
    rates: dict[str, float]
    #: Training rows times epochs, as people count them.
    samples: int
    train_rows: int
    valid_rows: int


def measure_work(
    *,
    dataset: Dataset,
    zone: Zone,
    adapter: AdapterSpec,
    training: TrainingSpec,
    speeds: fleet.ZoneSpeeds | None = None,
) -> Work:
    """Measure what a data set with these settings asks of a node.

    ``speeds`` spares reading the zone's speed table again.

    A reference sample is one of the zone's reference batch and length; see
    ``fleet.selectors.work_weight``.
    """
    preference = dataset.format == DataFormat.PREFERENCE
    valid = count_validation_rows(rows=dataset.rows, share=training.validation_share)
    train = dataset.rows - valid
    samples = train * training.epochs
    speeds = speeds or fleet.load_zone_speeds(zone)
    # A soft prompt's tokens stand before every row.
    length = training.sequence_length + adapter.virtual_tokens
    shape = {"batch_size": training.batch_size, "sequence_length": length}
    weight = fleet.work_weight(zone=zone, speeds=speeds, **shape)
    cost = PREFERENCE_COST if preference else 1.0
    return Work(
        compute_demand=samples * weight * cost,
        memory_demand_gb=fleet.memory_demand(
            zone=zone, adapter=adapter, training=training, preference=preference, speeds=speeds
        ),
        rates={
            gpu_type: rate * weight
            for gpu_type, rate in fleet.rates(zone=zone, speeds=speeds, **shape).items()
        },
        samples=samples,
        train_rows=train,
        valid_rows=valid,
    )


#: Share of a job's rows that may drop out on the node: cutting can leave them nothing to learn.
DROPPED_SHARE_MAX = 0.1


def count_planned_steps(job: Job) -> range:
    """How many optimizer steps the whole of a job can be, from its data and its settings.

    One number, unless rows are cut: those that the cut leaves nothing to learn drop out.
    """
    training, dataset = job.training, job.dataset
    share = 0.0 if job.validation_dataset_id else training.get("validation_share", 0.0)
    rows = dataset.rows - count_validation_rows(rows=dataset.rows, share=share)

    def steps(trained: int) -> int:
        return max(1, math.ceil(trained / training["batch_size"])) * training["epochs"]

    if training["sequence_length"] < dataset.longest_row_tokens:
        return range(training["epochs"], steps(rows) + 1)
    return range(steps(rows - math.floor(DROPPED_SHARE_MAX * rows)), steps(rows) + 1)


def measure_job_work(job: Job, *, speeds: fleet.ZoneSpeeds | None = None) -> Work:
    """What the whole of a job asks of a node, at the speeds known now.

    ``speeds`` are as in ``measure_work``.
    """
    return measure_work(
        dataset=job.dataset,
        zone=job.zone,
        adapter=from_json(AdapterSpec, job.spec["adapter"]),
        training=from_json(TrainingSpec, job.spec["training"]),
        speeds=speeds,
    )


def compute_work_left_share(job: Job) -> float:
    """Share of the job's work still to do, from where it would go on: 0 to 1.

    A running job goes on from its step, any other from its newest checkpoint.
    """
    if not job.total_steps:
        return 1.0
    running = Slice.objects.filter(job=job, status=SliceStatus.OPEN).exists()
    step = job.step if running else job.checkpoint_step
    return min(1.0, max(0.0, 1.0 - step / job.total_steps))


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
    """Nodes that the job's next plan should leave out, while others can run it.

    The node that lost or failed it last, and every node of a provider that found fault with its
    input: that is confirmed only by another.
    """
    slices = list_slices(job)
    if not slices or slices[-1].status not in (SliceStatus.LOST, SliceStatus.FAILED):
        return []
    blaming = {held.node.provider_id for held in slices if is_user_fault(held)}
    own = Node.objects.filter(zone=job.zone, provider__in=blaming).values_list("pk", flat=True)
    return sorted({slices[-1].node_id, *own})


def get_datasets(ids: Iterable[str]) -> dict[str, Dataset]:
    """Data sets by id as they are now; unknown ones are left out."""
    # A name with a null byte belongs to no one, and PostgreSQL refuses to be asked for it.
    return Dataset.objects.in_bulk([pk for pk in ids if "\0" not in pk])


def list_unsettled_jobs() -> QuerySet[Job]:
    """Ended jobs whose money is not settled yet."""
    return (
        Job.objects.filter(finished_at__isnull=False, settled_at__isnull=True)
        .select_related("zone", "organisation")
        .order_by("finished_at", "pk")
    )


def list_job_events(job: Job, *, after_seq: int = 0) -> QuerySet[JobEvent]:
    return JobEvent.objects.filter(job=job, seq__gt=after_seq).order_by("seq")


def list_job_checkpoints(job: Job) -> QuerySet[Checkpoint]:
    """Checkpoints that can be fetched, newest first."""
    return job.checkpoints.exclude(file="").order_by("-step", "-pk")


def find_lease_blob(*, node: Node, lease_token: str, name: str, now: datetime) -> Blob:
    """A file of the job that a node holds under a current lease.

    Raises
    ------
    LeaseLost
    NotFound
        ``unknown_blob``.
    """
    job = get_current_slice(lease_token=lease_token, node=node, now=now).job
    found: Dataset | Checkpoint | CandidatePrompts | None
    if name == DATASET_BLOB:
        found = job.dataset
    elif name == VALIDATION_BLOB:
        found = job.validation_dataset
    elif name == PROMPTS_BLOB:
        found = CandidatePrompts.objects.filter(job=job).first()
    else:
        found = list_job_checkpoints(job).filter(pk=name).first()
    if found is None:
        raise NotFound("unknown_blob", f"This lease has no file {name[:80]!r}.")
    return Blob(file=found.file, sha256=found.sha256, bytes=found.bytes)


#: Bytes of a data set that are read to show some of its rows.
_PEEK_BYTES = 32_000_000
_EXCERPT_CHARS = 400


@dataclass(frozen=True, slots=True)
class Outlier:
    """A row whose loss stands out, as the job's owner is shown it."""

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
    finished = Slice.objects.filter(job=job, status=SliceStatus.FINISHED)
    result = finished.values_list("result", flat=True).first() or {}
    return [from_json(TextSample, sample) for sample in result.get("samples") or ()]


def add_excerpts(outliers: list[Outlier], *, dataset: Dataset) -> list[Outlier]:
    """The same with the beginnings of their lines, as far as the file is read."""
    wanted = {outlier.line for outlier in outliers}
    if not wanted:
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


def load_metric_series(job: Job, *, limit: int = 5_000) -> list[MetricPoint]:
    """The job's progress as one rising series.

    Steps done again after a lost node replace what was reported for them before.
    """
    series: list[MetricPoint] = []
    for point in reversed(MetricPoint.objects.filter(job=job).order_by("-pk")[:limit]):
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
