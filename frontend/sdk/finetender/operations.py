"""Everything that can be asked of the market, each once for both clients."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from finetender.calls import Answer, Call, Operation, Pause, new_key, send
from finetender.deadlines import parse_deadline
from finetender.errors import ExportFailedError, NotFoundError, UsageError, build_error
from finetender.values import Bid, Dataset, ExpressAnswer, ExpressQuote, Job, Quote, Raw, Zone

#: Seconds between two looks at what is not decided yet.
LOOK_EVERY_S = 0.5
#: Looks at what a lookup found, until a market that is slow to note it is not waited for.
LOOKUP_LOOKS = 40
Data = str | os.PathLike[str] | Dataset
Settings = Mapping[str, Any]
Deadline = str | datetime | timedelta


def list_zones() -> Operation[tuple[Zone, ...]]:
    """The zones that take bids."""
    answer = yield from send(Call("GET", "/api/zones"))
    return _read_zones(answer)


def upload(
    path: str | os.PathLike[str],
    *,
    zone: str | None = None,
    name: str | None = None,
    faulty_lines: str = "refuse",
    long_rows: str = "refuse",
) -> Operation[Dataset]:
    """Store training data; the same file again within a day is the same data set.

    Parameters
    ----------
    faulty_lines, long_rows
        What becomes of rows that cannot be used as they are: ``refuse`` the file, ``leave_out``,
        and for long rows ``cut``.
    """
    file = Path(path)
    form = {"faulty_lines": faulty_lines, "long_rows": long_rows, "name": name or file.name}
    if zone is not None:
        form["zone"] = zone
    key = f"sdk-{_hash_file(file, form)}"
    answer = yield from send(
        Call("POST", "/api/datasets", form=form, file=file, idempotency_key=key)
    )
    if answer.status == 201:
        return Dataset.read(answer.body)
    where = f"/api/uploads/{answer.body['id']}"
    while True:
        yield Pause(LOOK_EVERY_S)
        seen = (yield from send(Call("GET", where))).body
        if seen["error"] is not None:
            raise build_error(400, seen["error"])
        if seen["dataset_id"] is not None:
            found = yield from send(Call("GET", f"/api/datasets/{seen['dataset_id']}"))
            return Dataset.read(found.body)


def ensure_dataset(data: Data, *, zone: str | None = None) -> Operation[Dataset]:
    """The data set of a file, which is stored first, or of an id."""
    if isinstance(data, Dataset):
        return data
    found = _choose_zone((yield from list_zones()), zone)
    dataset_id = yield from _find_dataset_id(data, found.name)
    return Dataset.read((yield from send(Call("GET", f"/api/datasets/{dataset_id}"))).body)


def get_quote(
    data: Data,
    *,
    deadline: Deadline,
    zone: str | None = None,
    adapter: Settings | None = None,
    training: Settings | None = None,
    model: str = "",
    preparation: Settings | None = None,
    validation: Data | None = None,
    verified_only: bool | None = None,
) -> Operation[Quote]:
    """What a job would cost now, and by deadline; it reserves nothing.

    Parameters
    ----------
    validation
        Whose rows are held out; without it, a share of the data's own.
    verified_only
        Nodes of verified providers only; without it, as your organisation has it.
    """
    body = yield from _build_work(data, zone, deadline, adapter, training, model, validation)
    body |= {"preparation": preparation, "verified_only": verified_only}
    answer = yield from send(Call("POST", "/api/quotes", json=body))
    return Quote.read(answer.body, dataset_id=body["dataset_id"])


def place_bid(
    data: Data,
    *,
    price: str | float | Decimal,
    deadline: Deadline,
    name: str | None = None,
    zone: str | None = None,
    adapter: Settings | None = None,
    training: Settings | None = None,
    model: str = "",
    preparation: Settings | None = None,
    validation: Data | None = None,
    verified_only: bool | None = None,
    idempotency_key: str | None = None,
) -> Operation[Bid]:
    """Bid for a job, and wait until the bid is decided.

    Parameters
    ----------
    price
        The most the job is worth, in dollars. What is paid does not depend on it.
    validation
        Whose rows are held out; without it, a share of the data's own.
    verified_only
        Nodes of verified providers only; without it, as your organisation has it.

    Raises
    ------
    BidRefusedError
        With the price that would have won.
    """
    body = yield from _build_work(data, zone, deadline, adapter, training, model, validation)
    body |= {"price": str(price), "preparation": preparation, "verified_only": verified_only}
    if name is not None:
        body["name"] = name
    key = idempotency_key or new_key()
    answer = yield from send(Call("POST", "/api/bids", json=body, idempotency_key=key))
    bid = Bid.read(answer.body)
    while bid.status == "pending":
        yield Pause(LOOK_EVERY_S)
        bid = yield from get_bid(bid.id)
    if bid.status == "refused":
        decision = bid.raw["decision"]
        told = {**decision, "detail": decision["reason_text"], "bid": bid.raw}
        raise build_error(402, {**told, "code": decision["reason"]})
    return bid


def get_bid(bid_id: str) -> Operation[Bid]:
    answer = yield from send(Call("GET", f"/api/bids/{check_id(bid_id)}"))
    return Bid.read(answer.body)


def cancel_bid(bid_id: str) -> Operation[Bid]:
    """Take a bid back that is not decided yet."""
    answer = yield from send(Call("POST", f"/api/bids/{check_id(bid_id)}/cancel", json={}))
    return Bid.read(answer.body)


def list_jobs(*, status: str | None = None, limit: int = 20) -> Operation[tuple[Job, ...]]:
    """The newest jobs."""
    params = {"limit": str(limit)} | ({} if status is None else {"status": status})
    answer = yield from send(Call("GET", "/api/jobs", params=params))
    return tuple(Job.read(raw) for raw in answer.body["data"])


def get_job(job_id: str) -> Operation[Job]:
    answer = yield from send(Call("GET", f"/api/jobs/{check_id(job_id)}"))
    return Job.read(answer.body)


def cancel_job(job_id: str) -> Operation[Job]:
    """End a job; work not done is refunded, less the reservation fee."""
    answer = yield from send(Call("POST", f"/api/jobs/{check_id(job_id)}/cancel", json={}))
    return Job.read(answer.body)


def list_checkpoints(job_id: str) -> Operation[tuple[Raw, ...]]:
    """The stored checkpoints, newest first."""
    answer = yield from send(Call("GET", f"/api/jobs/{check_id(job_id)}/checkpoints"))
    return tuple(answer.body["data"])


def list_samples(job_id: str) -> Operation[tuple[Raw, ...]]:
    """What the model writes on held-out prompts, before and after training."""
    answer = yield from send(Call("GET", f"/api/jobs/{check_id(job_id)}/samples"))
    return tuple(answer.body["data"])


def get_express_quote(
    data: Data,
    *,
    zone: str | None = None,
    adapter: Settings | None = None,
    training: Settings | None = None,
) -> Operation[ExpressQuote]:
    """What prompt tuning costs by how soon it is done."""
    body = yield from _build_express(data, zone, adapter, training)
    answer = yield from send(Call("POST", "/api/express/quotes", json=body))
    return ExpressQuote.read(answer.body, dataset_id=body["dataset_id"])


def ask_express(
    data: Data,
    *,
    within_s: float,
    name: str = "",
    zone: str | None = None,
    adapter: Settings | None = None,
    training: Settings | None = None,
    idempotency_key: str | None = None,
) -> Operation[ExpressAnswer]:
    """Buy prompt tuning that is done within seconds, and wait for the lane's answer."""
    body = yield from _build_express(data, zone, adapter, training)
    body |= {"slo_s": within_s, "name": name}
    key = idempotency_key or new_key()
    answer = yield from send(Call("POST", "/api/express", json=body, idempotency_key=key))
    found = ExpressAnswer.read(answer.body)
    while found.status == "pending":
        yield Pause(LOOK_EVERY_S)
        again = yield from send(Call("GET", f"/api/express/{check_id(found.id)}"))
        found = ExpressAnswer.read(again.body)
    return found


