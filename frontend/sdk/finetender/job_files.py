"""One file that says what a job is: its data, settings, bid, and where the adapter goes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from finetender.adapter_archives import is_adapter
from finetender.errors import UsageError

_NEEDED = ("data", "price", "deadline")
_TEXTS = ("zone", "name", "model", "validation", "output")
_OBJECTS = ("adapter", "training", "preparation", "metadata", "sweep")
#: Of a file, which holds a few hundred.
_BYTES_MAX = 100_000
#: What YAML may hold.
_KINDS = ("null", "bool", "int", "float", "str", "seq", "map")
#: Numbers that YAML 1.1 takes for texts.
_POWER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+")
#: What is in no file's name, or steers a terminal that lists it.
_NO_NAME = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
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
    for name in (*_NEEDED, *_TEXTS):
        if isinstance(found.get(name, ""), bool | list | dict | None):
            raise UsageError(f"{path}: {name} is one text or number.")
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
        output=None if output is None else _find_output(path, str(output)),
        sweep=found.get("sweep"),
    )


def read_settings_file(path: Path) -> dict[str, Any]:
    """Read an object from YAML or JSON: texts, numbers, truths, lists and objects of these.

    The file may be a stranger's, so it is believed in nothing: neither in its size nor in values
    that stand in it once and mean themselves many times.

    Raises
    ------
    UsageError
        There is no such file, or no such object in it.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_BYTES_MAX + 1).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}.") from None
    if len(text) > _BYTES_MAX:
        raise UsageError(f"{path} holds more than {_BYTES_MAX:,} bytes.")
    kind = "JSON" if path.suffix == ".json" else "YAML"
    load = json.loads if kind == "JSON" else _choose_loader()
    try:
        # Written once more, since no job holds numbers without end or with thousands of digits.
        value = json.loads(json.dumps(load(text), allow_nan=False))
    except (ValueError, LookupError, ArithmeticError, AttributeError, RecursionError) as error:
        # Of these PyYAML raises what a value happens to meet that is not of its tag.
        raise UsageError(f"{path} is no {kind} of a job: {error}.") from None
    if not isinstance(value, dict):
        raise UsageError(f"{path} holds no names with values.")
    return cast("dict[str, Any]", value)


def _choose_loader() -> Callable[[str], Any]:
    """YAML as of JSON's kinds, where ``2e-4`` is a number and a date a text, as in YAML 1.2."""
    try:
        yaml: Any = import_module("yaml")
    except ImportError:
        raise UsageError(
            "YAML needs one more package: pip install 'finetender[yaml]'. JSON needs none."
        ) from None

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise ValueError("it refers to another value; write it where it is meant")
            return yaml.SafeLoader.compose_node(self, parent, index)

    Loader.yaml_constructors = {
        tag: build
        for tag, build in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.rpartition(":")[2] in _KINDS
    }
    Loader.yaml_implicit_resolvers = {
        first: [(tag, form) for tag, form in rules if tag.rpartition(":")[2] in (*_KINDS, "merge")]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _POWER, list("-+0123456789"))

    def load(text: str) -> Any:
        try:
            return yaml.load(text, Loader)
        except yaml.YAMLError as error:
            raise ValueError(str(error)) from None

    return load


def _find_rows(path: Path, given: str) -> str:
    """A file seen from the folder of the job's own, or the id as it is."""
    beside = path.parent / given
    try:
        return str(beside) if beside.exists() else given
    except OSError:
        # A name that is too long for any file.
        return given


def _find_output(path: Path, given: str) -> Path:
    """Where the adapter goes: said before anything is paid, and in place of no other file.

    Raises
    ------
    UsageError
    """
    if _NO_NAME.search(given):
        raise UsageError(f"{path}: output is {given!r}, which is no name of a file.")
    output = path.parent / given
    try:
        has_place, is_other = output.parent.is_dir(), output.exists() and not is_adapter(output)
    except OSError as error:
        raise UsageError(f"{path}: output cannot be written: {error}.") from None
    if not has_place:
        raise UsageError(f"{path}: output: there is no folder {output.parent}.")
    if is_other:
        raise UsageError(f"{path}: output: {output} is there already, and is no adapter.")
    return output
