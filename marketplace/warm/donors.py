"""Finished adapters as donors: listed once they are there, and the nearest found for a job."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from django.db.models import Exists, OuterRef, Q, QuerySet

from marketplace.accounts.models import Organisation
from marketplace.common.ttl_cache import TtlCache
from marketplace.fleet.models import Zone
from marketplace.jobs.models import Artifact, Job, JobStatus
from marketplace.warm.consents import IS_FIT, filter_given
from marketplace.warm.embeddings import WIDTH, Vector, ensure_embedding, unpack
from marketplace.warm.models import Donor
from scheduler.merging.warm_starts import CANDIDATES_MAX, choose_candidates
from workers.protocol.job_spec import AdapterKind, AdapterSpec, DataFormat, TrainingSpec
from workers.protocol.starts import StartKind

log = logging.getLogger(__name__)

#: Formats whose rows a probe can be made of.
FORMATS = (DataFormat.CHAT, DataFormat.COMPLETION, DataFormat.INSTRUCTION, DataFormat.TEXT)
#: Adapters listed by one run; the next one takes the rest.
BATCH_LIMIT = 50
#: An adapter is listed within seconds; one that still is not by then never will be.
FRESH_FOR = timedelta(days=7)
#: Share of its training rows that an adapter may say by heart and be given to others.
MEMORISED_SHARE_MAX = 0.01
#: Seconds that a zone's list of given donors may be old; the choice is checked once more. With
#: 10,000 donors reading it takes a tenth of a second, and a search some milliseconds.
LISTED_S = 30.0
#: Settings on which it depends how much a run learns in a pass.
_LEARNT_BY = (
    *("learning_rate", "batch_size", "schedule", "warmup_share", "weight_decay"),
    *("max_grad_norm", "sequence_length"),
)
#: A near donor made at least this share of the job's steps.
STEPS_SHARE_MIN = 0.75
#: Where a donor's job says how often it went over its rows.
_EPOCHS = "job__terms__training__epochs"


def name_shape(adapter: AdapterSpec | Mapping[str, Any]) -> str:
    """What adapters must share for one to begin with the other: rank, modules and scale."""
    if isinstance(adapter, AdapterSpec):
        kind, rank, targets = adapter.kind, adapter.rank, adapter.target_modules
        ways = (adapter.rslora, adapter.dora)
    else:
        kind, rank = adapter.get("kind", AdapterKind.LORA), adapter["rank"]
        targets = adapter.get("target_modules")
        ways = (adapter.get("rslora", False), adapter.get("dora", False))
    text = f"{kind}|{rank}|{','.join(sorted(targets)) if targets else 'all'}"
    # what is off is not named: the shapes of plain adapters stay what they were
    text += "".join(
        f"|{name}" for name, is_on in zip(("rslora", "dora"), ways, strict=True) if is_on
    )
    return hashlib.sha256(text.encode()).hexdigest()


def list_new_donors(*, now: datetime) -> int:
    """List adapters that finished since, with what their data is like; how many."""
    listed = Donor.objects.filter(artifact=OuterRef("pk"))
    fresh = (
        Artifact.objects.filter(
            created_at__gt=now - FRESH_FOR,
            job__status=JobStatus.SUCCEEDED,
            # Its adapter goes to nodes of verified providers only.
            job__verified_only=False,
            job__valid_loss_before__gt=0,
            job__valid_loss__gt=0,
            job__dataset__format__in=FORMATS,
            job__dataset__deleted_at=None,
        )
        .exclude(Exists(listed))
        .select_related("job__dataset", "slice")
        .order_by("created_at")
    )
    made = 0
    for artifact in fresh[:BATCH_LIMIT]:
        try:
            _list_donor(artifact, now)
            made += 1
        # A file that is gone must not keep the others from being listed.
        except OSError as error:
            log.warning("adapter %s is no donor: %s", artifact.pk, error)
    return made


def _list_donor(artifact: Artifact, now: datetime) -> None:
    job = artifact.job
    Donor.objects.get_or_create(
        artifact=artifact,
        defaults={
            "job": job,
            "organisation_id": job.organisation_id,
            "zone_id": job.zone_id,
            "shape": name_shape(job.terms.adapter),
            "data_sha256": job.dataset.sha256,
            "vector": ensure_embedding(job.dataset).tobytes(),
            "loss_before": job.valid_loss_before,
            "loss_after": job.valid_loss,
            "has_memorised": _has_memorised(artifact),
            "builds_on_others": _builds_on_others(job),
            "created_at": now,
        },
    )


def _has_memorised(artifact: Artifact) -> bool:
    """Whether the node's scan found more of its training rows said by heart than may be."""
    by_heart = (artifact.slice.result or {}).get("memorised_rows", 0)
    return by_heart > MEMORISED_SHARE_MAX * artifact.job.dataset.rows


