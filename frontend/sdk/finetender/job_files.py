"""One file that says what a job is: its data, settings, bid, and where the adapter goes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from finetender.errors import UsageError

_NEEDED = ("data", "price", "deadline")
_TEXTS = ("zone", "name", "model", "validation", "output")
_OBJECTS = ("adapter", "training", "preparation", "metadata", "sweep")
MEMBERS = (*_NEEDED, *_TEXTS, *_OBJECTS, "verified_only")


@dataclass(frozen=True, slots=True)
class JobFile:
    """A job as a file says it."""

    #: A file of rows, or the id of a data set.
    data: str
    #: What ``Client.place_bid`` takes beside the data.
    terms: Mapping[str, Any]
    #: Where the adapter is stored; ``None``: it is not fetched.
    output: Path | None
    #: Values by setting, of which each combination is a job; ``None``: there is one job.
    sweep: Mapping[str, Any] | None = None


def read_job_file(path: Path) -> JobFile:
    """Read a job; files that it names are where it says, seen from its own folder.

    Raises
    ------
    UsageError
        The file cannot be read, lacks what a bid needs, or has a member that is none.
    """
    found = read_settings_file(path)
    for name in found:
        if name not in MEMBERS:
            near = get_close_matches(name, MEMBERS, n=1)
            meant = f" Is {near[0]} meant?" if near else ""
            raise UsageError(f"{path}: {name!r} is no member of a job.{meant}")
    lacking = [name for name in _NEEDED if name not in found]
    if lacking:
        raise UsageError(f"{path}: a job needs {', '.join(lacking)}.")
    for name in _OBJECTS:
        if not isinstance(found.get(name, {}), dict):
            raise UsageError(f"{path}: {name} has members of its own.")
    terms = {
        name: value for name, value in found.items() if name not in ("data", "output", "sweep")
    }
    terms["price"] = str(found["price"]).removeprefix("$")
    if "validation" in terms:
        terms["validation"] = _find_rows(path, str(found["validation"]))
    output = found.get("output")
    return JobFile(
        data=_find_rows(path, str(found["data"])),
        terms=terms,
        output=None if output is None else path.parent / str(output),
        sweep=found.get("sweep"),
    )


def read_settings_file(path: Path) -> dict[str, Any]:
    """Read an object from YAML or JSON.

    Raises
    ------
    UsageError
        There is no such file, or no object in it.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}.") from None
    if path.suffix == ".json":
        try:
            value = json.loads(text)
        except ValueError as error:
            raise UsageError(f"{path} is no JSON: {error}.") from None
    else:
        value = _load_yaml(text, path)
    if not isinstance(value, dict):
        raise UsageError(f"{path} holds no names with values.")
    members = cast("dict[Any, Any]", value)
    return {str(name): _read_number(item) for name, item in members.items()}


def _load_yaml(text: str, path: Path) -> Any:
    try:
        yaml: Any = import_module("yaml")
    except ImportError:
        raise UsageError(
            "YAML needs one more package: pip install 'finetender[yaml]'. JSON needs none."
        ) from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is no YAML: {error}.") from None


def _read_number(value: Any) -> Any:
    """Read numbers such as ``2e-4``, which YAML 1.1 takes for texts."""
    if isinstance(value, dict):
        members = cast("dict[Any, Any]", value)
        return {name: _read_number(item) for name, item in members.items()}
    if isinstance(value, str) and "e" in value.lower() and value[:1].isdigit():
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _find_rows(path: Path, given: str) -> str:
    """A file seen from the folder of the job's own, or the id as it is."""
    beside = path.parent / given
    return str(beside) if beside.exists() else given
