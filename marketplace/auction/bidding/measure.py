"""What a job takes: counted from its data and settings, not declared."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from marketplace.accounts.models import Organisation
from marketplace.auction.bidding.beginnings import (
    build_start,
    build_warm_start,
    check_same_job,
    fill_settings,
    find_beginning,
)
from marketplace.auction.bidding.terms import AUTO, RANK_AUTO, JobTerms, resolve_terms
from marketplace.common.errors import Conflict, NotFound, UserError
from marketplace.common.ttl_cache import TtlCache
from marketplace.fleet.memory import compute_memory_demand, find_fitting_rank
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import (
    find_largest_room_gb,
    get_model_shape,
    get_work_costs,
    load_rates,
)
from marketplace.jobs.models import Dataset, Job
from marketplace.jobs.services import check_held_out, ensure_dataset_tokens
from marketplace.jobs.starts import Start, StartKind
from marketplace.jobs.work import Work, measure_work, plan_work
from marketplace.vendors.offers import measure_growth, measure_raw_data
from marketplace.vendors.wishes import PreparationWish
from marketplace.warm.models import Offer
from marketplace.warm.offers import ColdJob
from workers.protocol.job_spec import AdapterSpec, DataFormat
from workers.protocol.row_order import count_validation_rows

#: A crowd of bids need not read the same few rows each time; they move slowly.
RATES_KEPT_S = 1.0
_rates: TtlCache[dict[str, float]] = TtlCache(for_s=RATES_KEPT_S)
_rooms: TtlCache[float | None] = TtlCache(for_s=RATES_KEPT_S)


@dataclass(frozen=True, slots=True)
class MeasuredJob:
    """One job's settings and what they ask of a node."""

    terms: JobTerms
    work: Work
    #: ``None``: from fresh weights.
    start: Start | None = None
    #: Of a warm start: what the job is without it.
    cold_work: Work | None = None


def measure_job(
    *,
    organisation: Organisation,
    zone: Zone,
    dataset: Dataset,
    validation: Dataset | None = None,
    adapter: Mapping[str, Any],
    training: Mapping[str, Any],
    wish: PreparationWish | None = None,
    model: str = "",
    now: datetime,
) -> MeasuredJob:
    """Resolve a job's settings and measure its work.

    The rows of ``validation`` are held out and no others; without it, a share of the data set's
    own. With a ``wish`` the data are prepared first, and the work is what it would be if every line
    of the file were a row such as the usable ones are. ``model`` names what it begins with, such as
    ``ft:`` and one of the owner's jobs. The zone's rates may be up to ``RATES_KEPT_S`` old.

    Raises
    ------
    UserError
        ``invalid_hyperparameter``, ``unknown_dataset``, ``unfit_dataset``, ``zone_closed`` or
        those of ``find_beginning`` and ``check_held_out``.
    """
    if not zone.is_open:
        raise Conflict(
            "zone_closed", f"The zone {zone.name} takes no bids now; choose another.", param="zone"
        )
    if dataset.organisation_id != organisation.pk:
        raise refuse_unknown_dataset()
    if dataset.needs_preparation and wish is None:
        raise UserError(
            "needs_preparation",
            "Not one line of this file can be trained on as it is. Ask for its preparation with "
            "the bid: a vendor repairs the rows first.",
            param="preparation",
        )
    _check_kind(dataset, encoder=get_model_shape(zone).encoder)
    beginning = find_beginning(
        model,
        organisation=organisation,
        zone=zone,
        dataset=dataset,
        now=now,
    )
    tokens = ensure_dataset_tokens(dataset=dataset, zone=zone)
    longest_row_tokens, held_out = tokens.longest_row_tokens, None
    if validation is not None:
        if validation.organisation_id != organisation.pk:
            raise refuse_unknown_dataset("validation_dataset_id")
        training = _hold_out_only_validation(training, wish)
        check_held_out(dataset=dataset, held_out=validation)
        held_out = ensure_dataset_tokens(dataset=validation, zone=zone)
        longest_row_tokens = max(longest_row_tokens, held_out.longest_row_tokens)
    rows = dataset.rows if wish is None else measure_raw_data(dataset).rows
    if wish is not None and wish.validation_share:
        # The vendor holds rows out; all that it leaves are trained on.
        training = {**training, "validation_share": 0.0}
    terms = resolve_terms(
        adapter=adapter if beginning is None else fill_settings(adapter, beginning),
        training=training,
        rows=rows,
        longest_row_tokens=longest_row_tokens,
        sequence_length_limit=zone.max_sequence_length,
        model=get_model_shape(zone),
        rank_limit=_find_rank_limit(zone, adapter, now),
    )
    work = measure_work(
        zone=zone,
        tokens=tokens,
        validation=held_out,
        data_format=dataset.format,
        adapter=terms.adapter,
        training=terms.training,
        rates=_rates.get(zone.pk, now=now, read=lambda: load_rates(zone)),
    )
    if wish is not None:
        growth = measure_growth(dataset)
        work = replace(
            work,
            compute_demand=math.ceil(work.compute_demand * growth),
            samples=work.samples * rows // dataset.rows,
        )
    if validation is None:
        _check_can_stop(terms, dataset)
    cold = MeasuredJob(terms, work)
    if beginning is None:
        return cold
    if beginning.offer is None:
        return replace(cold, start=build_start(beginning, terms.adapter))
    if validation is not None:
        raise Conflict(
            "offer_ended",
            "A warm start is offered for a job that holds rows of its own data out. Leave the "
            "validation data out, or begin with the base model.",
            param="model",
        )
    planned = plan_cold(cold, organisation=organisation, zone=zone, dataset=dataset)
    check_same_job(beginning.offer, planned, is_prepared=wish is not None)
    return apply_offer(cold, beginning.offer, planned)


