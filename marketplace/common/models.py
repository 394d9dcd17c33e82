"""What every table is made of."""

from functools import partial
from typing import TYPE_CHECKING, Any

from django.db import models

from marketplace.common.ids import new_id

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


class TimestampedModel(models.Model):
    """``created_at`` and ``updated_at`` in the database's records; services pass their ``now``."""

    created_at = models.DateTimeField(auto_now_add=True, editable=False)
    updated_at = models.DateTimeField(auto_now=True, editable=False)

    class Meta:
        abstract = True
