"""Pushing adapters to a hub of models, under a token of their owner's, which is then forgotten."""

from __future__ import annotations

import logging
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import huggingface_hub
from django.conf import settings
from django.db import transaction

from marketplace.accounts.models import Organisation, User
from marketplace.common.durable.kinds import Failure, HeldWork, WorkFailed
from marketplace.common.durable.services import NewWork, enqueue_work
from marketplace.common.encryption import decrypt_text, encrypt_text
from marketplace.common.errors import Conflict, UserError
from marketplace.exports.models import Export, ExportForm, ExportStatus, HubPush, PushStatus
from marketplace.jobs.models import Artifact, Job
from marketplace.jobs.selectors import get_finished_artifact
from marketplace.jobs.services import note_adapter_use
from workers.protocol.exports import MERGED

log = logging.getLogger(__name__)

TOKEN_CHARS_MAX = 500
#: The hub takes no more of a repository's name with its owner's.
REPOSITORY_CHARS_MAX = 96
_WORDS = r"[A-Za-z0-9_]+([.-][A-Za-z0-9_]+)*"
#: As clients may write one; what a push takes, the hub's own library checks.
REPOSITORY_PATTERN = rf"^(?!.*\.git$){_WORDS}/{_WORDS}$"
#: The kind of work that a push is.
PUSH = "exports.push"
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
    if export is None and not Artifact.objects.filter(job=job).exists():
        raise Conflict("no_adapter", f"The job is {job.status}; it has no adapter to push.")
    # Loaded where it is used; as attributes of the package these are there only once something
    # else has loaded them.
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repository)
    except HFValidationError:
        repository = ""
    if repository.count("/") != 1 or len(repository) > REPOSITORY_CHARS_MAX:
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
    with transaction.atomic():
        note_adapter_use(job_ids=[job.pk], now=now)
        push = HubPush.objects.create(
            organisation=organisation,
            asked_by=asked_by,
            job=job,
            export=export,
            repository=repository,
            token=encrypt_text(token),
            is_private=is_private,
            created_at=now,
        )
        enqueue_work(NewWork(PUSH, push.pk, due_at=now, owner=organisation.pk))
    return push


def load_push(work: HeldWork) -> HubPush | None:
    """The push, unless its owner was told that it ended: its token is forgotten then."""
    pushes = HubPush.objects.filter(pk=work.key, status=PushStatus.WAITING)
    return pushes.select_related("job", "export").first()


def send_push(_work: HeldWork, push: HubPush) -> str:
    """Send the files; the repository's address.

    Raises
    ------
    WorkFailed
        Finally where the hub refuses.
    """
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return _push(push)
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        raise WorkFailed(
            f"The hub answered {status or 'nothing'}: {error.server_message or 'no reason'}.",
            is_final=400 <= status < 500 and status not in (408, 429),
        ) from error
    # The library's transport changes between its versions, and so do the errors that it raises.
    except Exception as error:
        log.warning("a push failed", exc_info=error)
        raise WorkFailed(f"The hub could not be reached ({type(error).__name__}).") from error


def apply_push(_work: HeldWork, push: HubPush, url: str, *, now: datetime) -> None:
    """Store where the files are, and forget the token."""
    push.status, push.url, push.reason = PushStatus.PUSHED, url, ""
    _end(push, now=now)


def fail_push(work: HeldWork, failure: Failure, *, now: datetime) -> None:
    """Store why an attempt failed; after the last one, forget the token."""
    push = HubPush.objects.get(pk=work.key)
    push.reason = failure.reason.replace("\0", "")[:_REASON_CHARS]
    if failure.retry_at is None:
        push.status = PushStatus.FAILED
        _end(push, now=now)
    else:
        push.save(update_fields=["reason"])


def _end(push: HubPush, *, now: datetime) -> None:
    push.token, push.finished_at = "", now
    push.save(update_fields=["status", "url", "reason", "token", "finished_at"])


def _push(push: HubPush) -> str:
    """Send the files in one commit; the same files again change nothing. Gives the address."""
    api = huggingface_hub.HfApi(endpoint=settings.HUB_URL, token=decrypt_text(push.token))
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
            artifact = get_finished_artifact(push.job)
            with artifact.file.open("rb") as file, zipfile.ZipFile(file) as archive:
                archive.extractall(folder)
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
