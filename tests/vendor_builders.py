"""Vendors, messy data and bids with a preparation, for tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from django.core.files.base import ContentFile

from marketplace.accounts.models import Organisation
from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.auction.models import Bid
from marketplace.common.durable.kinds import get_kinds
from marketplace.common.durable.run import run_due_work
from marketplace.fleet.models import Zone
from marketplace.jobs.models import Dataset, Job
from marketplace.vendors.handover import PREPARE
from marketplace.vendors.listing import VendorTerms, approve_vendor, register_vendor
from marketplace.vendors.models import Preparation, Vendor, VendorKind
from marketplace.vendors.plans import MAKE, confirm_plan, request_plan
from marketplace.vendors.quoting import QuoteFunction
from tests import builders
from tests import market_builders as market
from tests.builders import NOW
from tests.durable_work import do_work
from workers.protocol.job_terms import PreparationWish

#: Two cents and two slots, whatever the data.
QUOTES = QuoteFunction(
    minimum_micros=20_000,
    micros_per_1000_rows=0,
    micros_per_1000_tokens=0,
    base_s=15,
    s_per_1000_rows=0,
)


def chat(number: int, *, price: str | None = None) -> str:
    asked = f"What does item {number} cost in shop {number * 7} of street {number * 31}?"
    said = [("user", asked), ("assistant", price or f"{number * 13} dollars.")]
    return json.dumps({"messages": [{"role": role, "content": text} for role, text in said]})


def traced(number: int, row: str) -> str:
    """The row as a vendor delivers it, with the id of the row that it was."""
    return json.dumps({"row_id": number} | json.loads(row))


#: 40 good rows, 50 copies of the first, and 10 rows with a comma too many: 100 lines, 50 rows.
MESSY = "\n".join(
    [*map(chat, range(40)), *[chat(0)] * 50, *[chat(n)[:-1] + ",}" for n in range(50, 60)]]
)
#: Three sound rows, one with a comma too many, and one that no program can repair.
FEW = "\n".join([*map(chat, range(3)), chat(3)[:-1] + ",}", "not a row"])


def zone() -> Zone:
    made = market.zone()
    made.tokenizer_source = "bundled:finetender-tiny"
    made.save()
    return made


def vendor(
    made: Zone,
    name: str = "Tidy",
    *,
    kind: VendorKind = VendorKind.AUTOMATIC,
    rows_per_slot: int = 100,
    of: Organisation | None = None,
    late_percent: int = 0,
    endpoint: str = "",
    skills: tuple[str, ...] = ("format_repair",),
    **quotes: Any,
) -> Vendor:
    terms = VendorTerms(
        name=name,
        kind=kind,
        skills=list(skills),
        quotes=replace(QUOTES, **quotes),
        rows_per_slot={made: rows_per_slot},
        late_percent=late_percent,
        endpoint=endpoint,
    )
    listed = register_vendor(organisation=of or builders.organisation(), terms=terms, now=NOW)
    return approve_vendor(vendor=listed, approved_by=None, now=NOW)


def upload(owner: Organisation, made: Zone, text: str = MESSY, *, faulty: int = 10) -> Dataset:
    data = market.dataset(owner, made, rows=text.count("\n") + 1 - faulty)
    data.faulty = faulty
    data.file.save("data", ContentFile(text.encode()), save=False)
    data.bytes = len(text)
    data.save()
    return data


def confirmed_plan(owner: Organisation, data: Dataset, **wish: Any) -> str:
    """The id of a plan for a data set, made and confirmed."""
    assert data.zone is not None
    plan = request_plan(dataset=data, zone=data.zone, wish=PreparationWish(**wish), now=NOW)
    run_due_work(get_kinds()[MAKE], clock=clock)
    plan.refresh_from_db()
    return confirm_plan(plan=plan, confirmed_by=builders.owner_of(owner), now=NOW).pk


def sell(owner: Organisation, made: Zone, **terms: Any) -> tuple[Bid, Job | None]:
    terms = {"preparation": {"validation_share": 0.0}, "epochs": 3} | terms
    data = terms.pop("data", None) or upload(owner, made)
    bid = market.bid(owner, made, data=data, **terms)
    decide_pending_bids(zone=made, now=NOW)
    bid.refresh_from_db()
    return bid, Job.objects.filter(bid_id=bid.pk).first()


def sell_few(owner: Organisation, made: Zone, **wish: Any) -> Preparation:
    """Five lines of data sold with a preparation that has been handed over."""
    terms = {"kinds": ["human", "outside"], "validation_share": 0.0} | wish
    sell(owner, made, data=upload(owner, made, FEW, faulty=2), epochs=1, preparation=terms)
    assert prepare_next(clock=clock)
    return Preparation.objects.select_related("vendor", "job").get()


def clock() -> datetime:
    """Within the present slot."""
    return NOW + timedelta(seconds=3)


def prepare_next(*, clock: Callable[[], datetime]) -> bool:
    """Do what is due about preparations; whether something was."""
    return do_work(PREPARE, now=clock()) > 0
