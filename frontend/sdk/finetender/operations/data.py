"""Zones, and the data sets that jobs train with."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from finetender.calls import Answer, Call, Operation, Pause, send, stamp_file
from finetender.data_sources import Rows, open_source
from finetender.errors import UsageError, build_error
from finetender.operations.file_parts import PARTS_FROM_BYTES, send_in_parts
from finetender.values import Dataset, Plan, Zone

#: Seconds between two looks at what is not decided yet.
LOOK_EVERY_S = 0.5
#: What jobs train with: what ``upload`` takes, or a data set that is stored.
Data = Rows | Dataset


def list_zones() -> Operation[tuple[Zone, ...]]:
    """The zones that take bids."""
    answer = yield from send(Call("GET", "/api/zones"))
    return read_zones(answer)


def upload(
    source: Rows,
    *,
    zone: str | None = None,
    name: str | None = None,
    faulty_lines: str = "refuse",
    long_rows: str = "refuse",
) -> Operation[Dataset]:
    """Store training data; the same file again within a day is the same data set.

    A large file goes in parts. One that was broken off goes on from the parts that had arrived.

    Parameters
    ----------
    source
        A file of rows or a Parquet file, an address (``hf://owner/set``, ``s3://bucket/key``,
        ``https://...``), or rows themselves, such as a ``datasets.Dataset``.
    faulty_lines, long_rows
        What becomes of rows that cannot be used as they are: ``refuse`` the file, ``leave_out``,
        and for long rows ``cut``.

    Raises
    ------
    UsageError
        The source cannot be read, or its kind needs an extra of this package.
    """
    form = {"faulty_lines": faulty_lines, "long_rows": long_rows}
    if zone is not None:
        form["zone"] = zone
    with open_source(source) as (file, named):
        form["name"] = name or named
        stamp, hashed = _hash_file(file, form)
        key = f"sdk-{hashed}"
        if file.stat().st_size > PARTS_FROM_BYTES:
            upload_id = yield from send_in_parts(file, form, key=key, stamp=stamp)
            return (yield from _await_dataset(upload_id))
        call = Call("POST", "/api/datasets", form=form, file=file, idempotency_key=key)
        answer = yield from send(call)
    if answer.status == 201:
        return Dataset.read(answer.body)
    return (yield from _await_dataset(answer.body["id"]))


def _await_dataset(upload_id: str) -> Operation[Dataset]:
    """What a file became, once it is read."""
    while True:
        seen = (yield from send(Call("GET", f"/api/uploads/{upload_id}"))).body
        if seen["error"] is not None:
            raise build_error(400, seen["error"])
        if seen["dataset_id"] is not None:
            found = yield from send(Call("GET", f"/api/datasets/{seen['dataset_id']}"))
            return Dataset.read(found.body)
        yield Pause(LOOK_EVERY_S)


def make_plan(
    dataset: Dataset | str,
    *,
    roles: Mapping[str, str] | None = None,
    mask_personal_data: bool = False,
    phone_regions: Sequence[str] = (),
    drop_duplicates: bool = True,
    languages: Sequence[str] = (),
    zone: str | None = None,
) -> Operation[Plan]:
    """See what a preparation would do to a data set, before anything is sold.

    Parameters
    ----------
    roles
        What each column of the file holds, such as ``{"frage": "prompt", "notiz": "left_out"}``.
    phone_regions
        ISO 3166 codes whose phone numbers are found without a country's prefix; none are all.
    """
    body = {
        "roles": dict(roles or {}),
        "mask_personal_data": mask_personal_data,
        "phone_regions": list(phone_regions),
        "drop_duplicates": drop_duplicates,
        "languages": list(languages),
    } | ({} if zone is None else {"zone": zone})
    where = f"/api/datasets/{check_id(_get_id(dataset))}/plans"
    answer = yield from send(Call("POST", where, json=body))
    while answer.body["status"] == "making":
        yield Pause(LOOK_EVERY_S)
        answer = yield from send(Call("GET", f"{where}/{answer.body['id']}"))
    if answer.body["status"] == "failed":
        raise UsageError(answer.body["problem"])
    return Plan.read(answer.body)


def confirm_plan(plan: Plan) -> Operation[Plan]:
    """Agree to a plan; name it in a bid: ``preparation={"plan": plan.id}``."""
    where = f"/api/datasets/{check_id(plan.dataset_id)}/plans/{check_id(plan.id)}/confirm"
    return Plan.read((yield from send(Call("POST", where, json={}))).body)


def _get_id(dataset: Dataset | str) -> str:
    return dataset.id if isinstance(dataset, Dataset) else dataset


def ensure_dataset(data: Data, *, zone: str | None = None) -> Operation[Dataset]:
    """The data set of a file, which is stored first, or of an id."""
    if isinstance(data, Dataset):
        return data
    found = choose_zone((yield from list_zones()), zone)
    dataset_id = yield from find_dataset_id(data, found.name)
    return Dataset.read(
        (yield from send(Call("GET", f"/api/datasets/{check_id(dataset_id)}"))).body
    )


def read_zones(answer: Answer) -> tuple[Zone, ...]:
    return tuple(Zone.read(raw) for raw in answer.body["data"])


def choose_zone(zones: tuple[Zone, ...], name: str | None) -> Zone:
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


def find_dataset_id(data: Data, zone: str) -> Operation[str]:
    if isinstance(data, Dataset):
        return data.id
    if isinstance(data, str) and data.startswith("ds_") and not Path(data).exists():
        return data
    return (yield from upload(data, zone=zone)).id


def _hash_file(file: Path, form: Mapping[str, str]) -> tuple[tuple[int, ...], str]:
    """How the file was, and the hash of what it held then, with its form."""
    try:
        with file.open("rb") as content:
            stamp = stamp_file(os.fstat(content.fileno()))
            digest = hashlib.file_digest(content, "sha256")
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from None
    digest.update(repr(sorted(form.items())).encode())
    return stamp, digest.hexdigest()


def check_id(text: str) -> str:
    """An id as a part of a path; any other text could lead to another path and is refused."""
    if not text or not all(letter.isalnum() or letter in "-_" for letter in text):
        raise UsageError(f"{text!r} is no id.")
    return text
