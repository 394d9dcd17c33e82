"""A forged log whose every hash fits does not pass a witness that has one head."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.auction import entry_to_json
from scheduler.auction.audit.transcripts import verify_transcript
from scheduler.auction.audit.verify import verify
from scheduler.auction.log.events import PricesSolved
from scheduler.auction.prices import Settings
from scheduler.experiments.attack import forgeries
from scheduler.experiments.attack.market_logs import write_log

VICTIM = forgeries.make_victim(forgeries.ForgerySize(0, slots=6, bids_per_slot=2.0), seed=1)
HONEST = [entry_to_json(entry) for entry in VICTIM.log]


@pytest.mark.parametrize("shows_bids", [True, False])
def test_the_honest_log_passes_with_a_head_from_anywhere(shows_bids: bool) -> None:
    lines = forgeries.write_lines(HONEST, VICTIM.rules, shows_bids=shows_bids)
    assert [json.loads(line)["hash"] for line in lines[1:]] == [data["hash"] for data in HONEST]
    rng = np.random.default_rng(0)
    witness = [forgeries.draw_head(lines[:1], lines, rng) for _ in range(5)]
    found = verify_transcript(lines, witness=witness)
    assert (found.ok, found.witnessed) == (True, 5)
    assert (found.solved_again, found.taken_as_logged) == (12, 0)


def test_solves_whose_bids_count_by_what_their_owner_won_come_to_the_same_again() -> None:
    busy = replace(VICTIM.scenario, bids_per_slot=12.0, nodes=2)
    day = [replace(task, owner="big" if n % 8 else "") for n, task in enumerate(busy.day(2))]
    logs = [
        write_log(busy, bids, settings=Settings(futures=2, iterations=6), salt="s")
        for bids in (day, [replace(task, owner="") for task in day])
    ]
    assert [verify(log, rules=VICTIM.rules).solved_again for log in logs] == [12, 12]
    # What an owner has bought backs what it asks for besides.
    counted, whole = (
        [e.event.inputs["bids_today"] for e in log if isinstance(e.event, PricesSolved)]
        for log in logs
    )
    assert 0 < whole[-1] < counted[-1]


@pytest.mark.parametrize("way", forgeries.WAYS)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32), shows_bids=st.booleans())
def test_no_forgery_passes_a_witness_with_a_head_from_after_it(
    way: str, seed: int, shows_bids: bool
) -> None:
    rng = np.random.default_rng(seed)
    forged = forgeries.WAYS[way](VICTIM, rng)
    lines, honest = (
        forgeries.write_lines(log, VICTIM.rules, shows_bids=shows_bids) for log in (forged, HONEST)
    )
    if forgeries.goes_on(lines, honest):
        return
    assert not forgeries.is_accepted(lines, [forgeries.draw_head(lines, honest, rng)])


def test_without_a_witness_a_log_cut_short_or_written_from_another_day_passes() -> None:
    """What witnesses are for: a forger with the whole market in hand is consistent."""
    for way in ("the end cut off", "another day written"):
        forged = forgeries.WAYS[way](VICTIM, np.random.default_rng(3))
        lines = forgeries.write_lines(forged, VICTIM.rules, shows_bids=True)
        assert len(lines) > 1
        assert forgeries.is_accepted(lines)
