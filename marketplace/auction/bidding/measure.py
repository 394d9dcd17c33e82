"""What a job takes: counted from its data and settings, not declared."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from marketplace.accounts.models import Organisation
from marketplace.auction.bidding.deadlines import DEADLINE
from marketplace.auction.bidding.job_request import JobRequest
from marketplace.auction.bidding.resuming import RESUMED, measure_rest
from marketplace.auction.bidding.start_from import (
    build_start,
    build_warm_start,
    check_same_job,
    fill_settings,
    find_beginning,
)
from marketplace.auction.bidding.terms import AUTO, RANK_AUTO, ResolvedSettings, resolve_terms
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
from marketplace.jobs.models import Dataset, DatasetTokens, Job
from marketplace.jobs.services import check_held_out, ensure_dataset_tokens
from marketplace.jobs.work import Work, measure_work, plan_work
from marketplace.vendors.offers import measure_growth, measure_raw_data
from marketplace.vendors.plans import check_loss_is_confirmed, find_sold_plan, read_planned_tokens
from marketplace.warm.models import Offer
from marketplace.warm.offers import ColdJob
from workers.protocol.job_spec import AdapterKind, AdapterSpec, DataFormat
from workers.protocol.job_terms import JobTerms, PreparationWish
from workers.protocol.memory import find_row_limit
from workers.protocol.row_order import count_validation_rows
from workers.protocol.starts import Start, StartKind

#: A crowd of bids need not read the same few rows each time; they move slowly.
RATES_KEPT_S = 1.0
_rates: TtlCache[dict[str, float]] = TtlCache(for_s=RATES_KEPT_S)
_rooms: TtlCache[float | None] = TtlCache(for_s=RATES_KEPT_S)


@dataclass(frozen=True, slots=True)
class MeasuredJob:
    """A job's terms and what they ask of a node."""

    terms: JobTerms
    work: Work
    #: Names of the settings that the market chose.
    resolved: tuple[str, ...]
    #: Of the data set, which the choices depend on.
    rows: int
    #: Of a warm start: what the job is without it.
    cold_work: Work | None = None

    @property
    def start(self) -> Start | None:
        """What the job begins with; ``None``: fresh weights."""
        return self.terms.start


def measure_job(asked: JobRequest, *, now: datetime) -> MeasuredJob:
    """Resolve a job's settings and measure its work.

    The rows of ``asked.validation`` are held out and no others; without it, a share of the data
    set's own. If a preparation is asked for, the work is what it would be if every line of the file
    were a row like the usable ones. The zone's rates may be up to ``RATES_KEPT_S`` old.

    Raises
    ------
    UserError
        ``invalid_hyperparameter``, ``unknown_dataset``, ``unfit_dataset``, ``zone_closed`` or
        those of ``find_beginning``, ``measure_rest``, ``check_held_out`` and ``parse_wish``.
    """
    wish = asked.parse_wish()
    _check_data(asked, wish)
    if asked.model.startswith(RESUMED):
        return _measure_paused(asked, now=now)
    beginning = find_beginning(
        asked.model,
        organisation=asked.organisation,
        zone=asked.zone,
        dataset=asked.dataset,
        now=now,
    )
    data = _measure_data(asked, wish)
    held_out = None if asked.validation is None else _count_held_out(asked, asked.validation, wish)
    longest = [data.tokens.longest_row_tokens, *([held_out.longest_row_tokens] if held_out else [])]
    settings = resolve_terms(
        adapter=asked.adapter if beginning is None else fill_settings(asked.adapter, beginning),
        training=_choose_held_out(asked, wish),
        rows=data.rows,
        longest_row_tokens=max(longest),
        sequence_length_limit=find_row_limit(asked.zone.max_sequence_length, asked.dataset.format),
        model=get_model_shape(asked.zone),
        rank_limit=_find_rank_limit(asked.zone, asked.adapter, now),
    )
    work = _measure_most_work(asked, settings, data, held_out=held_out, wish=wish, now=now)
    if wish is not None and not wish.plan:
        work = _count_repaired(work, asked.dataset)
    if asked.validation is None:
        rows = data.rows if wish is not None and wish.plan else asked.dataset.rows
        _check_can_stop(settings, rows)
    start = None
    if beginning is not None and beginning.offer is None:
        start = build_start(beginning, settings.adapter)
    terms = JobTerms(
        adapter=settings.adapter,
        training=settings.training,
        dataset=asked.dataset.pk,
        validation=None if asked.validation is None else asked.validation.pk,
        start=start,
        preparation=wish,
        verified_only=find_verified_only(
            asked.verified_only, organisation=asked.organisation, start=start
        ),
        metadata=None if asked.metadata is None else dict(asked.metadata),
    )
    resolved = (*settings.resolved, *([DEADLINE] if asked.is_deadline_cut else []))
    cold = MeasuredJob(terms, work, resolved=resolved, rows=settings.rows)
    if beginning is None or beginning.offer is None:
        return cold
    if asked.validation is not None:
        raise Conflict(
            "offer_ended",
            "A warm start needs held-out rows of the job's own data. Leave the validation data "
            "out, or begin with the base model.",
            param="model",
        )
    planned = plan_cold(cold, asked)
    check_same_job(beginning.offer, planned, is_prepared=wish is not None)
    return apply_offer(cold, beginning.offer, planned)


