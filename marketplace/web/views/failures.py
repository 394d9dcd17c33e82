"""What a page says when the market fails."""

import sys

from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string

from marketplace.common.errors import DiskFull, is_disk_full


def show_failure(_request: HttpRequest) -> HttpResponse:
    """Say that there is no room where that is why; Django calls this while it handles the error."""
    full = DiskFull() if is_disk_full(sys.exc_info()[1]) else None
    return HttpResponse(
        render_to_string("500.html", {"full": full}), status=full.status if full else 500
    )
