"""Large files, sent in parts; what has arrived is noted here, so that it is not sent again."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from finetender import settings
from finetender.calls import Call, FilePart, Operation, Pause, draw_key, send
from finetender.errors import ConflictError, InvalidRequestError, NotFoundError

#: Larger files go in parts of so many bytes.
PARTS_FROM_BYTES = 32 * 1024**2
PART_BYTES = 16 * 1024**2
_JOINING, _LOOK_EVERY_S = "upload_joining", 1.0


class PartNotes:
    """Which parts of a file have arrived, in a file that the next attempt reads."""

    def __init__(self, key: str) -> None:
        variable = "LOCALAPPDATA" if settings.IS_WINDOWS else "XDG_CACHE_HOME"
        folder = Path(os.environ.get(variable) or "~/.cache").expanduser() / "finetender"
        self._path = folder / "uploads" / f"{key}.json"
        self.parts: dict[int, str] = {}

    def read(self, upload_id: str) -> None:
        """What is noted of this upload; of another one it says nothing."""
        self.parts = {}
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            noted = json.loads(self._path.read_text(encoding="utf-8"))
            if noted["upload"] == upload_id:
                self.parts = {int(at): str(part) for at, part in noted["parts"].items()}

    def note(self, upload_id: str, index: int, part_id: str) -> None:
        """Note a part. Where nothing can be noted, a next attempt begins at the first one."""
        self.parts[index] = part_id
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            new = self._path.with_suffix(".new")
            new.write_text(json.dumps({"upload": upload_id, "parts": self.parts}), encoding="utf-8")
            new.replace(self._path)

    def forget(self) -> None:
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def send_in_parts(
    file: Path, form: Mapping[str, str], *, key: str, stamp: tuple[int, ...]
) -> Operation[str]:
    """Send a file; gives the id of the upload that it became.

    Parameters
    ----------
    form
        As of a file that is sent at once: ``name``, ``zone``, ``faulty_lines``, ``long_rows``.
    key
        The same for the same file and form.
    stamp
        Of the file as the key was made (``stamp_file``).

    Raises
    ------
    UsageError
        The file is not what it was: what arrived of it is no part of the one that it is now.
    """
    notes = PartNotes(key)
    try:
        return (yield from _send_all(file, form, key, notes, stamp))
    except (ConflictError, NotFoundError, InvalidRequestError) as error:
        if error.code not in _BEGIN_AGAIN:
            raise
    # It was given up or has run out on the market's side.
    notes.forget()
    return (yield from _send_all(file, form, draw_key(), notes, stamp))


#: What the market says of parts, or of an announcement, that it has no longer.
_BEGIN_AGAIN = frozenset({"upload_not_pending", "unknown_upload", "unknown_part", "not_found"})


def _send_all(
    file: Path, form: Mapping[str, str], key: str, notes: PartNotes, stamp: tuple[int, ...]
) -> Operation[str]:
    size = stamp[0]
    body = {
        "filename": form["name"],
        "purpose": "fine-tune",
        "bytes": size,
        "mime_type": "application/octet-stream",
    }
    opened = yield from send(Call("POST", "/v1/uploads", json=body, idempotency_key=key))
    upload_id = str(opened.body["id"])
    notes.read(upload_id)
    where = f"/v1/uploads/{upload_id}"
    # Asked again, an upload that was completed is the same file.
    rest = {name: form[name] for name in ("zone", "faulty_lines", "long_rows") if name in form}
    count = math.ceil(size / PART_BYTES)
    for index in range(count):
        start = index * PART_BYTES
        if index in notes.parts:
            continue
        part = FilePart(file, start, min(PART_BYTES, size - start), size, stamp)
        try:
            call = Call("POST", f"{where}/parts", part=part, file_member="data")
            sent = yield from send(call)
        except ConflictError as error:
            if error.code != "upload_not_pending":
                raise
            # Perhaps it is complete, and only the answer was lost.
            notes.parts = dict.fromkeys(range(count), "sent")
            break
        notes.note(upload_id, index, str(sent.body["id"]))
    body = {"part_ids": [notes.parts[index] for index in range(count)], **rest}
    done: Mapping[str, Any] = {}
    while "file" not in done:
        try:
            done = (yield from send(Call("POST", f"{where}/complete", json=body))).body
        except ConflictError as error:
            if error.code != _JOINING:
                raise
        if "file" not in done:
            yield Pause(_LOOK_EVERY_S)
    notes.forget()
    return "up_" + str(done["file"]["id"]).removeprefix("file-")
