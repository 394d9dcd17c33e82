"""What a job takes: counted from its data and settings, not declared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from marketplace.accounts.models import Organisation
from marketplace.auction.bidding.terms import JobTerms, resolve_terms
from marketplace.common.errors import Conflict, NotFound, UserError
from marketplace.common.ttl_cache import TtlCache
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import load_rates, model_shape
from marketplace.jobs.models import Dataset
from marketplace.jobs.services import ensure_dataset_tokens
from marketplace.jobs.work import Work, measure_work
from marketplace.vendors.offers import measure_raw_data
from marketplace.vendors.wishes import PreparationWish
from workers.protocol.messages import DataFormat

#: A crowd of bids need not read the same few rows each time; they move slowly.
RATES_KEPT_S = 1.0
_rates: TtlCache[dict[str, float]] = TtlCache(for_s=RATES_KEPT_S)


@dataclass(frozen=True, slots=True)
class MeasuredJob:
    """One job's settings and what they ask of a node."""

    terms: JobTerms
    work: Work


def measure_job(
    *,
    organisation: Organisation,
    zone: Zone,
    dataset: Dataset,
    adapter: Mapping[str, Any],
    training: Mapping[str, Any],
    wish: PreparationWish | None = None,
    now: datetime | None = None,
) -> MeasuredJob:
    """Resolve a job's settings and measure its work.

    With a ``wish`` the data are prepared first, and the work is what it would be if every line of
    the file were a row such as the usable ones are. With ``now``, the zone's rates may be up to
    ``RATES_KEPT_S`` old.

    Raises
    ------
    UserError
        ``invalid_hyperparameter``, ``unknown_dataset``, ``unfit_dataset`` or
        ``zone_closed``.
    """
    if not zone.is_open:
        raise Conflict(
            "zone_closed", f"The zone {zone.name} takes no bids now; choose another.", param="zone"
        )
    if dataset.organisation_id != organisation.pk:
        raise unknown_dataset()
    _check_kind(dataset, encoder=model_shape(zone).encoder)
    tokens = ensure_dataset_tokens(dataset=dataset, zone=zone)
    rows = dataset.rows if wish is None else measure_raw_data(dataset).rows
    if wish is not None and wish.validation_share:
        # The vendor holds rows out; all that it leaves are trained on.
        training = {**training, "validation_share": 0.0}
    terms = resolve_terms(
        adapter=adapter,
        training=training,
        rows=rows,
        longest_row_tokens=tokens.longest_row_tokens,
        sequence_length_limit=zone.max_sequence_length,
        model=model_shape(zone),
    )
    rates = (
        load_rates(zone)
        if now is None
        else _rates.get(zone.pk, now=now, read=lambda: load_rates(zone))
    )
    work = measure_work(
        zone=zone,
        tokens=tokens,
        data_format=dataset.format,
        adapter=terms.adapter,
        training=terms.training,
        rates=rates,
    )
    if rows != dataset.rows:
        work = replace(
            work,
            compute_demand=-(-work.compute_demand * rows // dataset.rows),
            samples=work.samples * rows // dataset.rows,
        )
    return MeasuredJob(terms=terms, work=work)


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


def unknown_dataset() -> NotFound:
    return NotFound(
        "unknown_dataset",
        "You have no such data set; GET /api/datasets lists yours.",
        param="dataset_id",
    )
