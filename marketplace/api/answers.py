"""Answers of the API: one declaration shows a value and describes it in the OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, time
from functools import cache, cached_property
from operator import attrgetter
from typing import Any, cast

from rest_framework import serializers as s
from rest_framework.fields import empty

from marketplace.common.money import from_micros

HAS_MORE = "Whether more items come after this page."
#: As a member's ``source``: its value is an argument of ``show``.
GIVEN = "given"
#: What a method returns for a member that this answer leaves out.
LEFT_OUT = empty


def usd(micros: int | None) -> str | None:
    """Dollars as a decimal string, ``"3.100000"``: exact in every language."""
    return None if micros is None else f"{from_micros(micros):f}"


def moment(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat().replace("+00:00", "Z")


def show_time_of_day(at: time) -> str:
    return at.isoformat("seconds" if at.second else "minutes")


class Usd(s.CharField):
    """Dollars as a decimal string, of micro-dollars."""

    def __init__(self, help_text: str = "", **options: Any) -> None:
        super().__init__(help_text=f"{help_text} Dollars as a decimal string.".strip(), **options)

    def to_representation(self, value: int) -> str | None:
        return usd(value)


class Moment(s.DateTimeField):
    def to_representation(self, value: datetime) -> str | None:
        return moment(value)


class TimeOfDay(s.CharField):
    """Hours and minutes, and seconds where there are any; UTC."""

    def to_representation(self, value: time) -> str:
        return show_time_of_day(value)


class UnixTime(s.IntegerField):
    def __init__(self, help_text: str = "", **options: Any) -> None:
        super().__init__(help_text=f"{help_text} Unix seconds.".strip(), **options)

    def to_representation(self, value: datetime) -> int:
        return int(value.timestamp())


class NullText(s.CharField):
    """A text; ``null`` where it is empty."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_null=True, **options)

    def to_representation(self, value: str) -> str | None:
        return value or None


class Constant(s.ChoiceField):
    """The same text in every answer."""

    def __init__(self, text: str) -> None:
        super().__init__([text], help_text=f"Always {text}.")
        self.text = text


class ConstantText(s.CharField):
    """The same; a choice of one would have a name of its own among the components."""

    def __init__(self, text: str) -> None:
        super().__init__(help_text=f"Always {text}.")
        self.text = text


class Answer(s.Serializer[Any]):
    """Shows a value as a JSON object, member by member.

    A member's value is what the method ``get_<member>`` returns for the value, or else the
    attribute that ``source`` names, as of every serializer. Kinds of members that are declared
    here, and answers within answers, show it in their way. All others are JSON values already,
    and pass as they are, so an answer costs about what a dict written by hand would.
    """

    # As members they hide what a serializer has of these names, and needs for requests only.
    data: Any
    errors: Any
    #: Members that stand before those that are inherited.
    first: tuple[str, ...] = ()

    @classmethod
    def show(cls, value: Any, **given: Any) -> dict[str, Any]:
        """Show a value; ``given`` are members that it does not know."""
        return _share(cls).to_representation(value) | given

    @classmethod
    def show_each(cls, values: Iterable[Any]) -> list[dict[str, Any]]:
        return [_share(cls).to_representation(value) for value in values]

    def get_fields(self) -> dict[str, Any]:
        fields = super().get_fields()
        return {name: fields[name] for name in (*self.first, *fields)}

    def to_representation(self, instance: Any) -> dict[str, Any]:
        shown: dict[str, Any] = {}
        for name, read, show in self._members:
            value = read(instance)
            if value is not LEFT_OUT:
                shown[name] = value if value is None or show is None else show(value)
        return shown

    @cached_property
    def _members(self) -> list[tuple[str, Callable[[Any], Any], Callable[[Any], Any] | None]]:
        return [
            (name, self._find_reader(name, field), _find_renderer(field))
            for name, field in self.fields.items()
        ]

    def _find_reader(self, name: str, field: s.Field) -> Callable[[Any], Any]:
        if isinstance(field, (Constant, ConstantText)):
            return lambda _: field.text
        if field.source == "*":
            return lambda value: value
        if field.source == GIVEN:
            return lambda _: None
        return getattr(self, f"get_{name}", None) or _read_attribute(field)


class AsStored(Answer):
    """Describes a JSON object that is shown as it is."""

    def to_representation(self, instance: Any) -> Any:
        return instance


def page_of(item: type[Answer], *, name: str = "", **more: s.Field) -> Any:
    """Describe a page of a list; ``JobSerializer`` makes a ``JobPage``."""
    name = name or item.__name__.replace("Serializer", "Page")
    members = {
        "data": item(many=True, help_text="Items of this page."),
        "has_more": s.BooleanField(help_text=HAS_MORE),
        **more,
    }
    return type(f"{name}Serializer", (Answer,), members)


@cache
def _share(kind: type[Answer]) -> Answer:
    return cast(Answer, kind())


def _read_attribute(field: s.Field) -> Callable[[Any], Any]:
    read = attrgetter(str(field.source))

    def read_or_go_on(value: Any) -> Any:
        try:
            return read(value)
        except AttributeError:
            # The framework's own reader goes through mappings, and stops at ``None``.
            return field.get_attribute(value)

    return read_or_go_on if "." in str(field.source) else read


def _find_renderer(field: s.Field) -> Callable[[Any], Any] | None:
    shown = (Usd, Moment, TimeOfDay, UnixTime, NullText, Answer, s.ListSerializer)
    return field.to_representation if isinstance(field, shown) else None
