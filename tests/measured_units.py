"""Work units of measured steps, by which tests and benchmarks judge fitted work costs."""

from __future__ import annotations

from workers.protocol.job_spec import WorkCosts
from workers.protocol.node_facts import WorkMeasurement
from workers.protocol.work import PARTS


def count_units(costs: WorkCosts, row: WorkMeasurement) -> float:
    """Work units of measured steps."""
    rows = (
        costs.token * row.tokens
        + costs.trained_token * row.trained_tokens
        + costs.token_pair * row.token_pairs
        + costs.sequence * row.sequences
    ) / PARTS
    return rows * (costs.even / PARTS if row.even else 1.0) + costs.step * row.steps / PARTS
