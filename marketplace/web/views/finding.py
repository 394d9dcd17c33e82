"""Finding things by name: the page, and the palette that Ctrl-K opens on every page."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from marketplace.web.presenters.finding import Thing, find_things
from marketplace.web.templatetags.frame import list_nav_groups
from marketplace.web.views.requests import PageRequest, person_page

WORDS_MAX = 80


@person_page
@require_safe
def show_found(request: PageRequest) -> HttpResponse:
    words = request.GET.get("q", "").replace("\0", "").strip()[:WORDS_MAX]
    pages = [
        Thing(name=link.label, detail=group.title, href=link.href)
        for group in list_nav_groups(request)
        for link in group.links
    ]
    groups = find_things(words, user=request.user, organisation=request.organisation, pages=pages)
    if _wants_json(request):
        found = [{"title": each.title, "things": list(each.things)} for each in groups]
        return JsonResponse({"groups": found})
    return render(request, "web/found.html", {"words": words, "groups": groups})


def _wants_json(request: HttpRequest) -> bool:
    return request.get_preferred_type(["text/html", "application/json"]) == "application/json"
