"""Asking a node of another provider to train a few steps again, or to measure a result, with its
next plan."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import QuerySet

from marketplace.accounts.selectors import share_members
from marketplace.checks import locks
from marketplace.checks.models import CheckStatus, SpotCheck
from marketplace.checks.weights import LONGEST, estimate_time, take_end
from marketplace.common.errors import NotFound
from marketplace.common.locks import advisory_lock
from marketplace.fleet.models import Node
from marketplace.fleet.selectors import is_node_silent, list_trusted_nodes
from marketplace.jobs.models import Artifact, Dataset, MetricPoint, SliceStatus
from marketplace.jobs.plans import add_to_plan, build_job_spec
from marketplace.jobs.selectors import DATASET_BLOB, VALIDATION_BLOB, Blob, find_idlest_node
from workers.protocol.checks import STEPS_MAX, CheckSpec
from workers.protocol.job_spec import BlobRef, CheckpointRef, WarmStart

#: Within which a checker answers: it fetches the data and trains a few steps.
ANSWER_WITHIN = timedelta(minutes=5)
#: A node stores a checkpoint within that; of one that does not, losses alone are compared.
WEIGHTS_WITHIN = timedelta(minutes=5)
#: A check that no node could take is given up after that.
GIVEN_UP_AFTER = timedelta(minutes=30)
#: The same of a result: its owner waits for the money.
SCORED_WITHIN, SCORE_GIVEN_UP_AFTER = timedelta(minutes=2), timedelta(minutes=6)
ATTEMPTS_MAX = 3
#: Steps that the node reported, without which there is nothing to compare.
CLAIMS_LEAST = 2
CHECKPOINT_BLOB, ADAPTER_BLOB = "checkpoint", "adapter"
BLOB_PATH = "/internal/v1/checks/{token}/blobs/{name}"


def ask_checks(*, now: datetime) -> int:
    """Ask for every check whose steps are reported, and give up those that no node takes."""
    _return_unanswered(now)
    asked = 0
    waiting = SpotCheck.objects.filter(status=CheckStatus.WAITING).order_by("created_at", "pk")
    for check_id in list(waiting.values_list("pk", flat=True)):
        asked += _ask(check_id, now)
    return asked


def _return_unanswered(now: datetime) -> None:
    """Give checks to another node where the checker fell silent."""
    late = SpotCheck.objects.filter(status=CheckStatus.ASKED, expires_at__lte=now)
    late.filter(attempts__lt=ATTEMPTS_MAX).update(status=CheckStatus.WAITING)
    late.update(status=CheckStatus.UNANSWERED)


def _ask(check_id: str, now: datetime) -> bool:
    with transaction.atomic():
        check = locks.lock_check(pk=check_id, status=CheckStatus.WAITING)
        if check is None:
            return False
        if check.claimed_score is not None:
            return _ask_for_score(check, now)
        claimed = load_claims(check)
        is_over = check.slice.status != SliceStatus.OPEN
        steps = [int(step) for step, _ in claimed]
        # Weights are compared with what the node stores next; without it, losses are.
        has_end = take_end(check)
        enough = check.from_step + STEPS_MAX
        if check.end_step is not None:
            enough = min(enough, check.end_step)
        if len(steps) < CLAIMS_LEAST or (steps[-1] < enough and not is_over):
            if is_over and len(steps) < CLAIMS_LEAST:
                _give_up(check)
            return False
        waited = now - check.created_at >= WEIGHTS_WITHIN
        if not (has_end or is_over or waited):
            return False
        checker = find_checker(check, now=now)
        if checker is None:
            if now - check.created_at > GIVEN_UP_AFTER:
                _give_up(check)
            return False
        check.claimed = claimed
        within, until_step = ANSWER_WITHIN, steps[-1]
        if check.end_step is not None:
            within = max(within, estimate_time(check, checker, until_step=check.end_step))
            until_step = check.end_step
        if within > LONGEST:
            within, until_step, check.end_step = ANSWER_WITHIN, steps[-1], None
        return _hand_over(check, checker, until_step=until_step, within=within, now=now)


def _ask_for_score(check: SpotCheck, now: datetime) -> bool:
    """Ask a node to measure a result. Call while holding the check."""
    checker = find_checker(check, now=now)
    is_late = now - check.created_at > SCORE_GIVEN_UP_AFTER
    if checker is None or is_late:
        if is_late:
            _give_up(check)
        return False
    return _hand_over(check, checker, until_step=0, within=SCORED_WITHIN, now=now)


def _hand_over(
    check: SpotCheck, checker: Node, *, until_step: int, within: timedelta, now: datetime
) -> bool:
    """Put a check into its checker's plan; false where the node has none."""
    check.checker = checker  # pyright: ignore[reportAttributeAccessIssue]
    check.status = CheckStatus.ASKED
    check.attempts += 1
    check.asked_at, check.expires_at = now, now + within
    spec = _build_spec(check, until_step=until_step)
    # A dispatch at the same moment would make a plan without the question.
    with advisory_lock("jobs.dispatch", check.zone_id, wait=True):
        if not add_to_plan(check.zone, checker, "checks", spec, now=now):
            return False
        check.save()
    return True


