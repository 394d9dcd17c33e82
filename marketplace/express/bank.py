"""The prompt bank: candidates for jobs that look up their start, and prompts that come and go.

Only prompts whose owners consented are stored, as numbers alone: no row, no text, no name. A prompt
that spells out words of its owner's rows, that is not sound, or that the bank has already, stays
out. Its owner can withdraw it, and its values are gone then.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import partial
from typing import BinaryIO, cast

import numpy as np
from django.core.files.base import ContentFile
from django.db import IntegrityError, transaction
from django.db.models import F, Q, QuerySet

from marketplace.accounts.models import Organisation, User
from marketplace.checks.scores import exclude_unmeasured, list_refuted_jobs
from marketplace.common.bounded_cache import remember
from marketplace.common.errors import NotFound
from marketplace.express.locks import lock_present_prompts
from marketplace.express.models import BankConsent, BankPrompt, LookupRecord, Sharing
from marketplace.express.prompt_files import UnsoundPrompt, build_prompts_file, read_adapter_prompt
from marketplace.express.task_features import WIDTH, Features, compute_features, rank_by_likeness
from marketplace.fleet.models import Zone
from marketplace.jobs.models import Artifact, CandidatePrompts, Dataset, Job, JobStatus, Slice
from workers.protocol.job_spec import AdapterKind, DataFormat
from workers.protocol.records import LineError, read_rows

log = logging.getLogger(__name__)

#: A job is offered prompts for this time after it is opened.
LOOKED_FOR = timedelta(hours=1)
#: Jobs that ended longer ago are not looked at any more.
RECORDED_FOR = timedelta(days=1)
#: Prompts that a job's lookup compares at most.
CANDIDATES_MAX = 60
#: Share of the time left to a job that its lookup may take, and seconds at most.
LOOKUP_SHARE = 0.2
LOOKUP_MAX_S = 60.0
#: Tokens of a row in succession that no stored prompt may spell out.
COPIED_TOKENS_MAX = 3
#: Most that a start can save: a guess among all tokens of any vocabulary loses less.
GAIN_MAX = 20.0
#: Jobs of one run; the next takes the rest.
BATCH_LIMIT = 50


def name_base_model(zone: Zone) -> str:
    """What zones that share a bank have in common."""
    return f"{zone.base_model_source}@{zone.base_model_revision or ''}"


def get_sharing(organisation: Organisation) -> Sharing:
    """What an organisation agreed to."""
    consent = BankConsent.objects.filter(organisation=organisation).first()
    return Sharing.NOBODY if consent is None else Sharing(consent.sharing)


def give_consent(
    *, organisation: Organisation, sharing: Sharing, given_by: User | None, now: datetime
) -> BankConsent:
    """Set who may start from an organisation's prompts, those in the bank included.

    ``NOBODY`` withdraws all of them; ``PRIVATE`` takes them from others' lookups to come.
    """
    with transaction.atomic():
        consent, _ = BankConsent.objects.update_or_create(
            organisation=organisation,
            defaults={"sharing": sharing, "given_by": given_by, "given_at": now},
        )
        own = BankPrompt.objects.filter(organisation=organisation, withdrawn_at__isnull=True)
        if sharing == Sharing.NOBODY:
            withdraw_prompts(own, now=now)
        else:
            if sharing == Sharing.PRIVATE:
                _drop_candidates(_list_candidates(own))
            own.update(is_shared=sharing == Sharing.EVERYBODY)
    return consent


def withdraw_prompt(*, organisation: Organisation, prompt_id: str, now: datetime) -> None:
    """Take a prompt out of the bank for good; twice is no error.

    Raises
    ------
    NotFound
        ``unknown_prompt``: the organisation has no such prompt.
    """
    own = BankPrompt.objects.filter(organisation=organisation, pk=prompt_id)
    if not own.exists():
        raise NotFound("unknown_prompt", "You have no such prompt in the bank.", param="prompt_id")
    with transaction.atomic():
        withdraw_prompts(own.filter(withdrawn_at__isnull=True), now=now)


def withdraw_prompts(prompts: QuerySet[BankPrompt], *, now: datetime) -> None:
    """Delete the values of prompts, in files of lookups that have not begun as well.

    Those jobs get other candidates, or begin without. Call in a transaction.
    """
    ids = list(prompts.values_list("pk", flat=True))
    found = BankPrompt.objects.filter(pk__in=lock_present_prompts(ids))
    files = _list_candidates(found)
    found.update(withdrawn_at=now, values=b"")
    _drop_candidates(files)


def _list_candidates(prompts: QuerySet[BankPrompt]) -> list[CandidatePrompts]:
    """Files in which these may be: all of their base models that lookups still need."""
    models = set(prompts.values_list("base_model", flat=True))
    files = CandidatePrompts.objects.select_related("job__zone")
    return [one for one in files if name_base_model(one.job.zone) in models]


def _drop_candidates(files: Iterable[CandidatePrompts]) -> int:
    """Delete files of candidates once this is committed; how many."""
    dropped = 0
    for one in files:
        transaction.on_commit(partial(one.file.storage.delete, one.file.name), robust=True)
        one.delete()
        dropped += 1
    return dropped


def drop_used_candidates() -> int:
    """Delete the candidates of jobs that have made a step or ended: no lookup needs them."""
    is_used = ~Q(job__status__in=Job.ACTIVE) | Q(job__step__gt=0)
    used = CandidatePrompts.objects.filter(is_used)
    with transaction.atomic():
        return _drop_candidates(used.order_by("pk")[:BATCH_LIMIT])


def prepare_lookups(*, now: datetime) -> int:
    """Choose candidates for jobs that look up their start and have none yet; how many jobs."""
    waiting = Job.objects.filter(
        status=JobStatus.QUEUED,
        started_at__isnull=True,
        terms__adapter__looks_up=True,
        candidate_prompts__isnull=True,
        created_at__gt=now - LOOKED_FOR,
    ).select_related("zone", "dataset")
    return sum(
        prepare_lookup(job=job, task=describe_dataset(job.dataset), now=now)
        for job in waiting[:BATCH_LIMIT]
    )


def prepare_lookup(
    *, job: Job, task: Features, now: datetime, most_s: float = LOOKUP_MAX_S
) -> bool:
    """Store the candidates of one job's lookup, once; false where the bank has none for it.

    ``task`` is what its data set is about, ``most_s`` what the lookup may take whatever is left.
    """
    tokens = job.terms.adapter.virtual_tokens
    chosen = choose_candidates(job=job, task=task, tokens=tokens)
    if not chosen:
        return False
    content = build_prompts_file(
        {prompt.pk: bytes(prompt.values) for prompt in chosen}, shape=(tokens, chosen[0].width)
    )
    left_s = max(0.0, (job.deadline_at - now).total_seconds())
    candidates = CandidatePrompts(
        job=job,
        sha256=hashlib.sha256(content).hexdigest(),
        bytes=len(content),
        budget_s=min(most_s, LOOKUP_SHARE * left_s),
        created_at=now,
    )
    candidates.file.save("prompts", ContentFile(content), save=False)
    ids = [one.pk for one in chosen]
    try:
        with transaction.atomic():
            if len(lock_present_prompts(ids)) < len(ids):
                # One was withdrawn since it was read; the next run chooses again.
                candidates.file.delete(save=False)
                return False
            candidates.save(force_insert=True)
            BankPrompt.objects.filter(pk__in=ids).update(offered=F("offered") + 1)
    except IntegrityError:
        # Another run was quicker, with a file of its own.
        name = candidates.file.name
        if not CandidatePrompts.objects.filter(job=job, file=name).exists():
            candidates.file.delete(save=False)
    return True


def choose_candidates(*, job: Job, task: Features, tokens: int) -> list[BankPrompt]:
    """The prompts of the most similar tasks: shared ones, and those of the job's organisation."""
    allowed = _list_allowed(job.organisation_id, job.zone, tokens)
    known = list(allowed.order_by("pk").values_list("pk", "features"))
    if not known:
        return []
    table = np.stack([read_features(features) for _, features in known])
    order = rank_by_likeness(task, table)[:CANDIDATES_MAX]
    found = BankPrompt.objects.in_bulk([known[place][0] for place in order])
    # Withdrawn since: its values are gone.
    return [found[known[i][0]] for i in order if found[known[i][0]].withdrawn_at is None]


