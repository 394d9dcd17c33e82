"""Building the plans that nodes get."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from marketplace.fleet.models import Node, Zone
from marketplace.fleet.notify import notify_nodes
from marketplace.fleet.selectors import (
    build_base_model_ref,
    get_work_costs,
    slot_at,
    slot_ends_at,
    slot_starts_at,
)
from marketplace.jobs.models import (
    Artifact,
    CandidatePrompts,
    Checkpoint,
    Dataset,
    Job,
    NodePlan,
    Slice,
)
from marketplace.jobs.selectors import DATASET_BLOB, PROMPTS_BLOB, START_BLOB, VALIDATION_BLOB
from workers.protocol.errands import ErrandSpec
from workers.protocol.job_spec import (
    BlobRef,
    CheckpointRef,
    DataFormat,
    JobSpec,
    PromptLookup,
    WarmStart,
)
from workers.protocol.messages import SliceSpec, SlotPlan
from workers.protocol.wire import to_json

BLOB_PATH = "/internal/v1/leases/{lease_token}/blobs/{name}"


def record_plans(
    *,
    zone: Zone,
    nodes: Sequence[Node],
    slot: int,
    leased: Mapping[str, Sequence[str]],
    now: datetime,
) -> list[NodePlan]:
    """Store the plans that differ from the last ones and call the nodes that wait for them.

    Call under the zone's dispatch lock.

    A node that stays idle gets no further plan.

    Parameters
    ----------
    leased
        Lease tokens of what each node is to run in the slot, by its id.
    """
    latest = _load_latest_plans(zone)
    changed: dict[str, int] = {}
    for node in nodes:
        tokens, sent = sorted(leased.get(node.pk, ())), latest.get(node.pk)
        same_slot = sent is not None and sent.slot == slot
        if (sent.lease_tokens if sent else []) == tokens and (same_slot or not tokens):
            continue
        changed[node.pk] = sent.revision + 1 if sent and same_slot else 1
    if not changed:
        return []
    slices = _load_slices(token for node_id in changed for token in leased.get(node_id, ()))
    checkpoints = _load_newest_checkpoints(held.job_id for own in slices.values() for held in own)
    plans = NodePlan.objects.bulk_create(
        NodePlan(
            node_id=node_id,
            slot=slot,
            revision=revision,
            plan=to_json(
                _build_slot_plan(
                    zone, node_id, slot, slices[node_id], checkpoints=checkpoints, revision=revision
                )
            ),
            lease_tokens=sorted(leased.get(node_id, ())),
            ends_at=slot_ends_at(zone, slot),
            made_at=now,
        )
        for node_id, revision in changed.items()
    )
    notify_nodes(changed)
    return plans


def add_to_plan(zone: Zone, node: Node, errand: ErrandSpec, *, now: datetime) -> bool:
    """Give the node's plan of this slot again with a further errand.

    Call under the dispatch lock. ``False``: the slot's dispatch, which names the leases that go on
    into it, is still to come; or the clock was set back.
    """
    slot = slot_at(zone, now)
    latest = NodePlan.objects.filter(node=node).order_by("-slot", "-revision").first()
    if latest is not None and latest.slot == slot:
        plan, tokens, revision = latest.plan, latest.lease_tokens, latest.revision + 1
    else:
        if latest is not None and (latest.lease_tokens or latest.slot > slot):
            return False
        tokens, revision = [], 1
        empty = SlotPlan(
            node_id=node.pk,
            slot=slot,
            starts_at=slot_starts_at(zone, slot).timestamp(),
            ends_at=slot_ends_at(zone, slot).timestamp(),
        )
        plan = to_json(empty)
    # The node may not have fetched the last plan; it does each errand once.
    errands = [one for one in plan["errands"] if one["expires_at"] > now.timestamp()]
    NodePlan.objects.create(
        node=node,
        slot=slot,
        revision=revision,
        plan=plan | {"revision": revision, "errands": [*errands, to_json(errand)]},
        lease_tokens=tokens,
        ends_at=slot_ends_at(zone, slot),
        made_at=now,
    )
    notify_nodes([node.pk])
    return True


def _load_slices(lease_tokens: Iterable[str]) -> defaultdict[str, list[Slice]]:
    """Slices with all that their plans are made from, by node."""
    slices: defaultdict[str, list[Slice]] = defaultdict(list)
    found = Slice.objects.filter(lease_token__in=list(lease_tokens))
    for held in found.select_related(
        "job__dataset", "job__validation_dataset", "job__candidate_prompts"
    ):
        slices[held.node_id].append(held)
    return slices


def _load_latest_plans(zone: Zone) -> dict[str, NodePlan]:
    """The plan each node was last given, by node id."""
    plans = NodePlan.objects.filter(node__zone=zone).order_by("node_id", "-slot", "-revision")
    return {plan.node_id: plan for plan in plans.distinct("node_id").defer("plan")}


def _load_newest_checkpoints(job_ids: Iterable[str]) -> dict[str, Checkpoint]:
    """Where each job would go on, by its id."""
    wanted = set(job_ids)
    stored = Checkpoint.objects.exclude(file="")
    newest = stored.filter(job__in=wanted).order_by("job_id", "-step", "-pk").distinct("job_id")
    found = {checkpoint.job_id: checkpoint for checkpoint in newest}
    resumed = Job.objects.filter(pk__in=wanted - found.keys(), terms__resumes__step__gt=0)
    begun_at = {
        job_id: terms.resumes.checkpoint_id for job_id, terms in resumed.values_list("pk", "terms")
    }
    earlier = stored.in_bulk(begun_at.values())
    return found | {job: earlier[pk] for job, pk in begun_at.items() if pk in earlier}


def _build_slot_plan(
    zone: Zone,
    node_id: str,
    slot: int,
    slices: list[Slice],
    *,
    checkpoints: Mapping[str, Checkpoint],
    revision: int,
) -> SlotPlan:
    """What a node runs in a slot, the slices in order of their opening."""
    in_order = sorted(slices, key=lambda held: (held.opened_at, held.pk))
    return SlotPlan(
        node_id=node_id,
        slot=slot,
        starts_at=slot_starts_at(zone, slot).timestamp(),
        ends_at=slot_ends_at(zone, slot).timestamp(),
        revision=revision,
        slices=tuple(
            _build_slice_spec(zone, held, checkpoints.get(held.job_id)) for held in in_order
        ),
    )


def _build_slice_spec(zone: Zone, held: Slice, checkpoint: Checkpoint | None) -> SliceSpec:
    resume_from = None
    if checkpoint is not None:
        resume_from = CheckpointRef(
            blob=BlobRef(
                url=BLOB_PATH.format(lease_token=held.lease_token, name=checkpoint.pk),
                sha256=checkpoint.sha256,
                bytes=checkpoint.bytes,
            ),
            step=checkpoint.step,
        )
    return SliceSpec(
        lease_token=held.lease_token,
        lease_expires_at=held.lease_expires_at.timestamp(),
        job=build_whole_job(
            zone, held.job, blob_path=BLOB_PATH.replace("{lease_token}", held.lease_token)
        ),
        resume_from=resume_from,
    )


def build_whole_job(zone: Zone, job: Job, *, blob_path: str, job_id: str | None = None) -> JobSpec:
    """Build a job as ``build_job_spec`` does, with what it begins with."""
    spec = build_job_spec(zone, job, blob_path=blob_path, job_id=job_id)
    return replace(
        spec,
        lookup=_build_lookup(job, blob_path),
        warm_start=_build_warm_start(job, blob_path),
    )


def build_job_spec(zone: Zone, job: Job, *, blob_path: str, job_id: str | None = None) -> JobSpec:
    """A job as a node trains it, without what it begins with.

    Parameters
    ----------
    blob_path
        Of its files; formatted with ``name``.
    job_id
        Another one than the job's, for a node that may run it twice.
    """
    validation = job.validation_dataset
    return JobSpec(
        job_id=job_id or job.pk,
        base_model=build_base_model_ref(zone),
        data_format=DataFormat(job.dataset.format),
        dataset=_build_dataset_ref(job.dataset, blob_path.format(name=DATASET_BLOB)),
        validation_dataset=(
            None
            if validation is None
            else _build_dataset_ref(validation, blob_path.format(name=VALIDATION_BLOB))
        ),
        skip_lines=tuple(job.dataset.faulty_lines),
        adapter=job.terms.adapter,
        training=job.terms.training,
        work_costs=get_work_costs(zone),
        checkpoint_every_s=zone.checkpoint_every_s,
    )


def _build_warm_start(job: Job, blob_path: str) -> WarmStart | None:
    start = job.start
    if start is None or start.dropped:
        return None
    # Its owner may have deleted it since: it stays until no job that begins with it needs it.
    adapter = Artifact.everything.only("sha256", "bytes").get(pk=start.artifact_id)
    return WarmStart(
        adapter=BlobRef(
            url=blob_path.format(name=START_BLOB),
            sha256=adapter.sha256,
            bytes=adapter.bytes,
        ),
        scale=start.scale,
        steps=start.steps,
        target_loss=start.target_loss,
    )


def _build_lookup(job: Job, blob_path: str) -> PromptLookup | None:
    # Django has no such attribute where there is no row.
    candidates: CandidatePrompts | None = getattr(job, "candidate_prompts", None)
    if candidates is None:
        return None
    url = blob_path.format(name=PROMPTS_BLOB)
    blob = BlobRef(url=url, sha256=candidates.sha256, bytes=candidates.bytes)
    return PromptLookup(prompts=blob, budget_s=candidates.budget_s)


def _build_dataset_ref(dataset: Dataset, url: str) -> BlobRef:
    return BlobRef(
        url=url,
        sha256=dataset.sha256,
        bytes=dataset.bytes,
    )
