"""JSON of which rows keep only what is not usual.

Most of what a job is sold with is what nearly all jobs are sold with. Such a document is named once
by the field, and a row has what differs from it: a tenth of the bytes. The document is part of the
field in migrations, so that it cannot change unseen: rows mean what they say together with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from django.core.exceptions import FieldError
from django.db import models
from django.db.models.fields.json import KeyTransform

#: In a row's object: the names of usual members that the value lacks; or all of a value that has
#: a member of this very name.
_REST = ""

Json: TypeAlias = Any
Usual: TypeAlias = Mapping[str, Any]


class BriefJSONField(models.JSONField):
    """An object, stored as what differs from ``usual``; what is read is what was written.

    A value of ``usual`` is what is left out. In place of one, ``[None, {...}]`` leaves out null,
    and of an object what is like this one. The database cannot look up what is left out, so a key
    whose usual value is not null cannot be asked for.
    """

    if TYPE_CHECKING:

        def __new__(cls, *, usual: Usual = ..., **kwargs: Any) -> Any: ...

    def __init__(self, *, usual: Usual | None = None, **kwargs: Any) -> None:
        self.usual: Usual = usual or {}
        super().__init__(**kwargs)

    def deconstruct(self) -> Any:
        name, path, args, kwargs = super().deconstruct()
        return name, path, args, kwargs | ({"usual": self.usual} if self.usual else {})

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        found = super().from_db_value(value, expression, connection)
        if isinstance(expression, KeyTransform):
            return found
        return self.complete(found)

    def get_db_prep_save(self, value: Any, connection: Any) -> Any:
        if value is None or hasattr(value, "as_sql"):
            return super().get_db_prep_save(value, connection)
        return super().get_db_prep_save(self.shorten(value), connection)

    def shorten(self, value: Any) -> Json:
        """What a row stores of a value."""
        return leave_out_usual(self.get_prep_value(value), self.usual)

    def complete(self, brief: Json) -> Json:
        """What a row stands for."""
        return add_usual(brief, self.usual)

    def get_transform(self, lookup_name: str) -> Any:
        found = super().get_transform(lookup_name)
        return self._refuse_left_out(found) if callable(found) else found

    def _refuse_left_out(self, make: Callable[..., Any]) -> Callable[..., Any]:
        def make_key(*args: Any, **kwargs: Any) -> Any:
            made = make(*args, **kwargs)
            if isinstance(made, KeyTransform):
                _check_key(made, self.usual)
            return made

        return make_key


def _check_key(key: KeyTransform, usual: Usual) -> None:
    names: list[str] = []
    at: Any = key
    while isinstance(at, KeyTransform):
        names.insert(0, str(at.key_name))
        [at] = at.get_source_expressions()
    found: Json = usual
    for name in names:
        is_object = isinstance(found, Mapping)
        found = cast(Usual, found).get(name) if is_object else None
        if isinstance(found, list):
            # Of null or an object, rows say which; what is like the usual object is left out.
            found = cast(Json, found)[1] if name != names[-1] else None
    if found is not None and not isinstance(found, Mapping):
        raise FieldError(f"{'.'.join(names)} is left out of rows that have the usual one.")


def leave_out_usual(value: Json, usual: Usual) -> Json:
    """What of an object is not as in ``usual``; another value is itself."""
    if not isinstance(value, dict) or not usual:
        return value
    members = cast(dict[str, Json], value)
    if _REST in members:
        return {_REST: members}
    missing = sorted(usual.keys() - members.keys())
    brief: dict[str, Json] = {_REST: missing} if missing else {}
    for name, member in members.items():
        left_out, of_object = _read_usual(usual[name]) if name in usual else (..., None)
        if of_object is not None and isinstance(member, dict):
            shortened = leave_out_usual(member, of_object)
            if shortened or left_out is None:
                brief[name] = shortened
        elif left_out is ... or not _is_same(member, left_out):
            brief[name] = member
    return brief


def add_usual(brief: Json, usual: Usual) -> Json:
    """The object that ``leave_out_usual`` shortened."""
    if not isinstance(brief, dict) or not usual:
        return brief
    members = dict(cast(dict[str, Json], brief))
    rest = members.pop(_REST, ())
    if isinstance(rest, dict):
        return cast(Json, rest)
    whole: dict[str, Json] = {}
    for name in usual.keys() - set(rest):
        left_out, of_object = _read_usual(usual[name])
        if name not in members:
            whole[name] = deepcopy(left_out)
        elif of_object is not None:
            whole[name] = add_usual(members[name], of_object)
    return whole | {name: member for name, member in members.items() if name not in whole}


def _read_usual(usual: Json) -> tuple[Json, Usual | None]:
    """The value that is left out, and what an object is shortened by."""
    if isinstance(usual, list) and len(cast(list[Json], usual)) == 2 and usual[0] is None:
        return None, cast(Usual, usual[1])
    return usual, cast(Usual, usual) if isinstance(usual, Mapping) and usual else None


def _is_same(one: Json, other: Json) -> bool:
    """Whether two values are one in JSON, where 1, 1.0 and true are three."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict | list):
        return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    return one == other
