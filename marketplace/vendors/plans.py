"""The plan of a preparation: asked for, confirmed by the owner, and what a bid is sold by."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from django.db import transaction

from marketplace.accounts.models import User
from marketplace.common.durable.services import NewWork, enqueue_work
from marketplace.common.errors import Conflict, NotFound, UserError
from marketplace.fleet.models import Zone
from marketplace.jobs.models import Dataset, DatasetTokens
from marketplace.vendors.models import DataPlan
from marketplace.vendors.wishes import parse_wish
from workers.protocol.job_terms import PreparationWish
from workers.protocol.wire import to_json

MAKE = "vendors.plan"
#: The members of a wish that change rows.
PLANNED = ("roles", "drop_duplicates", "mask_personal_data", "phone_regions", "languages")
#: Plans of one data set: each reads it whole.
PLANS_MAX = 20
#: Of a data set's rows, the share that may be left out unasked; repetitions that differ in case and
#: spaces at most and rows of languages or lengths that were not wanted do not count.
LOST_SHARE_MAX = 0.25
_LOSING_STEPS = ("reading", "repair", "duplicates")


def request_plan(*, dataset: Dataset, zone: Zone, wish: PreparationWish, now: datetime) -> DataPlan:
    """Have a plan made; the same settings again are the same plan.

    Without roles, those count that the data set's owner named when they uploaded it.

    Raises
    ------
    Conflict
        ``too_many_plans``.
    """
    settings = write_settings(wish if wish.roles else replace(wish, roles=dataset.roles))
    wanted = {"dataset": dataset, "zone": zone, "asked_hash": _hash(settings)}
    found = DataPlan.objects.filter(**wanted).first()
    if found is not None:
        return found
    if DataPlan.objects.filter(dataset=dataset).count() >= PLANS_MAX:
        raise Conflict(
            "too_many_plans",
            f"A data set has at most {PLANS_MAX} plans. Confirm one of them, or upload it again.",
        )
    with transaction.atomic():
        plan, is_new = DataPlan.objects.get_or_create(
            **wanted, defaults={"asked": settings, "created_at": now}
        )
        if is_new:
            enqueue_work(NewWork(MAKE, plan.pk, due_at=now, owner=dataset.organisation_id))
    return plan


def write_settings(wish: PreparationWish) -> dict[str, Any]:
    """The members of a wish that change rows, as JSON."""
    asked = to_json(wish)
    return {name: asked[name] for name in PLANNED}


def _hash(settings: Mapping[str, Any]) -> str:
    # The order of the columns counts: texts of one role are joined in it.
    return hashlib.sha256(json.dumps(settings).encode()).hexdigest()


def find_plan(*, dataset: Dataset, plan_id: str) -> DataPlan:
    """One of a data set's plans.

    Raises
    ------
    NotFound
        ``unknown_plan``.
    """
    plans = DataPlan.objects.filter(dataset=dataset).select_related("zone", "dataset")
    found = plans.filter(pk=plan_id.replace("\0", "")).first()
    if found is None:
        raise NotFound("unknown_plan", "This data set has no such plan.", param="preparation.plan")
    return found


def find_latest_plan(dataset: Dataset) -> DataPlan | None:
    """The plan that was confirmed last, or else the one that was asked for last."""
    plans = DataPlan.objects.filter(dataset=dataset)
    confirmed = plans.filter(confirmed_at__isnull=False).order_by("-confirmed_at")
    return confirmed.first() or plans.order_by("-created_at", "pk").first()


def confirm_plan(*, plan: DataPlan, confirmed_by: User, now: datetime) -> DataPlan:
    """Agree to all that a plan leaves out and changes; twice changes nothing.

    Raises
    ------
    Conflict
        ``plan_not_ready``: it is still made, or cannot be. ``nothing_left``: no row stays.
    """
    if plan.plan is None:
        raise Conflict("plan_not_ready", plan.problem or "The plan is still being made.")
    if not plan.rows:
        raise Conflict(
            "nothing_left", "By this plan no row stays. Say what the columns hold, and plan again."
        )
    mine = DataPlan.objects.filter(pk=plan.pk, confirmed_at__isnull=True)
    mine.update(confirmed_at=now, confirmed_by=confirmed_by)
    plan.refresh_from_db()
    return plan


def resolve_wish(wish: PreparationWish, *, dataset: Dataset) -> PreparationWish:
    """The wish with the settings of the confirmed plan that it names.

    Raises
    ------
    NotFound
        ``unknown_plan``.
    Conflict
        ``plan_not_confirmed``.
    UserError
        ``plan_differs``: the wish asks for something else than its plan.
    """
    if not wish.plan:
        return wish
    plan = find_plan(dataset=dataset, plan_id=wish.plan)
    if plan.confirmed_at is None:
        raise _refuse_unconfirmed("This plan is not confirmed.")
    planned = parse_wish(plan.asked)
    settings = {name: getattr(planned, name) for name in PLANNED}
    untouched = PreparationWish()
    for name, value in settings.items():
        if getattr(wish, name) not in (value, getattr(untouched, name)):
            raise UserError(
                "plan_differs",
                f"The plan was confirmed with another value of {name}. Leave it out, or have "
                "another plan made.",
                param=f"preparation.{name}",
            )
    return replace(wish, **settings)


def find_sold_plan(wish: PreparationWish, *, dataset: Dataset) -> DataPlan | None:
    """The plan by whose rows a job is sold; ``None`` where the wish names none."""
    return find_plan(dataset=dataset, plan_id=wish.plan) if wish.plan else None


def read_planned_tokens(plan: DataPlan, *, dataset: Dataset, zone: Zone) -> DatasetTokens:
    """Tokens of the rows that stay, by the zone's tokenizer.

    Raises
    ------
    Conflict
        ``plan_of_other_model``.
    """

    def tokenizer(one: Zone) -> tuple[str, str]:
        return one.tokenizer_source or one.base_model_source, one.base_model_revision or ""

    if tokenizer(plan.zone) != tokenizer(zone):
        raise Conflict(
            "plan_of_other_model",
            f"This plan was counted for {plan.zone.base_model_name}. Have one made for "
            f"{zone.base_model_name}.",
            param="preparation.plan",
        )
    return DatasetTokens(
        dataset=dataset,
        zone=zone,
        tokens=plan.tokens,
        longest_row_tokens=plan.longest_row_tokens,
        runs=plan.runs,
    )


def check_loss_is_confirmed(wish: PreparationWish, *, dataset: Dataset) -> None:
    """Refuse to let a program take rows or columns away that its owner has not seen go.

    Raises
    ------
    Conflict
        ``plan_not_confirmed``: the data train only once a program has said what their columns
        hold, or more rows than ``LOST_SHARE_MAX`` would be left out.
    """
    if wish.plan or "automatic" not in wish.kinds:
        return
    if dataset.needs_preparation:
        raise _refuse_unconfirmed("What the columns of this file hold is a guess of a program.")
    same = DataPlan.objects.filter(
        dataset=dataset, asked_hash=_hash(write_settings(wish)), plan__isnull=False
    )
    for plan in same:
        lost = count_lost(plan.plan["summary"])
        if is_much(lost, plan.plan["summary"]):
            raise _refuse_unconfirmed(
                f"{lost:,} of {plan.plan['summary']['rows_in']:,} rows would be left out."
            )


def count_lost(summary: Mapping[str, Any]) -> int:
    """Rows that a program leaves out for their content, ``PreparationSummary``'s JSON given."""
    lost = sum(summary["dropped"].get(step, 0) for step in _LOSING_STEPS)
    return lost - summary["exact_duplicates"] + summary["repetitive"]


def is_much(lost: int, summary: Mapping[str, Any]) -> bool:
    """Tell whether this many rows are left out only if their owner confirms it."""
    return lost > LOST_SHARE_MAX * summary["rows_in"]


def describe_losses(summary: Mapping[str, Any]) -> str:
    """The most frequent reasons for which rows are left out."""
    steps = (*_LOSING_STEPS, "filters")
    found = [each for step in steps for each in list(summary["reasons"].get(step, {}))[:2]]
    return " ".join(found)


def _refuse_unconfirmed(reason: str) -> Conflict:
    return Conflict(
        "plan_not_confirmed",
        f"{reason} Look at the data set's plan, confirm it, and name it in the bid.",
        param="preparation.plan",
    )
