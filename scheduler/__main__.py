"""``python -m scheduler COMMAND ...``: hands the rest to the command's own module."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.util import find_spec

#: Module of each command; it has ``main(argv) -> exit status``.
COMMANDS = {
    "ablate": "scheduler.experiments.attack.ablate",
    "attack": "scheduler.experiments.attack.command",
    "auction": "scheduler.experiments.auction.commands",
    "merging": "scheduler.experiments.merging.commands",
    "reproduce": "scheduler.experiments.reproduce",
    "simulate": "scheduler.experiments.simulate",
    "verify": "scheduler.auction.audit.command",
}


def main(argv: Sequence[str]) -> int:
    """Run one command.

    Returns
    -------
    int
        The command's exit status; 2 when there is no such command.
    """
    if not argv or argv[0] not in COMMANDS:
        print(f"usage: python -m scheduler {{{','.join(COMMANDS)}}} ...", file=sys.stderr)
        return 2
    if not find_spec(".".join(COMMANDS[argv[0]].split(".")[:2])):
        print(f"{argv[0]} is in Finetender's source tree, not in this package.", file=sys.stderr)
        return 2
    status: int = importlib.import_module(COMMANDS[argv[0]]).main(argv[1:])
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
