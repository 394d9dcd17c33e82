"""A fine-tuning request of OpenAI's clients as a bid of the market.

What the job is worth, and by when, stands in ``bid``, else in the metadata ``bid_max_price`` and
``bid_deadline``, else in what the API key bids. Whether nodes of verified providers only may run it
stands in ``bid``, else in the metadata ``bid_verified_only``, else with the organisation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from marketplace.api.callers import Caller
from marketplace.api.openai.files import find_training_data
from marketplace.api.openai.names import ServedModel, find_model
from marketplace.api.openai.requests import AUTO, DPO, SUPERVISED
from marketplace.auction.bidding.deadlines import find_latest_deadline, parse_deadline
from marketplace.auction.bidding.job_request import JobRequest
from marketplace.auction.bidding.measure import measure_job
from marketplace.auction.bidding.start_from import CONTINUED
from marketplace.auction.bidding.terms import name_after, parse_price
from marketplace.common.errors import UserError
from marketplace.fleet.models import Zone
from marketplace.jobs.models import Dataset
from marketplace.jobs.services import check_held_out
from workers.protocol.job_spec import DataFormat

METADATA_PRICE, METADATA_DEADLINE = "bid_max_price", "bid_deadline"
METADATA_VERIFIED = "bid_verified_only"


@dataclass(frozen=True, slots=True)
class FineTuningTerms:
    """What is bid for, and what is remembered beside the bid."""

    #: The members of a ``BidRequest``, checked.
    bid: Mapping[str, Any]
    method: str
    hyperparameters: Mapping[str, Any]


def resolve_request(asked: Mapping[str, Any], *, who: Caller, now: datetime) -> FineTuningTerms:
    """The bid that a request stands for.

    Raises
    ------
    UserError
        ``bid_required``, ``unsupported_method``, ``unsupported_parameter``, ``unknown_file``,
        ``model_not_found``, or what is wrong with one of the terms.
    """
    price_micros = _find_price(asked, who)
    model = find_model(asked["model"], organisation=who.organisation)
    deadline = _find_deadline(asked, who, zone=model.zone, now=now)
    dataset = find_training_data(who.organisation, asked["training_file"], param="training_file")
    validation = None
    if asked.get("validation_file"):
        validation = find_training_data(
            who.organisation, asked["validation_file"], param="validation_file"
        )
        check_held_out(dataset=dataset, held_out=validation, param="validation_file")
    method, hyperparameters = _read_method(asked, dataset)
    own = asked.get("bid") or {}
    adapter = own.get("adapter") or {}
    training = _build_training(asked, hyperparameters) | (own.get("training") or {})
    begins_with = "" if model.tuned is None else CONTINUED + model.tuned.name
    multiplier = hyperparameters["learning_rate_multiplier"]
    if multiplier != AUTO and "learning_rate" not in training:
        auto_rate = _find_auto_rate(
            who,
            model,
            dataset,
            validation=validation,
            adapter=adapter,
            training=training,
            model_name=begins_with,
            now=now,
        )
        training["learning_rate"] = auto_rate * multiplier
    bid = {
        "zone": model.zone.name,
        "dataset_id": dataset.pk,
        "validation_dataset_id": None if validation is None else validation.pk,
        "name": asked.get("suffix") or name_after(dataset.name),
        "adapter": adapter,
        "training": training,
        "model": begins_with,
        "preparation": own.get("preparation"),
        "verified_only": _find_verified_only(asked),
        "metadata": asked.get("metadata"),
        "price": price_micros,
        "deadline": deadline,
    }
    return FineTuningTerms(bid, method, hyperparameters)


def _find_price(asked: Mapping[str, Any], who: Caller) -> int:
    """The most the job is worth, in micro-dollars."""
    own = (asked.get("bid") or {}).get("max_price")
    if own is not None:
        return own
    text = (asked.get("metadata") or {}).get(METADATA_PRICE)
    if text is not None:
        return parse_price(text, param=f"metadata.{METADATA_PRICE}")
    if who.key is not None and who.key.bid_price_micros is not None:
        return who.key.bid_price_micros
    raise UserError(
        "bid_required",
        'Say what the job is worth to you: extra_body={"bid": {"max_price": "4.00", "deadline": '
        f'"6h"}}}}, or the metadata {METADATA_PRICE} and {METADATA_DEADLINE}, or a key that bids '
        "by itself. POST /api/quotes tells the price; the bid never changes it.",
        param="bid",
    )


def _find_verified_only(asked: Mapping[str, Any]) -> bool | None:
    """Whether nodes of verified providers only; ``None``: as the organisation has it."""
    own = (asked.get("bid") or {}).get("verified_only")
    text = (asked.get("metadata") or {}).get(METADATA_VERIFIED)
    if own is not None or text is None:
        return own
    if text not in ("true", "false"):
        raise UserError(
            "invalid_verified_only",
            f"metadata.{METADATA_VERIFIED} is 'true' or 'false'.",
            param=f"metadata.{METADATA_VERIFIED}",
        )
    return text == "true"


def _find_deadline(
    asked: Mapping[str, Any], who: Caller, *, zone: Zone, now: datetime
) -> datetime | timedelta:
    """A moment or a time from now, as ``settle_deadline`` takes it."""
    own = (asked.get("bid") or {}).get("deadline")
    if own is not None:
        return parse_deadline(own, param="bid.deadline")
    text = (asked.get("metadata") or {}).get(METADATA_DEADLINE)
    if text is not None:
        return parse_deadline(text, param=f"metadata.{METADATA_DEADLINE}")
    if who.key is not None and who.key.bid_deadline_s is not None:
        return timedelta(seconds=who.key.bid_deadline_s)
    return find_latest_deadline(zone, now=now)


def _read_method(asked: Mapping[str, Any], dataset: Dataset) -> tuple[str, Mapping[str, Any]]:
    """The method and its hyper-parameters; those of ``hyperparameters`` where it has none."""
    is_preference = dataset.format == DataFormat.PREFERENCE
    given = asked.get("method")
    method = (DPO if is_preference else SUPERVISED) if given is None else given["type"]
    if method not in (SUPERVISED, DPO):
        raise UserError(
            "unsupported_method", f"There are {SUPERVISED} and {DPO}.", param="method.type"
        )
    if is_preference != (method == DPO):
        raise UserError(
            "unfit_dataset",
            "DPO needs preferences (input, preferred_output, non_preferred_output), and only DPO "
            f"learns from them. This file is {dataset.format}.",
            param="method.type",
        )
    settings = ((given or {}).get(method) or {}).get("hyperparameters")
    settings = settings or asked.get("hyperparameters") or {}
    names = ("batch_size", "learning_rate_multiplier", "n_epochs")
    names = (*names, "beta") if method == DPO else names
    chosen = {name: settings.get(name) for name in names}
    return method, {name: AUTO if value is None else value for name, value in chosen.items()}


def _build_training(asked: Mapping[str, Any], hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
    training = {
        "epochs": hyperparameters["n_epochs"],
        "batch_size": hyperparameters["batch_size"],
    }
    if hyperparameters.get("beta", AUTO) != AUTO:
        training["dpo_beta"] = hyperparameters["beta"]
    if asked.get("seed") is not None:
        training["seed"] = asked["seed"]
    return training


def _find_auto_rate(
    who: Caller,
    model: ServedModel,
    dataset: Dataset,
    *,
    validation: Dataset | None,
    adapter: Mapping[str, Any],
    training: Mapping[str, Any],
    model_name: str,
    now: datetime,
) -> float:
    """The learning rate that the market would choose, which a multiplier multiplies."""
    job = JobRequest(
        organisation=who.organisation,
        zone=model.zone,
        dataset=dataset,
        adapter=adapter,
        training=training,
        validation=validation,
        model=model_name,
    )
    measured = measure_job(job, now=now)
    return measured.terms.training.learning_rate
