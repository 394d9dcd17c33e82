"""``manage.py migrate`` as the owner of the tables, who then gives the market its rights."""

from typing import Any

from django.core.management.commands import migrate

from marketplace.config.database_roles import connect_as_owner, grant_rights


class Command(migrate.Command):
    def execute(self, *args: Any, **options: Any) -> Any:
        connect_as_owner()
        return super().execute(*args, **options)

    def handle(self, *args: Any, **options: Any) -> None:
        super().handle(*args, **options)
        if not options["check_unapplied"] and not options["plan"]:
            grant_rights()
