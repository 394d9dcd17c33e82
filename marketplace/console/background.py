"""The operator's page of work that is done later: what waits, what failed, and why."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from marketplace.common import clock
from marketplace.common.durable.selectors import list_troubled_work, summarize_kinds
from marketplace.common.durable.services import try_again
from marketplace.web.views.requests import PageRequest, operator_page

LISTED = 100


@operator_page
@require_GET
def show_work(request: PageRequest) -> HttpResponse:
    context = {
        "kinds": summarize_kinds(now=clock.now()),
        "troubled": list_troubled_work(limit=LISTED),
    }
    return render(request, "console/background.html", context)


@operator_page
@require_POST
def retry_work(request: PageRequest, work_id: int) -> HttpResponse:
    if try_again(work_id=work_id, now=clock.now()):
        messages.success(request, "It is tried again now.")
    else:
        messages.error(request, "It is done by now, or a worker has it.")
    return redirect("operator_background")
