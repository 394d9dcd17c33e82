"""Context switches, from what nodes report of their slices."""

from __future__ import annotations

import pytest

from marketplace.auction.lane.decide import decide_pending_bids
from marketplace.jobs.context_switch_stats import (
    ContextSwitches,
    ReportedSlice,
    measure_switches,
    summarize_switches,
)
from marketplace.jobs.models import Job
from tests import market_builders as market
from tests.warm_builders import LATER, ended, finished, live_node


def test_a_switch_is_from_one_jobs_last_step_to_the_nexts_first() -> None:
    found = summarize_switches(
        [
            ReportedSlice("one", 0.0, 1.0, 10.0, attach_s=0.5),
            # Known at 9.8, prepared while the first one stepped, and then at once.
            ReportedSlice("two", 9.0, 10.2, 20.0, attach_s=0.8),
            # Beside the second one: no step was lost.
            ReportedSlice("three", 11.0, 12.0, 30.0, attach_s=0.4),
            # The node had nothing to do until 40.
            ReportedSlice("four", 40.0, 41.0, 50.0, attach_s=0.8),
        ]
    )
    assert found is not None
    assert (found.count, found.median_s) == (3, pytest.approx(0.2))
    assert found.hidden_share == pytest.approx(1 - (0.2 + 0.0 + 0.8) / 2.0)


def test_a_job_that_goes_on_after_itself_is_no_switch() -> None:
    first = ReportedSlice("one", 0.0, 1.0, 10.0, attach_s=0.5)
    again = ReportedSlice("one", 10.0, 11.0, 20.0, attach_s=0.5)
    assert summarize_switches([first, again]) is None
    assert summarize_switches([]) is None


@pytest.mark.django_db
def test_nodes_report_their_switches_with_their_results() -> None:
    zone, owner = market.zone(), market.builders.organisation(usd="50")
    node = live_node(zone)
    assert measure_switches([node.pk]) == {}
    earlier = finished(owner, zone)
    slice_ = earlier.slices.get()
    opened = slice_.opened_at.timestamp()
    slice_.result |= {"first_step_at": opened + 1, "last_step_at": opened + 9, "attach_s": 0.5}
    slice_.save()
    assert measure_switches([node.pk]) == {}
    bid = market.bid(owner, zone, now=LATER)
    decide_pending_bids(zone=zone, now=LATER)
    held = ended(Job.objects.get(bid_id=bid.pk), zone).slices.get()
    held.result |= {"first_step_at": opened + 9.25, "last_step_at": opened + 20, "attach_s": 0.5}
    held.opened_at = slice_.opened_at
    held.save()
    assert measure_switches([node.pk]) == {node.pk: ContextSwitches(1, 0.25, 0.5)}
