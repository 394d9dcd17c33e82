"""Pushing adapters to a hub of models, under a token of their owner's, which is then forgotten."""

from __future__ import annotations

import logging
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

from django.conf import settings
from django.db import transaction
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils import validate_repo_id

from marketplace.accounts.models import Organisation, User
from marketplace.common.backoff import compute_backoff
from marketplace.common.encryption import decrypt_text, encrypt_text
from marketplace.common.errors import Conflict, UserError
from marketplace.exports.locks import lock_due_push
from marketplace.exports.models import Export, ExportForm, ExportStatus, HubPush, PushStatus
from marketplace.jobs.models import Artifact, Job
from workers.protocol.exports import MERGED
from workers.protocol.messages import ADAPTER_FILES

log = logging.getLogger(__name__)

TOKEN_CHARS_MAX = 500
ATTEMPTS_MAX = 5
#: A worker that has not ended by then is dead, and another one tries.
PUSHED_WITHIN = timedelta(hours=2)
#: Before the second attempt; doubled before each further one.
FIRST_PAUSE = timedelta(seconds=30)
_REASON_CHARS = 500
_COMMIT = "An adapter trained on Finetender"


def ask_push(
    *,
    organisation: Organisation,
    asked_by: User | None,
    job: Job,
    export: Export | None,
    repository: str,
    token: str,
    is_private: bool,
    now: datetime,
) -> HubPush:
    """Have an adapter, or an export that is ready, pushed to a repository.

    Raises
    ------
    Conflict
        ``no_adapter``, or ``export_not_ready``.
    UserError
        ``invalid_repository`` or ``invalid_token``.
    """
    if export is not None and export.status != ExportStatus.READY:
        raise Conflict(
            "export_not_ready", f"The export is {export.status}; push it once it is ready."
        )
    if not Artifact.objects.filter(job=job).exists():
        raise Conflict("no_adapter", f"The job is {job.status}; it has no adapter to push.")
    try:
        validate_repo_id(repository)
    except HFValidationError:
        repository = ""
    if repository.count("/") != 1 or len(repository) > 200:
        raise UserError(
            "invalid_repository", "Give a repository such as name/model.", param="repository"
        )
    if not token.isascii() or not token.isprintable() or not 1 <= len(token) <= TOKEN_CHARS_MAX:
        raise UserError(
            "invalid_token",
            "Give a token of the hub that may write to the repository.",
            param="token",
        )
    waiting = HubPush.objects.filter(
        job=job, export=export, repository=repository, status=PushStatus.WAITING
    )
    # A request that is sent again; two at once push the same files twice, which changes nothing.
    if (same := waiting.first()) is not None:
        return same
    return HubPush.objects.create(
        organisation=organisation,
        asked_by=asked_by,
        job=job,
        export=export,
        repository=repository,
        token=encrypt_text(token),
        is_private=is_private,
        due_at=now,
        created_at=now,
    )


def push_next(*, clock: Callable[[], datetime]) -> bool:
    """Push what waits longest; whether there was something."""
    with transaction.atomic():
        push = lock_due_push(now=clock())
        if push is None:
            return False
        push.attempts += 1
        push.due_at = clock() + PUSHED_WITHIN
        push.save(update_fields=["attempts", "due_at"])
    reason, is_final = "", True
    try:
        push.url = _push(push)
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        is_final = 400 <= status < 500 and status not in (408, 429)
        reason = f"The hub answered {status or 'nothing'}: {error.server_message or 'no reason'}."
    # The library's transport changes between its versions, and so do the errors that it raises.
    except Exception as error:
        log.warning("a push failed", exc_info=error)
        reason, is_final = f"The hub could not be reached ({type(error).__name__}).", False
    _record(push, reason, is_final=is_final or push.attempts >= ATTEMPTS_MAX, now=clock())
    return True


def _record(push: HubPush, reason: str, *, is_final: bool, now: datetime) -> None:
    """Store what came of an attempt, unless a later one has begun: this one was too late."""
    current = HubPush.objects.filter(pk=push.pk, attempts=push.attempts, status=PushStatus.WAITING)
    reason = reason.replace("\0", "")[:_REASON_CHARS]
    if reason and not is_final:
        pause = compute_backoff(failures=push.attempts, first=FIRST_PAUSE, most=PUSHED_WITHIN)
        current.update(reason=reason, due_at=now + pause)
    else:
        status = PushStatus.FAILED if reason else PushStatus.PUSHED
        current.update(status=status, token="", url=push.url, reason=reason, finished_at=now)


def _push(push: HubPush) -> str:
    """Send the files in one commit; the same files again change nothing. Gives the address."""
    api = HfApi(endpoint=settings.HUB_URL, token=decrypt_text(push.token))
    created = api.create_repo(push.repository, private=push.is_private, exist_ok=True)
    with _unpack(push) as folder:
        api.upload_folder(repo_id=created.repo_id, folder_path=folder, commit_message=_COMMIT)
    return str(created)


@contextmanager
def _unpack(push: HubPush) -> Iterator[Path]:
    """The files of an adapter or of an export, and no others, in a folder of their own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if push.export is None:
            artifact: Artifact = push.job.artifact  # type: ignore[attr-defined]
            with artifact.file.open("rb") as file, zipfile.ZipFile(file) as archive:
                for member in set(archive.namelist()) & set(ADAPTER_FILES):
                    archive.extract(member, folder)
        elif push.export.form == MERGED:
            path = folder / "model.tar"
            _copy(push.export, path)
            shutil.unpack_archive(path, folder, filter="data")
            path.unlink()
        else:
            kind = ExportForm(push.export.form).removeprefix("gguf-")
            _copy(push.export, folder / f"{push.repository.partition('/')[2]}-{kind}.gguf")
        yield folder


def _copy(export: Export, target: Path) -> None:
    with export.file.open("rb") as source, target.open("wb") as copy:
        shutil.copyfileobj(source, copy)
