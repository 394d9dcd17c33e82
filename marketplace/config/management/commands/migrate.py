"""``manage.py migrate`` as the owner of the tables, who then gives the market its rights."""

from typing import Any

from django.core.management.commands import migrate
from django.db import connection

from marketplace.config.database_roles import connect_as_owner, grant_rights

#: A change of a table that waits for its lock holds up every later request for the table. It gives
#: up long before a request does (``lock_timeout`` of ``settings.base``), and can be run again.
LOCK_TIMEOUT = "5s"


class Command(migrate.Command):
    def execute(self, *args: Any, **options: Any) -> Any:
        connect_as_owner()
        connection.close()
        earlier: dict[str, str] = connection.settings_dict.get("SESSION_SETTINGS", {})
        session = earlier | {"lock_timeout": LOCK_TIMEOUT}
        connection.settings_dict["SESSION_SETTINGS"] = session
        return super().execute(*args, **options)

    def handle(self, *args: Any, **options: Any) -> None:
        super().handle(*args, **options)
        if not options["check_unapplied"] and not options["plan"]:
            grant_rights()
