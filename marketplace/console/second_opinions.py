"""Second opinions: a person does a delivered row again, without seeing what was delivered."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods

from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.console.vendor_work import EMPTY_ROW, ROLES, read_turns, read_value
from marketplace.vendors.opinions import find_opinion, give_opinion, list_opinions_for
from marketplace.vendors.wishes import parse_wish
from marketplace.web.views.requests import PageRequest, page


@page
@require_GET
def take_next(request: PageRequest) -> HttpResponse:
    """To the next row that waits for the person, or back."""
    row = list_opinions_for(request.user).first()
    if row is None:
        messages.success(request, "No row waits for a second opinion of yours.")
        return redirect("operator_vendors" if request.user.is_operator else "vendor_list")
    return redirect("opinion", opinion_id=row.pk)


@page
@require_http_methods(["GET", "POST"])
def give(request: PageRequest, opinion_id: int) -> HttpResponse:
    """One row; ``do`` says whether it is saved as edited or left out."""
    now = clock.now()
    opinion = find_opinion(opinion_id=opinion_id, user=request.user, now=now)
    error: UserError | None = None
    value = ""
    if request.method == "POST":
        value = read_value(request)
        is_dropped = request.POST.get("do") == "drop"
        try:
            give_opinion(
                opinion=opinion,
                user=request.user,
                value="" if is_dropped else value or "{}",
                now=now,
            )
            return redirect("opinion_next")
        except UserError as refusal:
            error = refusal
    text = value or opinion.proposal or EMPTY_ROW
    context = {
        "row": opinion,
        "wish": parse_wish(opinion.preparation.wish),
        "error": error,
        "text": text,
        "turns": read_turns(text),
        "roles": ROLES,
    }
    status = 200 if error is None else error.status
    return render(request, "console/second_opinion.html", context, status=status)
