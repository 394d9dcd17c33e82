"""Notices: what a person is to know, and what of it is mailed to them."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from marketplace.accounts.models import Membership
from marketplace.accounts.policy import ROLES_BY_RIGHT
from marketplace.common import clock
from marketplace.common.errors import NotFound
from marketplace.web.views.requests import PageRequest, person_page, show_refusal
from marketplace.webhooks.models import Notice
from marketplace.webhooks.news import NOTICE_KINDS
from marketplace.webhooks.notices import get_mailed_kinds, mark_read, set_mailed_kinds

ROWS_PER_PAGE = 30


@person_page
@require_safe
def show_notices(request: PageRequest) -> HttpResponse:
    own = Notice.objects.filter(user=request.user, organisation=request.organisation)
    before = request.GET.get("before", "").replace("\0", "")[:40]
    found = list(
        (own.filter(pk__lt=before) if before else own).order_by("-pk")[: ROWS_PER_PAGE + 1]
    )
    shown = found[:ROWS_PER_PAGE]
    context = {
        "notices": shown,
        # Also of those on other pages: the number in the menu counts them.
        "has_unread": own.filter(read_at=None).exists(),
        "is_later": bool(before),
        "older": shown[-1].pk if len(found) > ROWS_PER_PAGE else None,
    }
    return render(request, "web/notices.html", context)


@person_page
@require_POST
def open_notice(request: PageRequest, notice_id: str) -> HttpResponse:
    """Mark a notice as read and go to the page that says more."""
    own = Notice.objects.filter(user=request.user, organisation=request.organisation)
    notice = own.filter(pk=notice_id.replace("\0", "")).first()
    if notice is None:
        raise NotFound("unknown_notice", "You have no such notice.")
    mark_read(
        user=request.user,
        organisation=request.organisation,
        now=clock.now(),
        notice_id=notice.pk,
    )
    return redirect(notice.path)


@person_page
@require_POST
def read_notices(request: PageRequest) -> HttpResponse:
    mark_read(user=request.user, organisation=request.organisation, now=clock.now())
    return redirect("notice_list")


@person_page
@require_http_methods(["GET", "POST"])
def choose_notices(request: PageRequest) -> HttpResponse:
    who = {"user": request.user, "organisation": request.organisation}
    role = Membership.objects.values_list("role", flat=True).get(**who)
    offered = {
        name: kind for name, kind in NOTICE_KINDS.items() if role in ROLES_BY_RIGHT[kind.right]
    }
    mailed = get_mailed_kinds(**who)
    if request.method == "POST":
        # What the role is not offered stays as it was, for when the role is another.
        others = [name for name in mailed if name not in offered]
        with show_refusal(request):
            set_mailed_kinds(**who, kinds=[*request.POST.getlist("mailed"), *others])
            messages.success(request, "Your choice is stored.")
        return redirect("notice_settings")
    kinds = [
        {"name": name, "label": kind.label, "is_mailed": name in mailed}
        for name, kind in offered.items()
    ]
    return render(request, "web/notice_settings.html", {"kinds": kinds})
