"""The page on which anybody checks a receipt or a transcript; the check runs in the browser."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from marketplace.fleet.selectors import list_open_zones
from marketplace.web.views.requests import public_page


@public_page
@require_GET
def show_verify(request: HttpRequest) -> HttpResponse:
    return render(request, "web/verify.html", {"zones": list_open_zones()})
