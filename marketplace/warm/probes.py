"""Asking a warm node what the base and a few adapters lose on a data set's first rows.

The question travels with the node's plan, beside its slices, and is answered over HTTPS. It is
answered within ``PROBE_S`` or not at all: the job is then sold cold.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Max, QuerySet

from marketplace.common.errors import NotFound
from marketplace.common.locks import advisory_lock
from marketplace.fleet.models import Node, Zone
from marketplace.fleet.selectors import build_base_model_ref, is_node_silent, list_trusted_nodes
from marketplace.jobs.models import Artifact, Dataset
from marketplace.jobs.plans import add_to_plan
from marketplace.warm.consents import may_use_donors
from marketplace.warm.donors import is_usable
from marketplace.warm.embeddings import read_first_rows
from marketplace.warm.locks import lock_probe
from marketplace.warm.models import Donor, Probe
from workers.protocol.job_spec import AdapterSpec, BlobRef, DataFormat
from workers.protocol.probes import PROBE_ROWS_MAX, ProbeAdapter, ProbeResult, ProbeSpec
from workers.protocol.record_messages import write_messages
from workers.protocol.records import Row
from workers.protocol.wire import from_json

#: Seconds a node has for its answer.
PROBE_S = 10.0
#: First rows of a data set that those of a probe are drawn from; read in some milliseconds.
DRAWN_FROM = 1_000
#: Characters of all rows of a probe: it travels with a plan.
ROWS_CHARS_MAX = 64_000
BLOB_PATH = "/internal/v1/probes/{token}/blobs/{name}"
_TOKEN_BYTES = 32


def ask_probe(
    *,
    zone: Zone,
    dataset: Dataset,
    shape: str,
    sequence_length: int,
    donors: Sequence[tuple[Donor, float]],
    now: datetime,
    verified_only: bool = False,
) -> Probe | None:
    """Ask a warm node of the zone; ``None``: there is none, or the rows cannot be sent.

    Parameters
    ----------
    donors
        Each with what its second matrices are multiplied by.
    verified_only
        Ask a node of a verified provider: it sees the rows.
    """
    rows = build_probe_rows(draw_rows(read_first_rows(dataset, DRAWN_FROM)))
    node = _find_warm_node(list_trusted_nodes(zone, verified_only=verified_only), now)
    if node is None or not rows:
        return None
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    expires_at = now + timedelta(seconds=PROBE_S)
    spec = ProbeSpec(
        token=token,
        expires_at=expires_at.timestamp(),
        base_model=build_base_model_ref(zone),
        data_format=DataFormat.CHAT if dataset.format == DataFormat.CHAT else _plain(dataset),
        rows=tuple(rows),
        sequence_length=sequence_length,
        adapters=tuple(_build_adapter(donor, scale, token) for donor, scale in donors),
    )
    # A dispatch at the same moment would make a plan without the question.
    with advisory_lock("jobs.dispatch", zone.pk, wait=True):
        probe = Probe.objects.create(
            token=token,
            zone=zone,
            dataset=dataset,
            node=node,
            shape=shape,
            artifact_ids=[donor.pk for donor, _ in donors],
            asked_at=now,
            expires_at=expires_at,
        )
        add_to_plan(zone, node, "probes", spec, now=now)
    return probe


def draw_rows(rows: Sequence[Row]) -> list[Row]:
    """Rows of a probe, drawn: the first ones may be alike, or made to please."""
    at = secrets.SystemRandom().sample(range(len(rows)), min(PROBE_ROWS_MAX, len(rows)))
    return [rows[index] for index in sorted(at)]


def _plain(dataset: Dataset) -> DataFormat:
    is_text = dataset.format == DataFormat.TEXT
    return DataFormat.TEXT if is_text else DataFormat.COMPLETION


def build_probe_rows(rows: Sequence[Row]) -> list[str]:
    """Rows as JSON lines, from any format of file."""
    lines: list[str] = []
    left = ROWS_CHARS_MAX
    for row in rows:
        line = _write_row(row)
        left -= len(line)
        if left < 0:
            break
        lines.append(line)
    return lines


def _write_row(row: Row) -> str:
    if row.format == DataFormat.CHAT:
        written = {"messages": write_messages(row.segments)}
        return json.dumps(written | ({"tools": json.loads(row.tools)} if row.tools else {}))
    if row.format == DataFormat.TEXT:
        return json.dumps({"text": "".join(part.text for part in row.segments)})
    prompt = "".join(part.text for part in row.segments if not part.train)
    answer = "".join(part.text for part in row.segments if part.train)
    return json.dumps({"prompt": prompt, "completion": answer})


def _find_warm_node(online: QuerySet[Node], now: datetime) -> Node | None:
    """A node that is there, with the base model resident; the one asked longest ago first."""
    nodes = [node for node in online if not is_node_silent(node, now)]
    latest = Probe.objects.filter(node__in=nodes).values("node").annotate(at=Max("asked_at"))
    asked = dict(latest.values_list("node", "at"))
    earliest = datetime.min.replace(tzinfo=now.tzinfo)
    return min(nodes, key=lambda node: (asked.get(node.pk, earliest), node.pk), default=None)


def _build_adapter(donor: Donor, scale: float, token: str) -> ProbeAdapter:
    artifact = donor.artifact
    url = BLOB_PATH.format(token=token, name=artifact.pk)
    return ProbeAdapter(
        name=artifact.pk,
        blob=BlobRef(url=url, sha256=artifact.sha256, bytes=artifact.bytes),
        spec=from_json(AdapterSpec, donor.job.spec["adapter"]),
        scale=scale,
    )


def record_probe_result(*, node: Node, result: ProbeResult, now: datetime) -> None:
    """Take a node's answer, once and in time; of any other nothing is stored.

    Raises
    ------
    NotFound
        ``unknown_probe``: nothing of the kind was asked of this node.
    """
    with transaction.atomic():
        probe = lock_probe(token=result.token, node=node)
        if probe is None:
            raise NotFound("unknown_probe", "This node was not asked that.")
        if probe.answered_at is not None or now > probe.expires_at:
            return
        by_name = {loss.name: loss.loss for loss in result.losses}
        probe.losses = [_check_loss(by_name.get(name)) for name in probe.artifact_ids]
        probe.base_loss = _check_loss(result.base_loss)
        probe.seconds = result.seconds
        probe.answered_at = now
        probe.save(update_fields=["losses", "base_loss", "seconds", "answered_at"])


def _check_loss(loss: float | None) -> float | None:
    return loss if loss is not None and math.isfinite(loss) and loss >= 0 else None


def find_probe_blob(*, node: Node, token: str, name: str, now: datetime) -> Artifact:
    """An adapter that a node is to probe now; one withdrawn since it was asked is not served.

    Raises
    ------
    NotFound
        ``unknown_blob``.
    """
    probes = Probe.objects.filter(token=token, node=node, expires_at__gt=now, answered_at=None)
    probe = probes.select_related("dataset__organisation").first()
    known = probe is not None and name in probe.artifact_ids
    donor = Donor.objects.select_related("artifact").filter(pk=name).first() if known else None
    if probe is None or donor is None or not _may_be_probed(donor, probe.dataset):
        raise NotFound("unknown_blob", f"This probe has no file {name[:80]!r}.")
    return donor.artifact


def _may_be_probed(donor: Donor, dataset: Dataset) -> bool:
    return is_usable(donor, organisation=dataset.organisation, uses_donors=may_use_donors(dataset))
