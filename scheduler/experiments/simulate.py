"""``python -m scheduler simulate WHAT ...``: hands the rest to the simulator named."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

#: Module of each simulator; it has ``main(argv) -> exit status``.
SIMULATORS = {
    "prompts": "scheduler.experiments.prompts.command",
    "replans": "scheduler.experiments.auction.replans_command",
    "tiers": "scheduler.experiments.tiers.command",
}


def main(argv: Sequence[str]) -> int:
    if not argv or argv[0] not in SIMULATORS:
        print(
            f"usage: python -m scheduler simulate {{{','.join(SIMULATORS)}}} ...", file=sys.stderr
        )
        return 2
    status: int = importlib.import_module(SIMULATORS[argv[0]]).main(argv[1:])
    return status
