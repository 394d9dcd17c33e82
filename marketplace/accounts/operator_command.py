"""Commands that change a market, which the audit log names."""

from __future__ import annotations

import getpass
from typing import Any

from django.core.management.base import BaseCommand

from marketplace.accounts.audit import record_command

#: Of every command of Django's; and parts of names whose values are secrets.
_OF_DJANGO = frozenset(
    {"verbosity", "settings", "pythonpath", "traceback", "no_color", "force_color", "skip_checks"}
)
_SECRET = ("password", "secret", "token", "key")


class OperatorCommand(BaseCommand):
    """A command whose every run that succeeds is an entry of the audit log."""

    def execute(self, *args: Any, **options: Any) -> str | None:
        output = super().execute(*args, **options)
        name = type(self).__module__.rpartition(".")[2]
        given = {
            option: str(value)
            for option, value in options.items()
            if value not in (None, "", False)
            and option not in _OF_DJANGO
            and not any(part in option for part in _SECRET)
        }
        record_command(act=f"manage.py {name}", details=given | {"by": _find_account()})
        return output


def _find_account() -> str:
    """Name the account of this machine that runs the command."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's account may have no name
        return ""
