"""Sealing other people's secrets with the newest key."""

from collections.abc import Iterator
from typing import Any

from cryptography.fernet import InvalidToken
from django.apps import apps
from django.db import models

from marketplace.accounts.operator_command import OperatorCommand
from marketplace.common.encryption import SealedTextField, seal_again

BATCH = 500


class Command(OperatorCommand):
    help = (
        "Seal webhook secrets, hub tokens and tracking keys with the first of DATA_KEYS. Then the"
        " keys before it can be taken away."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        sealed = unreadable = 0
        for model, name in list_sealed_columns():
            for row_id, token in _list_tokens(model, name):
                try:
                    fresh = seal_again(token)
                except InvalidToken:
                    unreadable += 1
                    self.stderr.write(f"{model._meta.label} {row_id}: no key opens its {name}.")
                    continue
                # A secret that was replaced meanwhile is sealed with the first key already.
                of_row = model._default_manager.filter(pk=row_id, **{name: token})
                sealed += of_row.update(**{name: fresh})
        self.stdout.write(f"{sealed} secrets sealed with the first key, {unreadable} unreadable.")


def list_sealed_columns() -> list[tuple[type[models.Model], str]]:
    """List every column of the market that holds sealed texts."""
    return [
        (model, field.name)
        for model in apps.get_models()
        for field in model._meta.get_fields()
        if isinstance(field, SealedTextField)
    ]


def _list_tokens(model: type[models.Model], name: str) -> Iterator[tuple[Any, str]]:
    rows = model._default_manager.exclude(**{name: ""}).order_by("pk")
    return rows.values_list("pk", name).iterator(BATCH)
