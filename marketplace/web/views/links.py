"""Files by a signed link, for those who have it."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_GET

from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.exports.links import open_link


@require_GET
def download_linked_file(request: HttpRequest, token: str) -> HttpResponseBase:
    """The file, whole or in part; no cookie and no key is asked for."""
    try:
        answer: HttpResponseBase = open_link(
            token=token, range_header=request.headers.get("Range"), now=clock.now()
        )
    except UserError as error:
        answer = HttpResponse(f"{error.message}\n", status=error.status, content_type="text/plain")
    # The address is the right to read: it is not remembered, passed on or listed.
    answer["Cache-Control"] = "private, no-store"
    answer["Referrer-Policy"] = "no-referrer"
    answer["X-Robots-Tag"] = "noindex"
    return answer
