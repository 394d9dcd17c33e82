"""``python -m scheduler reproduce WHAT ...``: hands the rest to the experiment named."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

#: Module of each experiment; it has ``main(argv) -> exit status``.
EXPERIMENTS = {
    "auction": "scheduler.experiments.auction.reproduce",
    "merging": "scheduler.experiments.merging.reproduce",
    "prompts": "scheduler.experiments.prompts.reproduce",
    "tiers": "scheduler.experiments.tiers.reproduce",
}


def main(argv: Sequence[str]) -> int:
    if not argv or argv[0] not in EXPERIMENTS:
        print(
            f"usage: python -m scheduler reproduce {{{','.join(EXPERIMENTS)}}} ...", file=sys.stderr
        )
        return 2
    status: int = importlib.import_module(EXPERIMENTS[argv[0]]).main(argv[1:])
    return status