def _builds_on_others(job: Job) -> bool:
    """Whether a job, or one of its owner's that it goes back to, began with another's adapter.

    A withdrawal would not reach what came of an adapter, nor would its owner see a royalty.
    """
    while (start := job.start) is not None and not start.dropped:
        if start.kind == StartKind.DONOR:
            return True
        job = Job.objects.get(pk=start.job_id)
    return False


class _DonorList:
    """The given donors of a zone and shape, ready to be searched."""

    def __init__(self, zone_id: str, shape: str) -> None:
        rows = filter_given(Donor.objects.filter(zone=zone_id, shape=shape))
        columns = ("pk", "organisation_id", "vector", _EPOCHS, "job__stopped_early")
        found = list(rows.order_by("-created_at").values_list(*columns))
        self.ids = [pk for pk, *_ in found]
        self.owners = np.array([owner for _, owner, *_ in found])
        self.passes = np.array([np.inf if early else epochs for *_, epochs, early in found])
        vectors = b"".join(bytes(vector) for _, _, vector, *_ in found)
        self.vectors = np.frombuffer(vectors, dtype=np.float32).reshape(-1, WIDTH)


_listed: TtlCache[_DonorList] = TtlCache(for_s=LISTED_S)


def has_passes(job: Job, passes: int) -> bool:
    """Whether a donor's own run tells where a cold run with as many passes over its rows ends.

    A shorter one ended earlier: its loss would be an easy target, and the result worse than cold.
    """
    return job.stopped_early or job.terms.training.epochs >= passes


def is_trained_alike(job: Job, training: TrainingSpec, *, steps: int) -> bool:
    """Whether a donor's run had the settings on which it depends how much a run learns.

    With others, or with far fewer steps, its loss says little of what a run with these ends with.
    """
    is_long = job.stopped_early or (job.total_steps or 0) >= STEPS_SHARE_MIN * steps
    theirs = job.terms.training
    return is_long and all(getattr(theirs, name) == getattr(training, name) for name in _LEARNT_BY)


def _filter_passes(donors: QuerySet[Donor], passes: int) -> QuerySet[Donor]:
    return donors.filter(Q(job__stopped_early=True) | Q(**{f"{_EPOCHS}__gte": passes}))


def has_donors(*, organisation: Organisation, zone: Zone, shape: str) -> bool:
    """Whether there is any adapter that the organisation's jobs might begin with."""
    known = Donor.objects.filter(zone=zone, shape=shape)
    return known.filter(Q(organisation=organisation) | IS_FIT).exists()


def find_own_twin(
    *,
    organisation: Organisation,
    zone: Zone,
    shape: str,
    data_sha256: str,
    training: TrainingSpec,
) -> Donor | None:
    """The organisation's newest adapter that was trained alike on the very same rows, as often."""
    own = Donor.objects.filter(organisation=organisation, zone=zone, shape=shape)
    same = _filter_passes(own, training.epochs).filter(data_sha256=data_sha256)
    latest = same.select_related("job").order_by("-created_at")[:CANDIDATES_MAX]
    return next((donor for donor in latest if is_trained_alike(donor.job, training, steps=0)), None)


def find_candidates(
    *,
    organisation: Organisation,
    zone: Zone,
    shape: str,
    vector: Vector,
    passes: int,
    uses_donors: bool,
    now: datetime,
) -> list[Donor]:
    """Donors to probe for a job, at most ``CANDIDATES_MAX``: its owner's own first, then others'.

    Of each the nearest by what their data is like, of those trained for as many passes at least.
    """
    mine = Donor.objects.filter(organisation=organisation, zone=zone, shape=shape)
    own = list(
        _filter_passes(mine, passes).order_by("-created_at").values_list("pk", "vector")[:1000]
    )
    vectors = [unpack(vector) for _, vector in own]
    table = np.stack(vectors) if vectors else np.zeros((0, WIDTH), dtype=np.float32)
    chosen = [own[row][0] for row in choose_candidates(vector, table, most=CANDIDATES_MAX // 2)]
    if uses_donors:
        key = f"{zone.pk}|{shape}"
        listed = _listed.get(key, now=now, read=lambda: _DonorList(zone.pk, shape))
        is_other = (listed.owners != organisation.pk) & (listed.passes >= passes)
        others = np.flatnonzero(is_other)
        most = CANDIDATES_MAX - len(chosen)
        rows = choose_candidates(vector, listed.vectors[others], most=most)
        chosen += [listed.ids[others[row]] for row in rows]
    found = Donor.objects.select_related("job", "artifact").in_bulk(chosen)
    # The list may be from before a withdrawal.
    given = filter_given(Donor.objects.filter(pk__in=chosen)).values_list("pk", flat=True)
    mine_or_given = {pk for pk, _ in own} | set(given)
    return [found[pk] for pk in chosen if pk in found and pk in mine_or_given]


def is_usable(donor: Donor, *, organisation: Organisation, uses_donors: bool) -> bool:
    """Whether an organisation's job may begin with a donor now."""
    found = Donor.objects.filter(pk=donor.pk)
    if donor.organisation_id == organisation.pk:
        return found.exists()
    return uses_donors and filter_given(found).exists()
