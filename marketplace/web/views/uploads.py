"""Uploads as the pages show them: received, read, decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from marketplace.common import clock
from marketplace.common.errors import NotFound, UserError
from marketplace.fleet.models import Zone
from marketplace.jobs.models import Upload, UploadStatus
from marketplace.jobs.selectors import build_upload_error
from marketplace.jobs.services import decide_upload, receive_upload, wait_for_upload
from marketplace.jobs.upload_choices import UploadChoices, merge_choices
from marketplace.web.presenters.data_plan import list_roles
from marketplace.web.views.requests import PageRequest

#: How long a page waits for a file to be read before it shows how far that is.
WAIT_S = 2.0
#: Names that a table's columns may get on a page, in the order of their format.
COLUMN_NAMES = ("prompt", "completion", "text", "label", "chosen", "rejected")


@dataclass(frozen=True, slots=True)
class ShownUpload:
    """An upload that is no data set yet, as a page shows it."""

    upload: Upload

    @property
    def is_reading(self) -> bool:
        return self.upload.status in (UploadStatus.WAITING, UploadStatus.READING)

    @property
    def error(self) -> UserError | None:
        is_refused = self.upload.status == UploadStatus.REFUSED
        return build_upload_error(self.upload) if is_refused else None

    @property
    def found(self) -> dict[str, Any]:
        """What the file was found to hold, where something is to be chosen."""
        return self.upload.reading or {}

    @property
    def asks_columns(self) -> bool:
        return bool(self.found.get("columns"))

    @property
    def asked_keys(self) -> list[tuple[str, str]]:
        """Each key of JSON rows that training does not know, with what it most likely holds."""
        keys: list[str] = self.found.get("keys", [])
        meant = {_guess(role, keys): role for role in ("prompt", "completion")}
        return [(key, meant.get(key, "")) for key in keys]

    @property
    def roles(self) -> list[tuple[str, str]]:
        return list_roles()

    @property
    def column_choices(self) -> list[tuple[str, str]]:
        """Each name that a column may get, with the column that is most likely meant."""
        columns = self.found.get("columns", [])
        return [(name, _guess(name, columns)) for name in COLUMN_NAMES]


#: What others call the columns of a prompt and of its answer.
_GUESSES = {
    "prompt": ("question", "instruction", "input", "query", "user", "source"),
    "completion": ("answer", "response", "output", "reply", "assistant", "target"),
}


def _guess(name: str, columns: list[str]) -> str:
    likely = (name, *_GUESSES.get(name, ()))
    return next((column for word in likely for column in columns if column == word), "")


def receive_page_upload(request: PageRequest, *, zone: Zone | None = None) -> Upload | None:
    """The file of a form, stored and read for as long as a page may take; ``None`` without one.

    Raises
    ------
    UserError
        It was refused before it was stored.
    """
    file = request.FILES.get("file")
    if file is None:
        return None
    upload = receive_upload(
        organisation=request.organisation,
        name=file.name or "data set",
        content=file,
        uploaded_by=request.user,
        now=clock.now(),
        zone=zone,
    )
    return wait_for_upload(upload, within_s=WAIT_S)


def follow_page_upload(request: PageRequest, upload: Upload) -> Upload:
    """The upload with the choices that a form made, read again for as long as a page may take.

    Raises
    ------
    UserError
    """
    if upload.status == UploadStatus.UNDECIDED and "decided" in request.POST:
        upload = decide_upload(upload=upload, choices=_read(request, upload), now=clock.now())
    return wait_for_upload(upload, within_s=WAIT_S)


def find_upload(request: PageRequest, upload_id: str) -> Upload:
    """One of the organisation's uploads.

    Raises
    ------
    NotFound
        ``unknown_upload``.
    """
    uploads = Upload.objects.filter(organisation=request.organisation)
    found = uploads.select_related("zone").filter(pk=upload_id.replace("\0", "")).first()
    if found is None:
        raise NotFound("unknown_upload", "This upload is not here any more. Upload the file again.")
    return found


def _read(request: PageRequest, upload: Upload) -> UploadChoices:
    chosen: dict[str, Any] = {
        name: request.POST[name] for name in ("faulty_lines", "long_rows") if name in request.POST
    }
    columns = {name: request.POST.get(f"column_{name}", "") for name in COLUMN_NAMES}
    if any(columns.values()):
        chosen["columns"] = {name: column for name, column in columns.items() if column}
    keys: list[str] = (upload.reading or {}).get("keys", [])
    roles = {key: request.POST.get(f"role_{number}", "") for number, key in enumerate(keys)}
    if any(roles.values()):
        chosen["roles"] = {key: role for key, role in roles.items() if role}
    return merge_choices(upload, chosen)
