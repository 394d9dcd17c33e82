"""What OpenAI's clients know things by, and what they are here.

Files: an upload, the data set that it became and a job's results go by ``file-`` and their ULID.
Models: a zone's name is its base model; ``ft:<zone>:<organisation>:<suffix>:<ULID>`` is the adapter
of the job with that ULID, and the ULID alone says which it is. With ``:ckpt-step-<N>`` after it, it
is the adapter as it was at the checkpoint of that step.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from marketplace.accounts.models import Organisation
from marketplace.common.errors import NotFound
from marketplace.common.ids import ULID_LENGTH
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import list_open_zones
from marketplace.jobs.models import Checkpoint, Job
from marketplace.jobs.tuned_models import TunedModel, find_tuned_model, shorten_model_name

FILE, JOB, TUNED = "file-", "ftjob-", "ft:"
_ULID = rf"[0-9a-hjkmnp-tv-z]{{{ULID_LENGTH}}}"
_FILE = re.compile(rf"file-({_ULID})")
_WORD = re.compile(r"[^A-Za-z0-9._-]+")


def name_file(row_id: str) -> str:
    """The file's name of an upload, a data set or a job."""
    return FILE + row_id[-ULID_LENGTH:]


def parse_file(file_id: str, *, param: str | None = None) -> str:
    """The ULID of a file.

    Raises
    ------
    NotFound
        ``unknown_file``: no file has such an id.
    """
    found = _FILE.fullmatch(file_id)
    if found is None:
        raise unknown_file(file_id, param=param)
    return found[1]


def unknown_file(file_id: str, *, param: str | None = None) -> NotFound:
    return NotFound("unknown_file", f"You have no file {file_id[:60]!r}.", param=param)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as a request names it."""

    zone: Zone
    #: ``None``: the base model.
    tuned: TunedModel | None = None


def name_tuned_model(job: Job, *, suffix: str, checkpoint: Checkpoint | None = None) -> str:
    """The name of a job's adapter, or of a checkpoint's."""
    parts = (job.zone.name, job.organisation.slug, _WORD.sub("-", suffix)[:64].strip("-"))
    model = TunedModel(job, checkpoint).name.removeprefix(JOB)
    return TUNED + ":".join((*parts, model))


def find_model(name: str, *, organisation: Organisation) -> ServedModel:
    """The base model of an open zone, or an adapter of one of the organisation's jobs.

    Raises
    ------
    NotFound
        ``model_not_found``.
    """
    tuned = shorten_model_name(name)
    if tuned is not None:
        model = find_tuned_model(tuned, organisation=organisation)
        if model is not None:
            return ServedModel(model.job.zone, model)
    elif "\0" not in name:
        zone = _find_zone(name)
        if zone is not None:
            return ServedModel(zone)
    raise NotFound(
        "model_not_found",
        f"There is no model {name[:100]!r} for you. GET /v1/models lists those there are.",
        param="model",
    )


def _find_zone(name: str) -> Zone | None:
    """The open zone of a name, or the only one with such a base model."""
    zones = list_open_zones()
    named = zones.filter(name=name).first()
    if named is not None:
        return named
    of_base = list(zones.filter(base_model_name=name)[:2])
    return of_base[0] if len(of_base) == 1 else None
