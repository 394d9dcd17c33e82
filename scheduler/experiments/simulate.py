"""``python -m scheduler simulate WHAT ...``: hands the rest to the simulator named."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from scheduler.experiments.tiers import command


def main(argv: Sequence[str]) -> int:
    if not argv or argv[0] != "tiers":
        print("usage: python -m scheduler simulate tiers ...", file=sys.stderr)
        return 2
    return command.main(argv[1:])
