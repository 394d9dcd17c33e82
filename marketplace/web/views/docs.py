"""``/docs``: guides, the reference of both APIs, and a search through them."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from marketplace.web.presenters.docs import SURFACES, load_guides, load_reference, search_docs
from marketplace.web.views.requests import public_page

#: Letters of a search that are looked at.
SEARCHED_CHARS = 100


@public_page
@require_GET
def show_docs(request: HttpRequest) -> HttpResponse:
    """The list of guides, or what a search found."""
    words = request.GET.get("q", "")[:SEARCHED_CHARS]
    context = _frame() | {"words": words, "found": search_docs(words) if words else None}
    return render(request, "web/docs.html", context)


@public_page
@require_GET
def show_guide(request: HttpRequest, slug: str) -> HttpResponse:
    guide = load_guides().get(slug)
    if guide is None:
        raise Http404
    return render(request, "web/docs_guide.html", _frame() | {"guide": guide})


@public_page
@require_GET
def show_reference(request: HttpRequest, surface: str) -> HttpResponse:
    if surface not in SURFACES:
        raise Http404
    context = {"title": SURFACES[surface], "operations": load_reference(surface)}
    return render(request, "web/docs_reference.html", _frame() | context)


def _frame() -> dict[str, object]:
    """What the side of every page lists."""
    return {"guides": load_guides().values(), "surfaces": SURFACES}
