"""Generators, trace files and the random market."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scheduler.experiments.tiers.experiments import window
from scheduler.experiments.tiers.supply import SupplyRules, draw_supply
from scheduler.experiments.tiers.traces import TraceError, read_trace
from scheduler.experiments.tiers.workload import (
    OwnerRules,
    calibrated_burst,
    draw_jobs,
    seren_like,
    steady_state,
)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_trace_is_read_in_order_of_submission_from_its_first_job(tmp_path: Path) -> None:
    trace = read_trace(
        written(tmp_path, "user,gpus,submit_s,duration_s\na,0.5,70,9.5\n\nb,8,50,3\n")
    )
    assert trace.arrive_s.tolist() == [0.0, 20.0]
    assert trace.duration_s.tolist() == [3.0, 9.5]
    assert trace.gpus.tolist() == [8, 1]
    assert trace.one_gpu_each().gpus.tolist() == [1, 1]


def test_a_trace_saved_by_a_spreadsheet_begins_with_a_mark_that_is_no_name(
    tmp_path: Path,
) -> None:
    # Seconds since 1970 are fine: times count from the first job.
    trace = read_trace(written(tmp_path, "\ufeffsubmit_s,duration_s\n1700000000,1\n1700000060,2\n"))
    assert trace.arrive_s.tolist() == [0.0, 60.0]


def test_given_deadlines_are_kept_and_missing_ones_drawn(tmp_path: Path) -> None:
    text = "submit_s,duration_s,deadline_s\n50,10,90\n60,100,\n"
    trace = read_trace(written(tmp_path, text)).one_gpu_each()
    jobs = draw_jobs(workload=trace, owners=OwnerRules(), supply=SupplyRules(), seed=0)
    assert jobs["due_s"][0] == 40.0
    assert 110.0 <= jobs["due_s"][1] <= 1010.0
    # Neither the draw of the other job nor any start-up time depends on a given one.
    bare = replace(trace, given_due_s=None)
    drawn = draw_jobs(workload=bare, owners=OwnerRules(), supply=SupplyRules(), seed=0)
    assert (drawn[1], drawn["serverless_boot_s"][0]) == (jobs[1], jobs["serverless_boot_s"][0])
    late = window(replace(trace, given_due_s=np.array([40.0, 70.0])), seed=0, jobs=1)
    assert late.given_due_s is not None
    assert late.given_due_s.tolist() == [40.0]


def test_gpus_default_to_one_and_a_limit_keeps_the_first_rows(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, "submit_s,duration_s\n0,1\n1,2\n2,3\n"), limit=2)
    assert trace.gpus.tolist() == [1, 1]
    assert trace.duration_s.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: no column submit_s and no column duration_s"),
        ("submit_s,gpus\n1,1\n", "line 1: no column duration_s"),
        ("submit_s,duration_s\n", "no jobs"),
        ("submit_s,duration_s\n0,1\n5\n", "line 3: 1 fields, the header has 2"),
        ("submit_s,duration_s\n0,1\n5,soon\n", "line 3: duration_s is 'soon', not a number"),
        ("submit_s,duration_s\n0,nan\n", "line 2: duration_s is 'nan'; it must be finite"),
        ("submit_s,duration_s\n0,inf\n", "line 2: duration_s is 'inf'; it must be finite"),
        ("submit_s,duration_s\n-1,5\n", "line 2: submit_s is -1.0, below zero"),
        ("submit_s,duration_s\n0,0\n", "line 2: duration_s is 0.0; it must be above zero"),
        ("submit_s,duration_s,gpus\n0,5,0\n", "line 2: gpus is 0.0; it must be above zero"),
        ("submit_s,duration_s,gpus\n0,5,1e30\n", r"line 2: gpus is 1e\+30; at most 100,000"),
        ("submit_s,duration_s,deadline_s\n9,5,8\n", "line 2: deadline_s is 8, before submit_s 9"),
        ("submit_s,duration_s\n0,1e12\n", r"line 2: duration_s is 1e\+12, more than 10 years"),
        ("submit_s,duration_s\n0,5\n1e12,5\n", "spans 31,710 years, at most 10 can be"),
        ("submit_s,duration_s,submit_s\n0,5,0\n", "line 1: the column submit_s is there twice"),
    ],
)
def test_a_malformed_trace_is_refused_with_its_line(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(TraceError, match=message):
        read_trace(written(tmp_path, text))


def test_a_missing_or_binary_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "absent.csv")
    (tmp_path / "binary.csv").write_bytes(b"submit_s,duration_s\n\xff\xfe,1\n")
    with pytest.raises(TraceError, match="not a UTF-8 text file"):
        read_trace(tmp_path / "binary.csv")


def test_the_burst_has_the_totals_the_paper_prints() -> None:
    bursts = [calibrated_burst(seed=seed) for seed in range(20)]
    assert np.mean([burst.gpu_hours for burst in bursts]) == pytest.approx(315.0, rel=0.03)
    durations = np.concatenate([burst.duration_s for burst in bursts])
    assert np.median(durations) == pytest.approx(172.0, rel=0.03)
    assert (durations <= 600.0).mean() == pytest.approx(0.70)
    assert all(burst.arrive_s[-1] <= 3600.0 for burst in bursts)


def test_the_seren_like_trace_has_the_published_shape_at_any_size() -> None:
    for jobs in (1, 1000, 50_000):
        assert len(seren_like(seed=0, jobs=jobs)) == jobs
    trace = seren_like(seed=0, jobs=50_000)
    assert (trace.duration_s <= 600).mean() == pytest.approx(0.812, abs=0.01)
    assert np.median(trace.duration_s) == pytest.approx(134, rel=0.05)
    assert trace.arrive_s[0] == 0.0
    assert (np.diff(trace.arrive_s) >= 0).all()
    assert trace.arrive_s[-1] == pytest.approx(184 * 86400 * 50_000 / 818_327, rel=0.02)


def test_the_steady_state_keeps_its_load() -> None:
    steady = steady_state(seed=3, jobs=10_000, load_gpus=20.0)
    assert steady.gpu_hours * 3600 / steady.arrive_s[-1] == pytest.approx(20.0, rel=0.05)


def test_generators_repeat_bit_for_bit_and_differ_by_seed() -> None:
    for make in (calibrated_burst, steady_state):
        assert (make(seed=1).duration_s == make(seed=1).duration_s).all()
        assert (make(seed=1).duration_s != make(seed=2).duration_s).any()


def test_offers_keep_the_printed_prices_and_come_and_go() -> None:
    supply = draw_supply(rules=SupplyRules(), seed=0, span_s=30 * 86400.0)
    listed = supply.offers[np.isfinite(supply.offers)]
    assert 0.38 <= listed.min() < 0.42
    assert 1.60 < listed.max() <= 1.66
    assert np.median(listed) == pytest.approx(1.08, abs=0.08)
    assert np.isinf(supply.offers).mean() == pytest.approx(0.1, abs=0.04)
    assert (supply.offers[0] != supply.offers[50]).any()


def test_start_up_times_have_the_printed_means() -> None:
    supply = draw_supply(rules=SupplyRules(), seed=5, span_s=10.0)
    assert supply.marketplace_boots_s.mean() == pytest.approx(36.04, abs=0.2)
    assert supply.conventional_boots_s.mean() == pytest.approx(255.59, abs=0.5)
    assert supply.marketplace_boots_s.min() >= 36.04 / 4


def test_deadlines_lie_one_to_ten_run_times_after_arrival() -> None:
    burst = calibrated_burst(seed=0, jobs=5000)
    jobs = draw_jobs(workload=burst, owners=OwnerRules(), supply=SupplyRules(), seed=0)
    factors = (jobs["due_s"] - jobs["arrive_s"]) / jobs["predicted_s"]
    assert 1.0 <= factors.min() < 1.1
    assert 9.9 < factors.max() <= 10.0
    assert (jobs["run_s"] == jobs["predicted_s"]).all()


@pytest.mark.parametrize("dying", ["uniform", "soon"])
def test_the_share_that_dies_early_dies_before_its_end(dying: str) -> None:
    burst = calibrated_burst(seed=0, jobs=5000)
    owners = OwnerRules(die_early=0.4, dying=dying)
    jobs = draw_jobs(workload=burst, owners=owners, supply=SupplyRules(), seed=0)
    died = jobs["run_s"] < jobs["predicted_s"]
    assert (jobs["run_s"] <= jobs["predicted_s"]).all()
    assert died.mean() == pytest.approx(0.4, abs=0.02 if dying == "uniform" else 0.2)
    assert (jobs["run_s"][died] >= 1.0).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SupplyRules(price_usd_per_h=(2.0, 1.0, 3.0)), "prices must rise"),
        (lambda: SupplyRules(vanish=1.0), "below 1"),
        (lambda: SupplyRules(mean_life_h=0.0), "above zero"),
        (lambda: OwnerRules(deadline_factors=(3.0, 2.0)), "must rise"),
        (lambda: OwnerRules(die_early=1.5), "is a share"),
        (lambda: OwnerRules(dying="never"), "'uniform' or 'soon'"),
    ],
)
def test_rules_that_make_no_sense_are_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_an_unlimited_life_is_the_default() -> None:
    assert math.isinf(draw_supply(rules=SupplyRules(), seed=0, span_s=1.0).lives_s[0])
