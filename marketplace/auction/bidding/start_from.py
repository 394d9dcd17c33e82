"""What a job is to begin with, named as a model is.

- ``ft:`` and a job of one's own that has succeeded, or one of its checkpoints
  (``ft:JOB:ckpt-step-N``), or the model's long name in ``/v1``, on the same base model: the new
  job continues from that adapter, with its rank and modules, and does all of its steps.
- ``warm:`` and an offer: the job begins with the offer's adapter and is sold fewer steps.
- ``resume:`` and a paused job of one's own: ``resuming``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from marketplace.accounts.models import Organisation
from marketplace.auction.bidding.terms import AUTO
from marketplace.auction.models import Bid
from marketplace.common.errors import Conflict, NotFound, UserError
from marketplace.fleet.models import Zone
from marketplace.jobs.models import Dataset
from marketplace.jobs.tuned_models import (
    AT_STEP,
    TunedModel,
    find_tuned_model,
    shorten_model_name,
)
from marketplace.warm.models import Offer
from marketplace.warm.offers import ColdJob, find_taken_offers, find_usable_offer
from workers.protocol.job_spec import AdapterSpec
from workers.protocol.starts import Start, StartKind

#: Before the id of one's own job.
CONTINUED = "ft:"
#: Before the id of a warm start's offer.
WARM = "warm:"
#: Settings that the weights of an adapter fix.
FIXED = ("rank", "target_modules", "rslora", "dora")


@dataclass(frozen=True, slots=True)
class Beginning:
    """An adapter that may be begun with."""

    kind: StartKind
    #: Empty: a checkpoint's adapter that ``write_beginning`` is to write.
    artifact_id: str
    job_id: str
    #: Its own settings.
    adapter: AdapterSpec
    #: ``None``: the owner chose it.
    offer: Offer | None = None


def find_beginning(
    model: str, *, organisation: Organisation, zone: Zone, dataset: Dataset, now: datetime
) -> Beginning | None:
    """The adapter that a model's name stands for; ``None``: the base model itself.

    It writes nothing, so a quote costs no more than looking.

    Raises
    ------
    UserError
        ``unknown_model``: no such job of the organisation's, or one without an adapter;
        ``wrong_base_model``: it was trained on another base model; ``offer_ended``: the warm start
        is not to be had any more.
    """
    if not model:
        return None
    if model.startswith(WARM):
        return _find_offered(model, organisation, zone, dataset, now)
    if not model.startswith(CONTINUED):
        raise _unknown_model(model)
    tuned = _find_tuned(model, organisation)
    job = tuned.job
    if not _is_same_base(job.zone, zone):
        raise UserError(
            "wrong_base_model",
            f"The adapter of {job.pk} belongs to the base model {_name_base(job.zone)}, and zone "
            f"{zone.name} trains {_name_base(zone)}. Bid in zone {job.zone.name}.",
            param="model",
        )
    artifact = tuned.find_artifact()
    artifact_id = "" if artifact is None else artifact.pk
    return Beginning(StartKind.CONTINUED, artifact_id, job.pk, job.terms.adapter)


def write_beginning(model: str, *, organisation: Organisation, now: datetime) -> str:
    """Write the adapter of the checkpoint that a job begins with; the id of its file.

    Raises
    ------
    UserError
        ``unknown_model``, or those of ``TunedModel.take_artifact``.
    """
    return _find_tuned(model, organisation).take_artifact(now=now).pk


def _find_tuned(model: str, organisation: Organisation) -> TunedModel:
    tuned = _look_up(model, organisation)
    if tuned is None:
        raise _unknown_model(model)
    return tuned


def _look_up(model: str, organisation: Organisation) -> TunedModel | None:
    name = shorten_model_name(model)
    return None if name is None else find_tuned_model(name, organisation=organisation)


def is_beginning_written(model: str, *, organisation: Organisation) -> bool:
    """Whether a bid need not write an adapter; also where there is no such model."""
    if not model.startswith(CONTINUED) or AT_STEP not in model:
        return True
    tuned = _look_up(model, organisation)
    return tuned is None or tuned.find_artifact() is not None


def _find_offered(
    model: str, organisation: Organisation, zone: Zone, dataset: Dataset, now: datetime
) -> Beginning:
    offer = find_usable_offer(
        model.removeprefix(WARM).replace("\0", ""),
        organisation=organisation,
        zone=zone,
        dataset=dataset,
        now=now,
    )
    if offer is None:
        raise Conflict(
            "offer_ended",
            "This warm start is no longer available: it expired, a job began with it, its donor "
            "was withdrawn, or too many of your starts fell behind. Ask for a new quote.",
            param="model",
        )
    job = offer.donor.job
    adapter = job.terms.adapter
    return Beginning(StartKind(offer.kind), offer.donor_id, job.pk, adapter, offer)


def refuse_taken_offers(drafts: Mapping[int, Bid], *, now: datetime) -> dict[int, UserError]:
    """Refuse bids whose warm start another bid has taken, or whose owner may have no more of them.

    Call while holding the organisations' wallets; codes: ``offer_ended``.
    """
    wanted = {index: bid.offer_id for index, bid in drafts.items() if bid.offer_id}
    if not wanted:
        return {}
    taken = find_taken_offers(set(wanted.values()), now=now)
    return {
        index: Conflict(
            "offer_ended",
            "Another bid of yours is for this warm start already, or your other warm starts must "
            "end first. Ask for a new quote.",
            param="model",
        )
        for index, offer_id in wanted.items()
        if offer_id in taken
    }


def check_same_job(offer: Offer, job: ColdJob, *, is_prepared: bool) -> None:
    """Refuse an offer that was made for other settings, or for data as they are.

    Raises
    ------
    Conflict
        ``offer_ended``.
    """
    if is_prepared or offer.settings_hash != job.settings_hash:
        raise Conflict(
            "offer_ended",
            "This warm start was offered for other settings. Ask for a new quote.",
            param="model",
        )


def _is_same_base(one: Zone, other: Zone) -> bool:
    return (one.base_model_source, one.base_model_revision or "") == (
        other.base_model_source,
        other.base_model_revision or "",
    )


def _name_base(zone: Zone) -> str:
    revision = zone.base_model_revision
    return f"{zone.base_model_name}, revision {revision}" if revision else zone.base_model_name


def fill_settings(adapter: Mapping[str, Any], beginning: Beginning) -> dict[str, Any]:
    """The adapter's settings with what the earlier adapter fixes in place of ``auto``.

    Raises
    ------
    UserError
        ``invalid_hyperparameter``: another rank or other modules were asked for.
    """
    filled = dict(adapter)
    for name in FIXED:
        asked, fixed = filled.get(name, AUTO), getattr(beginning.adapter, name)
        modules = list(fixed) if isinstance(fixed, tuple) else fixed
        if asked in (AUTO, None):
            filled[name] = modules
        elif not _is_same_setting(asked, modules):
            shown = "all modules" if modules is None else modules
            raise UserError(
                "invalid_hyperparameter",
                f"The adapter of {beginning.job_id} has adapter.{name} {shown}, and so has a job "
                "that continues from it. Give that value or 'auto'.",
                param=f"adapter.{name}",
            )
    if filled.get("alpha", AUTO) in (AUTO, None):
        filled["alpha"] = beginning.adapter.alpha
    return filled


def _is_same_setting(asked: Any, fixed: Any) -> bool:
    if isinstance(asked, (list, tuple)) and isinstance(fixed, list):
        return sorted(map(str, asked)) == sorted(fixed)
    return bool(asked == fixed)


def build_start(beginning: Beginning, adapter: AdapterSpec) -> Start:
    """How the job begins; where its alpha differs, the weights are scaled to mean the same."""
    return Start(
        kind=beginning.kind,
        artifact_id=beginning.artifact_id,
        job_id=beginning.job_id,
        scale=beginning.adapter.alpha / adapter.alpha,
    )


def build_warm_start(offer: Offer) -> Start:
    """How a job begins that takes an offer."""
    return Start(
        kind=StartKind(offer.kind),
        artifact_id=offer.donor_id,
        job_id=offer.donor.job_id,
        scale=offer.scale,
        steps=offer.steps,
        target_loss=offer.target_loss,
        offer_id=offer.pk,
        cold_units=offer.cold_units,
        royalty_micros=offer.royalty_micros,
    )


def _unknown_model(model: str) -> NotFound:
    return NotFound(
        "unknown_model",
        f"You have no finished job {model[:60]!r} to continue from. Give {CONTINUED} and the id "
        "of a job of yours that has succeeded, or the name of a checkpoint.",
        param="model",
    )