def _measure_paused(asked: JobRequest, *, now: datetime) -> MeasuredJob:
    """What is left of a paused job, with its own settings."""
    rates = _rates.get(asked.zone.pk, now=now, read=lambda: load_rates(asked.zone))
    rest = measure_rest(asked, rates=rates)
    return MeasuredJob(rest.terms, rest.work, resolved=rest.resolved, rows=asked.dataset.rows)


@dataclass(frozen=True, slots=True)
class _MeasuredData:
    """The rows that a job is sold for."""

    tokens: DatasetTokens
    rows: int
    format: str


def _measure_data(asked: JobRequest, wish: PreparationWish | None) -> _MeasuredData:
    """The data as they are, or as the confirmed plan leaves them; without one, an upper bound."""
    dataset = asked.dataset
    plan = None if wish is None else find_sold_plan(wish, dataset=dataset)
    if plan is not None:
        tokens = read_planned_tokens(plan, dataset=dataset, zone=asked.zone)
        return _MeasuredData(tokens, plan.rows, plan.format)
    tokens = ensure_dataset_tokens(dataset=dataset, zone=asked.zone)
    rows = dataset.rows if wish is None else measure_raw_data(dataset).rows
    return _MeasuredData(tokens, rows, dataset.format)


def _measure_most_work(
    asked: JobRequest,
    settings: ResolvedSettings,
    data: _MeasuredData,
    *,
    held_out: DatasetTokens | None,
    wish: PreparationWish | None,
    now: datetime,
) -> Work:
    """Measure the work of a job. Where a vendor holds rows out, it is the larger of two amounts.

    A vendor holds out the share that was asked for, or less where rows are few. Rows that are held
    out are not trained on, but evaluated many times; so either may be more.
    """
    shares = {settings.training.validation_share}
    if wish is not None and wish.validation_share:
        shares.add(wish.validation_share)
    rates = _rates.get(asked.zone.pk, now=now, read=lambda: load_rates(asked.zone))
    possible = [
        measure_work(
            zone=asked.zone,
            tokens=data.tokens,
            validation=held_out,
            data_format=data.format,
            adapter=settings.adapter,
            training=replace(settings.training, validation_share=share),
            rates=rates,
        )
        for share in sorted(shares)
    ]
    return max(possible, key=lambda work: work.compute_demand)


