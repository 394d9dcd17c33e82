#!/usr/bin/env python
"""Django's command line."""

import gc
import os
import sys
from importlib.util import find_spec


def main() -> None:
    if sys.argv[1:2] == ["migrate"]:
        # Migrations make and drop thousands of model classes: a sixth of their time went into
        # looking for garbage.
        gc.set_threshold(100_000, 10, 500)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "marketplace.config.settings.dev")
    from django.core.management import execute_from_command_line

    if not find_spec("marketplace.embedded"):  # an image, whose environment names its servers
        execute_from_command_line(sys.argv)
        return
    from marketplace.embedded.commands import find_servers

    with find_servers(sys.argv[1:]):
        execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
