"""What a provider's machine installs the node from: this market serves its own release."""

from __future__ import annotations

from django.http import HttpRequest
from django.views.decorators.http import require_safe

from marketplace.common.downloads import FileDownload
from marketplace.common.errors import NotFound
from marketplace.common.request_rates import check_public_rate
from marketplace.fleet.releases import find_install_file, hash_install_file


@require_safe
def download_install_file(request: HttpRequest, name: str) -> FileDownload:
    """The node's wheel, the versions it was tried with, or what its image is built from."""
    # Megabytes for each request: counted as downloads of a log are.
    check_public_rate(request, kind="transcripts")
    path = find_install_file(name)
    if path is None:
        raise NotFound("unknown_file", "This market serves no such file.")
    found = path.stat()
    response = FileDownload(
        path.open("rb"),
        size=found.st_size,
        sha256=hash_install_file(path, found.st_mtime_ns),
        name=name,
    )
    # A market that was updated serves another file under the same address.
    response["Cache-Control"] = "no-cache"
    return response
