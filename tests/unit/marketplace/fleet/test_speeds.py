"""The speed table answers with lower bounds, and more work is never quicker."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marketplace.fleet.models import Node, NodeStatus, Speed
from marketplace.fleet.selectors import rates, work_weight
from marketplace.fleet.services import create_join_token, join_node, retire_node
from marketplace.fleet.speeds import OBSERVATION_BAND, SpeedRow, observed_speed, total_speed
from tests import job_builders as build
from tests import market_builders as market
from workers.protocol.messages import JoinRequest

sizes = st.sampled_from([1, 2, 4, 8, 16, 64])
lengths = st.sampled_from([16, 64, 128, 256, 512, 2048])
rows = st.lists(
    st.builds(
        SpeedRow,
        batch_size=sizes,
        sequence_length=lengths,
        jobs=st.integers(1, 6),
        samples_per_s=st.floats(1e-3, 1e4),
    ),
    min_size=1,
    max_size=8,
)


def speed(table: list[SpeedRow], batch: int, length: int, jobs: int = 4) -> float | None:
    return total_speed(table, batch_size=batch, sequence_length=length, jobs=jobs)


TABLE = [
    SpeedRow(8, 128, 4, 40.0),
    SpeedRow(8, 512, 4, 8.0),
    SpeedRow(4, 128, 4, 30.0),
]


@pytest.mark.parametrize(
    ("batch", "length", "expected"),
    [
        (8, 128, 40.0),  # measured
        (8, 512, 8.0),
        (16, 128, 40.0),  # a larger batch is at least as quick
        (8, 100, 40.0),  # a shorter sample is at least as quick
        (8, 129, 8.0),  # the nearest length that is at least as long
        (6, 128, 30.0),  # the largest batch that is no larger
        (2, 128, 15.0),  # smaller than measured: by batch
        (8, 1024, 4.0),  # longer than measured: by tokens
        (4, 1024, 2.0),
    ],
)
def test_the_table_answers_with_the_nearest_lower_bound(batch, length, expected):
    assert speed(TABLE, batch, length) == expected


def test_a_row_with_more_jobs_than_a_node_is_sold_to_is_not_used():
    table = [SpeedRow(8, 128, 1, 20.0), SpeedRow(8, 128, 4, 40.0), SpeedRow(8, 128, 8, 50.0)]
    assert [speed(table, 8, 128, jobs) for jobs in (1, 3, 4, 7, 8)] == [20, 20, 40, 40, 50]
    assert speed([SpeedRow(8, 128, 8, 50.0)], 8, 128, 4) is None
    assert speed([], 8, 128) is None


@given(rows, sizes, sizes, lengths, lengths)
def test_the_speed_never_rises_with_length_and_never_falls_with_batch(
    table, batch, other_batch, length, other_length
):
    batches, spans = sorted([batch, other_batch]), sorted([length, other_length])
    for jobs in (1, 4):
        at = {(b, n): speed(table, b, n, jobs) for b in batches for n in spans}
        if None in at.values():
            assert set(at.values()) == {None}
            continue
        for b in batches:
            assert at[b, spans[1]] <= at[b, spans[0]]
        for n in spans:
            assert at[batches[0], n] <= at[batches[1], n]


@given(rows, sizes, lengths)
def test_a_speed_is_positive_and_finite_whatever_was_measured(table, batch, length):
    found = speed(table, batch, length)
    assert found is None or 0 < found < math.inf


@given(rows)
def test_a_measured_configuration_never_gets_more_than_any_easier_one_was_measured_at(table):
    for row in table:
        easier = [
            other.samples_per_s
            for other in table
            if other.jobs <= 4 and other.sequence_length <= row.sequence_length
        ]
        found = speed(table, row.batch_size, row.sequence_length)
        assert found is None or found <= max(easier, default=math.inf)


@given(
    st.floats(1e-3, 1e4),
    st.lists(st.one_of(st.floats(allow_nan=True, allow_infinity=True)), max_size=60),
)
def test_observations_never_move_a_row_beyond_its_band(measured, observations):
    current = measured
    for observed in observations:
        current = observed_speed(current=current, measured=measured, observed=observed)
        assert measured / OBSERVATION_BAND <= current * (1 + 1e-9)
        assert current <= measured * OBSERVATION_BAND * (1 + 1e-9)


def test_a_steady_speed_is_learnt():
    current = 40.0
    for _ in range(60):
        current = observed_speed(current=current, measured=40.0, observed=25.0)
    assert current == pytest.approx(25.0, rel=1e-2)


@pytest.mark.django_db
def test_a_job_is_promised_its_share_of_a_full_node():
    zone = market.zone()  # 40 samples a second by four jobs; slots of 10 s
    assert rates(zone=zone, batch_size=8, sequence_length=128) == {"cpu": 100.0}
    assert rates(zone=zone, batch_size=8, sequence_length=64) == {"cpu": 100.0}
    assert rates(zone=zone, batch_size=4, sequence_length=128) == {"cpu": 50.0}


@pytest.mark.django_db
def test_work_in_reference_samples_uses_the_share_of_a_node_that_it_takes():
    zone = market.zone()
    long = {"batch_size": 8, "sequence_length": 512}
    weight = work_weight(zone=zone, **long)
    rate = rates(zone=zone, **long)["cpu"]
    # A sample of four times the tokens takes four times the time, and one job a quarter of a node.
    assert (weight, rate, rate * weight) == (4.0, 25.0, 100.0)
    assert work_weight(zone=zone, batch_size=8, sequence_length=128) == 1.0


@pytest.mark.django_db
def test_no_node_is_sold_beyond_its_speed_where_types_differ():
    zone = market.zone()
    row = market.speed(zone, gpu_type="A40", samples_per_s=80.0)
    row.pk, row.sequence_length, row.samples_per_s = None, 512, 40.0
    row.save()  # half the speed at four times the length; the CPU's is scaled to a quarter
    long = {"batch_size": 8, "sequence_length": 512}
    weight = work_weight(zone=zone, **long)
    assert weight == 4.0
    promised = rates(zone=zone, **long)
    assert promised == {"cpu": 25.0, "A40": 100.0}
    # Units of capacity four such jobs take up on each, against what the node has to sell.
    assert 4 * promised["cpu"] * weight >= 400.0
    assert 4 * promised["A40"] * weight >= 800.0


@pytest.mark.django_db
def test_a_promise_never_exceeds_what_the_smallest_node_of_the_type_can_be_sold_for():
    zone = market.zone(jobs_per_node=1)
    market.speed(zone, gpu_type="A40", samples_per_s=80.0)
    type(zone.speeds.get(gpu_type="A40")).objects.filter(zone=zone).update(jobs=1)
    market.node(zone, gpu_type_id="A40", compute_capacity=700.0)
    market.node(zone, gpu_type_id="A40", compute_capacity=600.0)
    assert rates(zone=zone, batch_size=8, sequence_length=128)["A40"] == 600.0


@pytest.mark.django_db
def test_a_zone_without_measurements_can_run_nothing():
    zone = market.zone()
    zone.speeds.all().delete()
    assert rates(zone=zone, batch_size=8, sequence_length=128) == {}
    assert work_weight(zone=zone, batch_size=8, sequence_length=128) == 1.0


def invented(zone, *, gpu_type: str, slow: float) -> Node:
    """A node that joins with a self-test of its own making and goes on sale."""
    facts = build.facts(
        gpu_type=gpu_type,
        hostname="liar",
        memory_gb=8.0,
        speeds=(
            build.measurement(batch_size=1, jobs=4, samples_per_s=slow, job_memory_gb=7.9),
            build.measurement(jobs=4, samples_per_s=max(slow, 1000.0), job_memory_gb=7.9),
        ),
    )
    _, secret = create_join_token(
        zone=zone, provider=market.provider(), created_by=None, ask_micros=1, now=market.NOW
    )
    reply = join_node(request=JoinRequest(token=secret, name="liar", facts=facts), now=market.NOW)
    Node.objects.filter(pk=reply.node_id).update(status=NodeStatus.ONLINE)
    return Node.objects.get(pk=reply.node_id)


@pytest.mark.django_db
@pytest.mark.parametrize("gpu_type", ["cpu", "H900"])
def test_an_invented_self_test_moves_nobody_else(gpu_type):
    zone = market.zone()
    market.speed(zone, gpu_type="A40", samples_per_s=80.0)
    market.node(zone)
    market.node(zone, gpu_type_id="A40", compute_capacity=800.0)
    asked = [{"batch_size": size, "sequence_length": 128} for size in (1, 8, 64)]

    def known() -> list[tuple[float, dict[str, float]]]:
        found = [(work_weight(zone=zone, **each), rates(zone=zone, **each)) for each in asked]
        return [(weight, {k: r[k] for k in ("cpu", "A40") if k in r}) for weight, r in found]

    before = known()
    node = invented(zone, gpu_type=gpu_type, slow=1e-6)
    assert known()[1:] == before[1:]
    weight, promised = known()[0]
    # A job of single rows is promised no more, and nearly what it was.
    assert weight <= 4 * before[0][0]
    assert promised.keys() == before[0][1].keys()
    retire_node(node=node, now=market.NOW)
    if gpu_type != "cpu":
        assert known() == before


@pytest.mark.django_db
def test_a_node_alone_in_its_type_measures_it_anew():
    zone = market.zone()
    market.node(zone)
    first = invented(zone, gpu_type="H900", slow=1e-6)
    assert Speed.objects.filter(gpu_type="H900", batch_size=1).get().samples_per_s == 1e-6
    retire_node(node=first, now=market.NOW)
    invented(zone, gpu_type="H900", slow=20.0)
    assert Speed.objects.filter(gpu_type="H900", batch_size=1).get().samples_per_s == 20.0
