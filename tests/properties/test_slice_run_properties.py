"""A node's reports under every order of answers; a slice's states under every order of events."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.node.slice_run import (
    BUFFERED_EVENTS,
    NEXT,
    ProgressBuffer,
    SliceRun,
    SliceState,
    merge,
)
from workers.protocol.job_spec import BaseModelRef, BlobRef, DataFormat, JobSpec
from workers.protocol.messages import SliceSpec
from workers.protocol.reports import ProgressEvent


def event(step: int, **values) -> ProgressEvent:
    return ProgressEvent(
        seq=step,
        at=float(step),
        step=step,
        total_steps=10_000,
        epoch=0.0,
        samples_done=step,
        log=(f"line {step}",),
        **values,
    )


@dataclass
class Market:
    """Keeps events as the real one does: by rising number, each once."""

    last_seq: int = 0
    events: list[ProgressEvent] = field(default_factory=list)

    def take(self, batch: tuple[ProgressEvent, ...]) -> int:
        for one in batch:
            if one.seq > self.last_seq:
                self.events.append(one)
                self.last_seq = one.seq
        return self.last_seq


#: A training step; a report that arrives; one whose answer is lost; one lost on its way.
OPERATIONS = st.lists(st.sampled_from(["step", "sent", "answer lost", "request lost"]), max_size=60)


@given(OPERATIONS, st.integers(0, 7))
@settings(max_examples=400, deadline=None)
def test_every_line_arrives_once_and_in_order(operations, ahead):
    """``ahead``: what the market already had of this lease before our process began."""
    market, buffer, step = Market(last_seq=ahead), ProgressBuffer(), 0
    for operation in [*operations, "sent", "sent", "sent"]:
        if operation == "step":
            step += 1
            buffer.add(event(step))
            continue
        batch = buffer.batch()
        if operation == "request lost":
            continue
        last = market.take(batch)
        if operation == "sent":
            buffer.confirmed(last_seq=last)
    assert buffer.empty
    lines = [line for one in market.events for line in one.log]
    assert lines == [f"line {n}" for n in range(1, step + 1)]
    numbers = [one.seq for one in market.events]
    assert numbers == list(range(ahead + 1, ahead + 1 + len(numbers)))


@given(st.integers(0, 2000))
@settings(max_examples=60, deadline=None)
def test_a_market_that_is_away_for_long_costs_bounded_memory(steps):
    buffer = ProgressBuffer()
    buffer.confirmed(last_seq=0)
    for step in range(1, steps + 1):
        buffer.add(event(step))
    batch = buffer.batch()
    assert len(batch) <= BUFFERED_EVENTS
    if steps:
        assert batch[-1].step == steps
    assert [one.seq for one in batch] == list(range(1, len(batch) + 1))
    assert [one.step for one in batch] == sorted(one.step for one in batch)


NUMBERS = st.none() | st.floats(0, 10)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=6))
def test_a_merged_event_says_the_latest_of_each_number(values):
    events = [
        event(step, train_loss=train, valid_loss=valid)
        for step, (train, valid) in enumerate(values, 1)
    ]
    merged = merge(*events)
    known = [train for train, _ in values if train is not None]
    assert merged.train_loss == (known[-1] if known else None)
    known = [valid for _, valid in values if valid is not None]
    assert merged.valid_loss == (known[-1] if known else None)
    assert merged.step == len(values)
    assert merged.log == tuple(f"line {n}" for n in range(1, len(values) + 1))


def test_a_new_lease_gets_what_the_old_one_did_not():
    buffer = ProgressBuffer()
    buffer.confirmed(last_seq=0)
    buffer.add(event(1))
    buffer.confirmed(last_seq=buffer.batch()[-1].seq)
    buffer.add(event(2))
    buffer.batch()
    buffer.add(event(3))
    fresh = buffer.renumbered()
    assert fresh.batch() == ()
    fresh.confirmed(last_seq=0)
    (only,) = fresh.batch()
    assert (only.seq, only.step, only.log) == (1, 3, ("line 2", "line 3"))


SPEC = SliceSpec(
    lease_token="lease",
    lease_expires_at=1.0,
    job=JobSpec(
        job_id="job",
        base_model=BaseModelRef(name="tiny", source="bundled:finetender-tiny"),
        data_format=DataFormat.TEXT,
        dataset=BlobRef(url="/d", sha256="0" * 64, bytes=1),
    ),
)


@given(st.lists(st.sampled_from(SliceState), max_size=8))
def test_a_slice_only_ever_moves_on(states):
    order = list(SliceState)
    run = SliceRun(spec=SPEC, lease_expires_at=1.0)
    for state in states:
        before = run.state
        if state in NEXT[before]:
            run.enter(state)
            assert order.index(run.state) > order.index(before)
        else:
            with pytest.raises(ValueError, match="cannot become"):
                run.enter(state)
            assert run.state is before


def test_every_state_leads_to_the_end():
    for state, following in NEXT.items():
        assert (SliceState.CLOSED in following) is (state is not SliceState.CLOSED)
