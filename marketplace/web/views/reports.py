"""The report on a data set: what it holds, and what each vendor would do with it."""

from __future__ import annotations

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from marketplace.common import clock
from marketplace.fleet.models import Zone
from marketplace.fleet.selectors import list_open_zones
from marketplace.vendors.models import VendorKind
from marketplace.vendors.selectors import find_report, list_offers
from marketplace.web.presenters.data_report import HEIGHT, WIDTH, present_report
from marketplace.web.views.requests import PageRequest, page
from marketplace.web.views.workspace import find_own_dataset
from workers.protocol.job_terms import PreparationWish


@page
@require_GET
def show_report(request: PageRequest, dataset_id: str) -> HttpResponse:
    dataset = find_own_dataset(request, dataset_id)
    report, now = find_report(dataset), clock.now()
    zone: Zone | None = dataset.zone or list_open_zones().first()
    wish = PreparationWish(kinds=tuple(VendorKind.values))
    offers = [] if zone is None else list_offers(zone=zone, dataset=dataset, wish=wish, now=now)
    context = {
        "dataset": dataset,
        "report": None if report is None else present_report(report),
        "offers": offers,
        "zone": zone,
        "width": WIDTH,
        "height": HEIGHT,
    }
    return render(request, "web/data_report.html", context)
