"""The playground: a prompt answered by a base model and an adapter side by side."""

from __future__ import annotations

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from marketplace.web.views.requests import PageRequest, page

#: Both sides by the name of their model in the page's address.
SIDES = (("base", "Base model"), ("tuned", "Tuned model"))


@page
@require_GET
def show_playground(request: PageRequest) -> HttpResponse:
    """The page itself; its script asks the models over ``/v1``, as any program does."""
    return render(request, "web/playground.html", {"sides": SIDES})
