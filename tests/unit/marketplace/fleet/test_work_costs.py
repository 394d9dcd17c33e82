"""A zone's work costs are found again from timed steps, whatever the device's speed."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marketplace.fleet.work_costs import BAND, MEASUREMENTS_LEAST, fit_work_costs
from tests import job_builders as build
from tests.market_builders import SHAPE
from tests.measured_units import count_units
from workers.protocol.job_spec import WorkCosts
from workers.protocol.node_facts import WorkMeasurement
from workers.protocol.work import PARTS, check_work_costs
from workers.protocol.work_costs import build_work_costs

PRIOR = build_work_costs(SHAPE)
#: Steps, batch, tokens of a row, and share of them that is trained.
KINDS = (
    *((3, 8, 20, 1.0), (6, 1, 30, 1.0), (3, 8, 60, 1.0), (3, 4, 110, 1.0)),
    *((3, 8, 60, 0.1), (2, 32, 30, 1.0), (3, 16, 90, 0.5)),
)


def measure(costs: WorkCosts, *, seconds_per_unit: float, noise: float = 0.0):
    rows = []
    for place, (steps, batch, length, trained) in enumerate(KINDS):
        sequences = steps * batch
        row = build.work_measurement(
            steps=steps,
            sequences=sequences,
            tokens=sequences * length,
            trained_tokens=round(sequences * length * trained),
            token_pairs=round(1.2 * sequences * length**2),
        )
        seconds = seconds_per_unit * count_units(costs, row) * (1 + noise * (-1) ** place)
        rows.append(_timed(row, seconds))
    return rows


def _timed(row: WorkMeasurement, seconds: float) -> WorkMeasurement:
    return replace(row, seconds=seconds, forward_seconds=0.4 * seconds)


@given(st.floats(1e-9, 10.0))
def test_costs_are_found_again_whatever_the_speed(seconds_per_unit):
    true = WorkCosts(
        token=PARTS,
        trained_token=2 * PRIOR.trained_token,
        token_pair=PRIOR.token_pair // 2,
        sequence=2 * PRIOR.sequence,
        step=PRIOR.step // 2,
    )
    rows = measure(true, seconds_per_unit=seconds_per_unit)
    found = fit_work_costs(PRIOR, rows)
    for name in ("token", "trained_token", "token_pair", "sequence", "step"):
        assert getattr(found, name) == pytest.approx(getattr(true, name), rel=0.05), name
    assert found.forward == pytest.approx(0.4 * PARTS, abs=1)
    predicted = median(row.seconds / count_units(found, row) for row in rows)
    assert predicted == pytest.approx(seconds_per_unit, rel=0.02)


@given(st.lists(st.floats(1e-9, 1e9), min_size=len(KINDS), max_size=len(KINDS)))
def test_invented_times_move_no_cost_out_of_its_band(seconds):
    rows = measure(PRIOR, seconds_per_unit=1e-4)
    found = fit_work_costs(PRIOR, [_timed(*pair) for pair in zip(rows, seconds, strict=True)])
    check_work_costs(found)
    for name in ("token", "trained_token", "token_pair", "sequence", "step"):
        prior, cost = getattr(PRIOR, name), getattr(found, name)
        assert prior / BAND - 1 <= cost <= prior * BAND + 1


def test_too_few_measurements_leave_the_costs_of_the_shape():
    rows = measure(PRIOR, seconds_per_unit=1e-4)[: MEASUREMENTS_LEAST - 1]
    assert fit_work_costs(PRIOR, rows) == PRIOR


def test_rows_of_one_length_are_their_own_share():
    rows = measure(PRIOR, seconds_per_unit=1e-3)
    even = _timed(rows[0], 0.7 * rows[0].seconds)
    found = fit_work_costs(PRIOR, [*rows, replace(even, even=True)])
    assert found.even == pytest.approx(0.7 * PARTS, rel=0.02)