def await_lookup(request_id: str) -> Operation[ExpressAnswer]:
    """An express request whose job has ended, with what its lookup found.

    That is noted a few seconds after the job; a job without a lookup is not waited for.
    """
    look = Call("GET", f"/api/express/{check_id(request_id)}")
    found = ExpressAnswer.read((yield from send(look)).body)
    for _ in range(LOOKUP_LOOKS):
        if found.raw["lookup"] is not None or not found.raw["adapter"].get("looks_up"):
            break
        yield Pause(LOOK_EVERY_S)
        found = ExpressAnswer.read((yield from send(look)).body)
    return found


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


def export_adapter(job_id: str, form: str) -> Operation[Raw]:
    """Have an adapter merged into its base model, and wait for the file.

    Parameters
    ----------
    form
        ``merged`` (a tar for ``transformers``), ``gguf-f16`` or ``gguf-q8_0``. It is paid at the
        market's price; one that is there costs nothing.

    Raises
    ------
    ExportFailedError
    """
    where = f"{_job_path(job_id)}/exports"
    export = (yield from send(Call("POST", where, json={"form": form}))).body
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


def export_path(job_id: str, export_id: str) -> str:
    return f"{_job_path(job_id)}/exports/{check_id(export_id)}/content"


def adapter_path(job_id: str) -> str:
    return f"{_job_path(job_id)}/adapter"