def _hold_out_only_validation(
    training: Mapping[str, Any], wish: PreparationWish | None
) -> dict[str, Any]:
    """The settings of a job whose held-out rows are a file of their own.

    Raises
    ------
    UserError
        ``invalid_hyperparameter``: rows of the training data are to be held out as well.
    """
    if wish is not None:
        raise UserError(
            "invalid_hyperparameter",
            "A vendor that prepares the data holds rows of them out itself. Leave the validation "
            "data out, or the preparation.",
            param="preparation",
        )
    if training.get("validation_share", AUTO) not in (AUTO, None, 0):
        raise UserError(
            "invalid_hyperparameter",
            "The validation data are held out, so no share of the training data is. Leave "
            "training.validation_share out.",
            param="training.validation_share",
        )
    return {**training, "validation_share": 0.0}


def _find_rank_limit(zone: Zone, adapter: Mapping[str, Any], now: datetime) -> int | None:
    """The largest rank that some node has memory for, if the usual one has none.

    Asked for only where the rank is left to the house.
    """
    if adapter.get("rank", AUTO) not in (AUTO, None) or "kind" in adapter:
        return None
    usual = AdapterSpec(rank=RANK_AUTO)
    room_gb = _rooms.get(zone.pk, now=now, read=lambda: find_largest_room_gb(zone))
    need_gb = compute_memory_demand(zone=zone, adapter=usual)
    if room_gb is None or need_gb <= room_gb:
        return None
    return find_fitting_rank(zone=zone, adapter=usual, need_gb=need_gb, room_gb=room_gb)


def find_verified_only(
    asked: bool | None, *, organisation: Organisation, start: Start | None
) -> bool:
    """Whether a job runs on nodes of verified providers only.

    Where the request says nothing, as its organisation has it, or as the job that it continues.
    """
    if asked is not None:
        return asked
    if organisation.verified_only:
        return True
    if start is None or start.kind is not StartKind.CONTINUED:
        return False
    return Job.objects.filter(pk=start.job_id, verified_only=True).exists()


def apply_offer(cold: MeasuredJob, offer: Offer, planned: ColdJob) -> MeasuredJob:
    """The job with a warm start: the same settings, and the work of the steps that are sold."""
    warm = replace(cold.work, compute_demand=planned.plan.count_ended_at(offer.steps))
    return MeasuredJob(cold.terms, warm, build_warm_start(offer), cold_work=cold.work)


def plan_cold(
    measured: MeasuredJob, *, organisation: Organisation, zone: Zone, dataset: Dataset
) -> ColdJob:
    """A job as warm starts are looked for."""
    plan = plan_work(
        tokens=ensure_dataset_tokens(dataset=dataset, zone=zone),
        data_format=dataset.format,
        virtual_tokens=measured.terms.adapter.virtual_tokens,
        training=measured.terms.training,
        costs=get_work_costs(zone),
    )
    terms = measured.terms
    return ColdJob(organisation, zone, dataset, terms.adapter, terms.training, plan)


def _check_can_stop(terms: JobTerms, dataset: Dataset) -> None:
    """Refuse early stopping without rows to see it by; a node would, once it is paid for."""
    share = terms.training.validation_share
    if terms.training.early_stopping and not count_validation_rows(rows=dataset.rows, share=share):
        raise UserError(
            "invalid_hyperparameter",
            "Early stopping looks at the loss on held-out rows, and this job holds out none. Give "
            "a larger training.validation_share, or switch training.early_stopping off with 0.",
            param="training.early_stopping",
        )


def _check_kind(dataset: Dataset, *, encoder: bool) -> None:
    """Refuse data the zone's model cannot learn; a node would, but only once it is paid for."""
    labelled = dataset.format == DataFormat.CLASSIFICATION
    if labelled == encoder:
        return
    sentence = (
        "The zone's base model writes text, and this data set has labels: it needs an encoder. "
        "Choose a zone with one, or make the rows prompt and completion."
        if labelled
        else "The zone's base model is an encoder: it learns rows with text and label only. "
        "Choose another zone for this data set."
    )
    raise UserError("unfit_dataset", sentence, param="dataset_id")


def refuse_unknown_dataset(param: str = "dataset_id") -> NotFound:
    return NotFound(
        "unknown_dataset",
        "You have no such data set; GET /api/datasets lists yours.",
        param=param,
    )