def _give_up(check: SpotCheck) -> None:
    check.status = CheckStatus.UNANSWERED
    check.save(update_fields=["status"])


def load_claims(check: SpotCheck) -> list[list[float]]:
    """Steps and losses that the node itself reported, each step once."""
    points = MetricPoint.objects.filter(
        slice_id=check.slice_id,
        step__gt=check.from_step,
        step__lte=check.from_step + STEPS_MAX,
        train_loss__isnull=False,
    )
    claims = dict(points.order_by("pk").values_list("step", "train_loss"))
    return [[step, claims[step]] for step in sorted(claims)]


def find_checker(check: SpotCheck, *, now: datetime) -> Node | None:
    """A node that is there, of a provider that has no part in the check; the idlest one.

    It sees the job's data, and so is one that the job's owner would have it run on. A result is
    measured by one that is drawn, of a verified provider if any is there: owners can bring such
    checks about, and nodes that are kept idle for them must not get them.
    """
    first = check.confirms
    taken = {check.node.provider_id}
    if first is not None and first.checker is not None:
        taken.add(first.checker.provider_id)
    there = list_trusted_nodes(check.zone, verified_only=check.job.verified_only)
    others = _leave_out_friends(check, there.exclude(provider__in=taken))
    if check.claimed_score is None:
        return find_idlest_node(others, last_asked_id=check.checker_id, now=now)
    heard = [node for node in others if not is_node_silent(node, now)]
    verified = [node for node in heard if node.provider.verified_at is not None]
    return min(
        verified or heard,
        key=lambda node: (node.pk == check.checker_id, _draw(f"{check.token}\0{node.pk}")),
        default=None,
    )


def _draw(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def _leave_out_friends(check: SpotCheck, nodes: QuerySet[Node]) -> list[Node]:
    """Nodes of providers without a person in common with the job's owner or the node's provider."""
    parties = (check.job.organisation_id, check.node.provider.organisation.pk)
    there = list(nodes.select_related("provider__organisation", "zone"))
    owners = {node.provider.organisation.pk for node in there}
    strangers = {
        owner for owner in owners if not any(share_members(owner, party) for party in parties)
    }
    return [node for node in there if node.provider.organisation.pk in strangers]


def _build_spec(check: SpotCheck, *, until_step: int) -> CheckSpec:
    job = check.job
    resume_from = None
    if check.file:
        url = BLOB_PATH.format(token=check.token, name=CHECKPOINT_BLOB)
        blob = BlobRef(url=url, sha256=check.sha256, bytes=check.bytes)
        resume_from = CheckpointRef(blob=blob, step=check.from_step)
    blob_path = BLOB_PATH.replace("{token}", check.token)
    spec = build_job_spec(check.zone, job, blob_path=blob_path, job_id=check.pk)
    scores = check.claimed_score is not None
    if scores:
        result = Artifact.objects.only("sha256", "bytes").get(job=job)
        url = blob_path.format(name=ADAPTER_BLOB)
        start = WarmStart(adapter=BlobRef(url=url, sha256=result.sha256, bytes=result.bytes))
        spec = replace(spec, warm_start=start)
    assert check.expires_at is not None
    return CheckSpec(
        token=check.token,
        expires_at=check.expires_at.timestamp(),
        job=spec,
        scores_start=scores,
        until_step=until_step,
        resume_from=resume_from,
        sketch_seed="" if check.end_step is None else check.sketch_seed,
    )


def find_check_blob(*, node: Node, token: str, name: str, now: datetime) -> Blob:
    """A file that a node needs for a check that it is to answer now.

    Raises
    ------
    NotFound
        ``unknown_blob``.
    """
    check = (
        SpotCheck.objects.select_related("job__dataset", "job__validation_dataset")
        .filter(token=token, checker=node, status=CheckStatus.ASKED, expires_at__gt=now)
        .first()
    )
    if check is not None:
        files: Mapping[str, Dataset | SpotCheck | Artifact | None] = {
            DATASET_BLOB: check.job.dataset,
            VALIDATION_BLOB: check.job.validation_dataset,
            CHECKPOINT_BLOB: check if check.file else None,
            ADAPTER_BLOB: None if check.claimed_score is None else check.job.artifact,
        }
        found = files.get(name)
        if found is not None:
            return Blob(file=found.file, sha256=found.sha256, bytes=found.bytes)
    raise NotFound("unknown_blob", f"This check has no file {name[:80]!r}.")
