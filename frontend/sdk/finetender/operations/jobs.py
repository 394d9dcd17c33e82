"""Jobs, and what they leave: checkpoints, samples, the adapter and its exports."""

from __future__ import annotations

from finetender.calls import Call, Operation, Pause, send
from finetender.errors import ExportFailedError, NotFoundError
from finetender.operations.data import LOOK_EVERY_S, check_id
from finetender.values import Job, Raw


def list_jobs(*, status: str | None = None, limit: int = 20) -> Operation[tuple[Job, ...]]:
    """The newest jobs."""
    params = {"limit": str(limit)} | ({} if status is None else {"status": status})
    answer = yield from send(Call("GET", "/api/jobs", params=params))
    return tuple(Job.read(raw) for raw in answer.body["data"])


def get_job(job_id: str) -> Operation[Job]:
    answer = yield from send(Call("GET", f"/api/jobs/{check_id(job_id)}"))
    return Job.read(answer.body)


def cancel_job(job_id: str, *, refund_at_least: str | None = None) -> Operation[Job]:
    """End a job; what is left of it goes back at 98 % of its value.

    With ``refund_at_least``, dollars, the job goes on where less would go back.
    """
    body = {} if refund_at_least is None else {"refund_at_least": refund_at_least}
    answer = yield from send(Call("POST", f"/api/jobs/{check_id(job_id)}/cancel", json=body))
    return Job.read(answer.body)


def pause_job(job_id: str, *, refund_at_least: str | None = None) -> Operation[Job]:
    """End a job for now; what is left goes back as by ``cancel_job``.

    Its last checkpoint stays, and ``resume_job`` goes on from it.
    """
    body = {} if refund_at_least is None else {"refund_at_least": refund_at_least}
    answer = yield from send(Call("POST", f"/api/jobs/{check_id(job_id)}/pause", json=body))
    return Job.read(answer.body)


def list_checkpoints(job_id: str) -> Operation[tuple[Raw, ...]]:
    """The stored checkpoints, newest first."""
    answer = yield from send(Call("GET", f"/api/jobs/{check_id(job_id)}/checkpoints"))
    return tuple(answer.body["data"])


def list_samples(job_id: str) -> Operation[tuple[Raw, ...]]:
    """What the model writes on held-out prompts, before and after training."""
    answer = yield from send(Call("GET", f"/api/jobs/{check_id(job_id)}/samples"))
    return tuple(answer.body["data"])


def find_model_name(model: str) -> Operation[str]:
    """The name that a model is asked by; a job's id stands for what the job made.

    Raises
    ------
    NotFoundError
        The job has made none yet.
    """
    if not model.startswith("ftjob-"):
        return model
    found = yield from send(Call("GET", f"/v1/fine_tuning/jobs/{model}"))
    name = found.body["fine_tuned_model"]
    if name is None:
        detail = f"{model} is {found.body['status']}; it can be asked once it has succeeded."
        raise NotFoundError(404, {"code": "no_adapter", "detail": detail})
    return name


def list_exports(job_id: str) -> Operation[tuple[Raw, ...]]:
    """The adapter's other forms that were asked for, newest first."""
    answer = yield from send(Call("GET", f"{_job_path(job_id)}/exports"))
    return tuple(answer.body["data"])


def export_adapter(job_id: str, form: str, checkpoint_id: str | None = None) -> Operation[Raw]:
    """Have an adapter merged into its base model, and wait for the file.

    Parameters
    ----------
    form
        ``merged`` (a tar for ``transformers``), ``gguf-f16`` or ``gguf-q8_0``. It is paid at the
        market's price; one that is there costs nothing.
    checkpoint_id
        The adapter as it was at this checkpoint, in place of the finished one.

    Raises
    ------
    ExportFailedError
    """
    where = f"{_job_path(job_id)}/exports"
    body = {"form": form, "checkpoint_id": checkpoint_id}
    export = (yield from send(Call("POST", where, json=body))).body
    while export["status"] in ("waiting", "asked"):
        yield Pause(LOOK_EVERY_S)
        export = (yield from send(Call("GET", f"{where}/{check_id(export['id'])}"))).body
    if export["status"] != "ready":
        raise ExportFailedError(export["failure_reason"] or f"The export is {export['status']}.")
    return export


def push_adapter(
    job_id: str,
    repository: str,
    *,
    token: str,
    private: bool = True,
    export_id: str | None = None,
) -> Operation[Raw]:
    """Push an adapter, or one of its exports, to a model hub, and wait until it is there.

    Raises
    ------
    ExportFailedError
    """
    where = f"{_job_path(job_id)}/pushes"
    body = {"repository": repository, "token": token, "private": private, "export_id": export_id}
    push = (yield from send(Call("POST", where, json=body))).body
    while push["status"] == "waiting":
        yield Pause(LOOK_EVERY_S)
        push = (yield from send(Call("GET", f"{where}/{check_id(push['id'])}"))).body
    if push["status"] != "pushed":
        raise ExportFailedError(push["failure_reason"] or f"The push is {push['status']}.")
    return push


def build_export_path(job_id: str, export_id: str) -> str:
    return f"{_job_path(job_id)}/exports/{check_id(export_id)}/content"


def build_adapter_path(job_id: str) -> str:
    return f"{_job_path(job_id)}/adapter"


def build_checkpoint_path(job_id: str, checkpoint_id: str) -> str:
    return f"{_job_path(job_id)}/checkpoints/{check_id(checkpoint_id)}/content"


def build_events_path(job_id: str) -> str:
    return f"{_job_path(job_id)}/events/stream"


def _job_path(job_id: str) -> str:
    return f"/api/jobs/{check_id(job_id)}"