def count_candidates(*, organisation_id: str, zone: Zone, tokens: int) -> int:
    """How many prompts a lookup would compare, the job's own left out."""
    return _list_allowed(organisation_id, zone, tokens)[:CANDIDATES_MAX].count()


def count_losses(candidates: int) -> int:
    """Find the most losses that a node computes for candidates and the job's own prompt.

    Of ``workers.training.prompt_lookup``: 1, 4 and 16 rows; the own prompt survives every stage.
    """
    first = candidates + 1
    second = min(first, max(15, -(-first // 2)) + 1)
    return first + 3 * second + 12 * min(second, 16)


def _list_allowed(organisation_id: str, zone: Zone, tokens: int) -> QuerySet[BankPrompt]:
    """Prompts that an organisation's jobs may start from."""
    return BankPrompt.objects.filter(
        Q(is_shared=True) | Q(organisation=organisation_id),
        base_model=name_base_model(zone),
        virtual_tokens=tokens,
        withdrawn_at__isnull=True,
    )


#: Features remembered; one data set is asked for again and again, and never changes.
_KEPT = 1024
_known: dict[str, Features] = {}


def describe_dataset(dataset: Dataset) -> Features:
    """What a data set is about; see ``task_features``."""
    found = _known.get(dataset.pk)
    if found is None:
        found = remember(_known, dataset.pk, _read_features(dataset), most=_KEPT)
    return found


def _read_features(dataset: Dataset) -> Features:
    with dataset.file.open("rb") as file:
        rows = read_rows(
            cast(BinaryIO, file),
            format=DataFormat(dataset.format),
            skip_lines=frozenset(dataset.faulty_lines),
        )
        return compute_features(row for row in rows if not isinstance(row, LineError))


def record_finished_jobs(*, now: datetime) -> int:
    """Note what lookups found, and take the prompts of consenting owners in; how many jobs.

    A job that ended early waits until its money is settled: another node may measure its result.
    """
    drop_used_candidates()
    _withdraw_refuted(now=now)
    known = LookupRecord.objects.values("job_id")
    finished = (
        Job.objects.filter(
            status=JobStatus.SUCCEEDED,
            terms__adapter__kind=str(AdapterKind.SOFT_PROMPT),
            finished_at__gt=now - RECORDED_FOR,
        )
        .exclude(pk__in=known)
        .exclude(stopped_early=True, settled_at__isnull=True)
        .select_related("zone", "dataset", "organisation")
        .order_by("finished_at", "pk")
    )
    recorded = 0
    for job in exclude_unmeasured(finished)[:BATCH_LIMIT]:
        try:
            recorded += record_finished_job(job=job, now=now)
        except Exception:
            # One job must not keep the others waiting.
            log.exception("the prompt of job %s could not be recorded; it is tried again", job.pk)
    return recorded


def _withdraw_refuted(*, now: datetime) -> None:
    """Withdraw prompts of jobs whose reported loss another node refuted."""
    stored = BankPrompt.objects.filter(withdrawn_at__isnull=True, job_id__in=list_refuted_jobs())
    if stored.exists():
        with transaction.atomic():
            withdraw_prompts(stored, now=now)


def record_finished_job(*, job: Job, now: datetime) -> bool:
    """Note one job's lookup and take its prompt in, once; false when it was done before."""
    lookup, copied = _load_figures(job)
    with transaction.atomic():
        record, is_new = LookupRecord.objects.get_or_create(
            job_id=job.pk, defaults={"lookup": lookup, "recorded_at": now}
        )
        if not is_new:
            return False
        if lookup is not None and lookup["prompt_id"]:
            _record_hit(record, job, lookup)
        record.left_out = _take_in(job, copied=copied, now=now)
        record.save(update_fields=["left_out", "started_from"])
    return True


def _record_hit(record: LookupRecord, job: Job, lookup: dict[str, float]) -> None:
    """Count a start from a prompt of the bank, if the job had it among its candidates."""
    prompt = BankPrompt.objects.filter(
        Q(is_shared=True) | Q(organisation=job.organisation_id),
        pk=lookup["prompt_id"],
        base_model=name_base_model(job.zone),
    ).first()
    if prompt is None:
        return
    record.started_from = prompt
    # As a node says it: what no loss can differ by is not counted.
    gain = min(max(0.0, lookup["own_score"] - lookup["score"]), GAIN_MAX)
    BankPrompt.objects.filter(pk=prompt.pk).update(hits=F("hits") + 1, gain=F("gain") + gain)


def _take_in(job: Job, *, copied: int | None, now: datetime) -> str:
    """Put a job's prompt into the bank; why not, or nothing."""
    sharing = get_sharing(job.organisation)
    if sharing == Sharing.NOBODY:
        return "Its owner did not consent."
    if job.verified_only:
        return "It goes to nodes of verified providers only."
    if job.pk in list_refuted_jobs():
        return "Another node found a higher loss than was reported."
    if copied is None or copied > COPIED_TOKENS_MAX:
        return "It spells out words of its owner's rows."
    if not _has_learnt(job):
        return "It has no lower loss on held-out rows than before."
    try:
        with Artifact.objects.get(job=job).file.open("rb") as file:
            prompt = read_adapter_prompt(file)
    except UnsoundPrompt as refusal:
        return f"It is not sound: {refusal}."
    tokens, width = prompt.values.shape
    try:
        with transaction.atomic():
            BankPrompt.objects.create(
                organisation_id=job.organisation_id,
                job_id=job.pk,
                base_model=name_base_model(job.zone),
                is_shared=sharing == Sharing.EVERYBODY,
                virtual_tokens=tokens,
                width=width,
                values=prompt.to_bytes(),
                sha256=prompt.sha256,
                features=describe_dataset(job.dataset).astype("<f4").tobytes(),
                created_at=now,
            )
    except IntegrityError:
        return "The bank has the same prompt."
    return ""


def _has_learnt(job: Job) -> bool:
    before, after = job.valid_loss_before, job.valid_loss
    return before is None or after is None or after < before


def _load_figures(job: Job) -> tuple[dict[str, float] | None, int | None]:
    """What the job's slices said of its lookup, and of words that its prompt spells out."""
    lookup, copied = None, None
    results = Slice.objects.filter(job=job, result__isnull=False).order_by("closed_at", "pk")
    for result in results.values_list("result", flat=True):
        lookup = result.get("lookup") or lookup
        copied = result.get("copied_tokens")
    return lookup, copied


def read_features(content: bytes) -> Features:
    """Features as they are stored."""
    features = np.frombuffer(bytes(content), dtype="<f4")
    return features if len(features) == WIDTH else np.zeros(WIDTH, dtype=np.float32)