def _check_data(asked: JobRequest, wish: PreparationWish | None) -> None:
    """Refuse a zone that is closed and data that the job cannot be trained on."""
    zone, dataset = asked.zone, asked.dataset
    if not zone.is_open:
        raise Conflict(
            "zone_closed", f"The zone {zone.name} takes no bids now; choose another.", param="zone"
        )
    if dataset.organisation_id != asked.organisation.pk:
        raise refuse_unknown_dataset()
    if dataset.needs_preparation and wish is None:
        raise UserError(
            "needs_preparation",
            "No line of this file can be used for training as it is. Ask for a preparation with "
            "the bid: a vendor repairs the rows first.",
            param="preparation",
        )
    if wish is not None:
        check_loss_is_confirmed(wish, dataset=dataset)
    _check_kind(dataset, encoder=get_model_shape(zone).encoder)


def _count_held_out(
    asked: JobRequest, validation: Dataset, wish: PreparationWish | None
) -> DatasetTokens:
    """The tokens of a file whose rows are held out, once it is known to be usable for that."""
    if validation.organisation_id != asked.organisation.pk:
        raise refuse_unknown_dataset("validation_dataset_id")
    _check_held_out_once(asked.training, wish)
    check_held_out(dataset=asked.dataset, held_out=validation)
    return ensure_dataset_tokens(dataset=validation, zone=asked.zone)


def _check_held_out_once(training: Mapping[str, Any], wish: PreparationWish | None) -> None:
    """Refuse to hold out rows of the training data beside a file of their own."""
    if wish is not None:
        raise UserError(
            "invalid_hyperparameter",
            "A vendor that prepares the data also holds rows out. Leave out the validation data "
            "or the preparation.",
            param="preparation",
        )
    if training.get("validation_share", AUTO) not in (AUTO, None, 0):
        raise UserError(
            "invalid_hyperparameter",
            "The validation data replace held-out rows of the training data. Leave "
            "training.validation_share out.",
            param="training.validation_share",
        )


def _choose_held_out(asked: JobRequest, wish: PreparationWish | None) -> Mapping[str, Any]:
    """The training settings; no share is held out where a file or a vendor gives held-out rows."""
    if asked.validation is None and not (wish is not None and wish.validation_share):
        return asked.training
    return {**asked.training, "validation_share": 0.0}


def _count_repaired(work: Work, dataset: Dataset) -> Work:
    """The work of data as a vendor may deliver them: every line of the file a usable row."""
    rows = measure_raw_data(dataset).rows
    return replace(
        work,
        compute_demand=math.ceil(work.compute_demand * measure_growth(dataset)),
        samples=work.samples * rows // dataset.rows,
    )


def _find_rank_limit(zone: Zone, adapter: Mapping[str, Any], now: datetime) -> int | None:
    """The largest rank that some node has memory for, if the usual one has none.

    Asked for only where the market chooses the rank.
    """
    is_prompt = adapter.get("kind") == AdapterKind.SOFT_PROMPT
    if is_prompt or adapter.get("rank", AUTO) not in (AUTO, None):
        return None
    usual = AdapterSpec(rank=RANK_AUTO)
    room_gb = _rooms.get(zone.pk, now=now, read=lambda: find_largest_room_gb(zone))
    if room_gb is None or compute_memory_demand(zone=zone, adapter=usual) <= room_gb:
        return None
    return find_fitting_rank(zone=zone, adapter=usual, room_gb=room_gb)


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
    terms = replace(cold.terms, start=build_warm_start(offer))
    return replace(cold, terms=terms, work=warm, cold_work=cold.work)


def plan_cold(measured: MeasuredJob, asked: JobRequest) -> ColdJob:
    """The job in the form in which warm starts are looked for."""
    terms, zone, dataset = measured.terms, asked.zone, asked.dataset
    plan = plan_work(
        tokens=ensure_dataset_tokens(dataset=dataset, zone=zone),
        data_format=dataset.format,
        virtual_tokens=terms.adapter.virtual_tokens,
        training=terms.training,
        costs=get_work_costs(zone),
    )
    return ColdJob(asked.organisation, zone, dataset, terms.adapter, terms.training, plan)


def _check_can_stop(settings: ResolvedSettings, rows: int) -> None:
    """Refuse early stopping without rows to see it by; a node would, once it is paid for."""
    share = settings.training.validation_share
    if settings.training.early_stopping and not count_validation_rows(rows=rows, share=share):
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
