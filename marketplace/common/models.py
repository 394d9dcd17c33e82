"""What every table is made of."""

import json
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any

import pgtrigger
from django.db import models
from django.db.models import Q
from django.db.models.fields.json import KeyTransform

from marketplace.common.brief_json import BriefJSONField, Usual
from marketplace.common.ids import from_uuid, new_id, to_uuid
from workers.protocol.wire import from_json, to_json

ID_LENGTH = 40


class IdField(models.CharField):
    """A primary key like ``bid_01j9x...``, made before the row is saved."""

    if TYPE_CHECKING:

        def __new__(cls, *, prefix: str, **kwargs: Any) -> "IdField": ...

    def __init__(self, *, prefix: str, **kwargs: Any) -> None:
        self.prefix = prefix
        kwargs |= {
            "max_length": ID_LENGTH,
            "primary_key": True,
            "editable": False,
            "default": partial(new_id, prefix),
        }
        super().__init__(**kwargs)

    def deconstruct(self) -> Any:
        name, path, args, kwargs = super().deconstruct()
        for fixed in ("max_length", "primary_key", "editable", "default"):
            kwargs.pop(fixed, None)
        return name, path, args, kwargs | {"prefix": self.prefix}


class DenseIdField(IdField):
    """The same id, of which the database has the 16 bytes that tell it from others.

    For tables with many rows and keys that only the market itself asks for: of what is no id it
    raises ``ValueError``. Foreign keys follow.
    """

    def db_type(self, connection: Any) -> str:
        return "uuid"

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        return None if value is None else from_uuid(self.prefix, value)

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        found = super().get_db_prep_value(value, connection, prepared)
        if not isinstance(found, str):
            return found
        if not found.startswith(f"{self.prefix}_"):
            raise ValueError(f"{found!r} is no id of {self.prefix}")
        return to_uuid(found)


class ValueEncoder(json.JSONEncoder):
    """Writes values for the back office, which shows fields by their encoder."""

    def default(self, o: Any) -> Any:
        return to_json(o)


class ValueField(BriefJSONField):
    """A frozen dataclass, stored as JSON; ``kind`` says which.

    Rows with the same text share one value, since the same one is read again and again.
    """

    if TYPE_CHECKING:

        def __new__(cls, *, kind: type[Any], usual: Usual = ..., **kwargs: Any) -> Any: ...

    def __init__(self, *, kind: type[Any], **kwargs: Any) -> None:
        self.kind = kind
        kwargs["encoder"] = ValueEncoder
        super().__init__(**kwargs)

    def deconstruct(self) -> Any:
        name, path, args, kwargs = super().deconstruct()
        kwargs.pop("encoder", None)
        return name, path, args, kwargs | {"kind": self.kind}

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        if value is None or isinstance(expression, KeyTransform):
            return super().from_db_value(value, expression, connection)
        return self._parse(value)

    @cached_property
    def _parse(self) -> Any:
        @lru_cache(maxsize=4096)
        def parse(text: str) -> Any:
            return from_json(self.kind, self.complete(json.loads(text)), ignores_unknown=True)

        return parse

    def get_prep_value(self, value: Any) -> Any:
        return to_json(super().get_prep_value(value))


class TimestampedModel(models.Model):
    """``created_at`` and ``updated_at`` in the database's records; services pass their ``now``."""

    created_at = models.DateTimeField(auto_now_add=True, editable=False)
    updated_at = models.DateTimeField(auto_now=True, editable=False)

    class Meta:
        abstract = True


#: Nobody empties these tables, whatever they may do to rows.
NO_TRUNCATE = pgtrigger.Trigger(
    name="no_truncate",
    level=pgtrigger.Statement,
    when=pgtrigger.Before,
    operation=pgtrigger.Truncate,
    func="RAISE EXCEPTION 'pgtrigger: Cannot truncate % table', TG_TABLE_NAME;",
)


class WorkState(models.TextChoices):
    WAITING = "waiting", "Waiting"
    #: Nothing more is tried unless the operator wants it.
    FAILED = "failed", "Failed"


class DurableWork(models.Model):
    """Something to do later (``marketplace.common.durable``); the row goes when it is done."""

    kind = models.CharField(max_length=40)
    #: Names the work within its kind, mostly by the row that it is about.
    key = models.CharField(max_length=120)
    #: Organisation whose turn it is; owners take turns.
    owner = models.CharField(max_length=ID_LENGTH, blank=True)
    payload: Any = models.JSONField(default=dict, blank=True)
    state = models.CharField(max_length=8, choices=WorkState.choices, default=WorkState.WAITING)
    due_at = models.DateTimeField()
    #: Of what is due, the earliest is done first; null: it is due without one.
    deadline = models.DateTimeField(null=True)
    #: Of the worker that has it; only this one may store a result.
    lease_token = models.CharField(max_length=ID_LENGTH, blank=True)
    lease_until = models.DateTimeField(null=True)
    #: Begun since the last that succeeded.
    attempts = models.PositiveIntegerField(default=0)
    last_error = models.CharField(max_length=500, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["kind", "key"], name="durable_work_once"),
            models.CheckConstraint(
                condition=Q(lease_token="", lease_until__isnull=True)
                | (Q(state="waiting", lease_until__isnull=False) & ~Q(lease_token="")),
                name="durable_lease_is_whole",
            ),
        ]
        indexes = [
            models.Index(
                fields=["kind", "due_at"], condition=Q(state="waiting"), name="durable_work_due"
            )
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.key}"


class Heartbeat(models.Model):
    """The last success and failure of a task that the clock sends."""

    task = models.CharField(max_length=80, primary_key=True)
    ok_at = models.DateTimeField(null=True)
    failed_at = models.DateTimeField(null=True)
    #: Of the last run; empty after a success.
    error = models.CharField(max_length=300, blank=True)
    #: Seconds from when the last run that succeeded was sent to when a worker began it.
    lag_s = models.FloatField(null=True)

    def __str__(self) -> str:
        return self.task