def checkpoint_path(job_id: str, checkpoint_id: str) -> str:
    return f"{_job_path(job_id)}/checkpoints/{check_id(checkpoint_id)}/content"


def events_path(job_id: str) -> str:
    return f"{_job_path(job_id)}/events/stream"


def _job_path(job_id: str) -> str:
    return f"/api/jobs/{check_id(job_id)}"


def _build_work(
    data: Data,
    zone_name: str | None,
    deadline: Deadline,
    adapter: Settings | None,
    training: Settings | None,
    model: str,
    validation: Data | None,
) -> Operation[dict[str, Any]]:
    """What a quote and a bid have in common; data that is a file is stored first."""
    answer = yield from send(Call("GET", "/api/zones"))
    zone = _choose_zone(_read_zones(answer), zone_name)
    # The market's clock counts, whatever this machine's says.
    told = answer.headers.get("date")
    now = parsedate_to_datetime(told) if told else datetime.now(UTC)
    at = parse_deadline(deadline, now=now, latest=zone.latest_deadline)
    return {
        "zone": zone.name,
        "dataset_id": (yield from _find_dataset_id(data, zone.name)),
        "adapter": dict(adapter or {}),
        "training": dict(training or {}),
        "deadline": at.isoformat(),
        **({"model": model} if model else {}),
        "validation_dataset_id": None
        if validation is None
        else (yield from _find_dataset_id(validation, zone.name)),
    }


def _build_express(
    data: Data, zone_name: str | None, adapter: Settings | None, training: Settings | None
) -> Operation[dict[str, Any]]:
    zone = _choose_zone((yield from list_zones()), zone_name)
    return {
        "zone": zone.name,
        "dataset_id": (yield from _find_dataset_id(data, zone.name)),
        "adapter": dict(adapter or {}),
        "training": dict(training or {}),
    }


def _read_zones(answer: Answer) -> tuple[Zone, ...]:
    return tuple(Zone.read(raw) for raw in answer.body["data"])


def _choose_zone(zones: tuple[Zone, ...], name: str | None) -> Zone:
    """The zone of the name; where there is one only, it need not be named."""
    names = ", ".join(zone.name for zone in zones)
    if name is None:
        if len(zones) != 1:
            raise UsageError(f"Say which zone: {names or 'none takes bids now'}.")
        return zones[0]
    for zone in zones:
        if name in (zone.name, zone.base_model):
            return zone
    raise UsageError(f"There is no zone {name!r}; there are {names or 'none'}.")


def _find_dataset_id(data: Data, zone: str) -> Operation[str]:
    if isinstance(data, Dataset):
        return data.id
    if isinstance(data, str) and data.startswith("ds_") and not Path(data).exists():
        return data
    return (yield from upload(data, zone=zone)).id


def _hash_file(file: Path, form: Mapping[str, str]) -> str:
    try:
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256")
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from None
    digest.update(repr(sorted(form.items())).encode())
    return digest.hexdigest()


def check_id(text: str) -> str:
    """An id as a part of an address; whatever else somebody passes must not become another one."""
    if not text or not all(letter.isalnum() or letter in "-_" for letter in text):
        raise UsageError(f"{text!r} is no id.")
    return text
