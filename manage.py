#!/usr/bin/env python
"""Django's command line."""

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "marketplace.config.settings.dev")
    from django.core.management import execute_from_command_line

    from marketplace.embedded.commands import servers_for

    with servers_for(sys.argv[1:]):
        execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
