"""Asking a warm node what the base and a few adapters lose on a data set's first rows.

The question travels with the node's plan, beside its slices, and is answered over HTTPS. It is
answered within ``PROBE_S`` or not at all: the job is then sold cold.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta

from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import build_base_model_ref
from marketplace.jobs.errands import build_blob_ref, hand_out_errand
from marketplace.jobs.models import Dataset, ErrandKind
from marketplace.warm.embeddings import read_first_rows
from marketplace.warm.models import Donor, Probe
from workers.protocol.job_spec import DataFormat
from workers.protocol.probes import PROBE_ROWS_MAX, ProbeAdapter, ProbeTask
from workers.protocol.record_messages import write_messages
from workers.protocol.records import Row
from workers.protocol.wire import to_json

#: Seconds a node has for its answer.
PROBE_S = 10.0
#: First rows of a data set that those of a probe are drawn from; read in some milliseconds.
DRAWN_FROM = 1_000
#: Characters of all rows of a probe: it travels with a plan.
ROWS_CHARS_MAX = 64_000


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
    if not rows:
        return None
    probe = Probe(
        kind=ErrandKind.PROBE,
        zone=zone,
        verified_only=verified_only,
        dataset=dataset,
        shape=shape,
        artifact_ids=[donor.pk for donor, _ in donors],
        created_at=now,
        gives_up_at=now + timedelta(seconds=PROBE_S),
    )
    task = ProbeTask(
        base_model=build_base_model_ref(zone),
        data_format=DataFormat.CHAT if dataset.format == DataFormat.CHAT else _plain(dataset),
        rows=tuple(rows),
        sequence_length=sequence_length,
        adapters=tuple(_build_adapter(donor, scale, probe) for donor, scale in donors),
    )
    probe.task = to_json(task)
    probe.save()
    if not hand_out_errand(errand_id=probe.pk, now=now):
        probe.delete()
        return None
    probe.refresh_from_db()
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


def _build_adapter(donor: Donor, scale: float, probe: Probe) -> ProbeAdapter:
    artifact = donor.artifact
    return ProbeAdapter(
        name=artifact.pk,
        blob=build_blob_ref(probe, artifact.pk, artifact),
        spec=donor.job.terms.adapter,
        scale=scale,
    )
