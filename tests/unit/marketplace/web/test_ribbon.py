"""The plan ribbon: exact places for exact plans."""

from __future__ import annotations

from datetime import timedelta

import pytest

from marketplace.web.presenters.timeline import (
    BlockState,
    Ribbon,
    RibbonMark,
    RibbonNode,
    build_ribbon,
    merge_cells,
)
from tests.builders import NOW

MACHINES = {
    "a": RibbonNode("heron-03", "marketplace", "A100"),
    "b": RibbonNode("kite-07", "serverless", "A40"),
}


def minute(number: float):
    return NOW + timedelta(minutes=number)


def ribbon(*cells: tuple[int, str], now: float, deadline: float = 80, **more) -> Ribbon:
    """Slots of ten minutes from ``NOW``; with a deadline at 80 the drawing ends at 82."""
    return build_ribbon(
        stays=merge_cells(cells, slot_starts_at=lambda slot: minute(10 * slot)),
        machines=MACHINES,
        begun_at=NOW,
        deadline_at=minute(deadline),
        now=minute(now),
        **more,
    )


def test_neighbouring_slots_on_one_node_are_one_stay() -> None:
    stays = merge_cells(
        [[0, "a"], [1, "a"], [2, "b"], [4, "b"]], slot_starts_at=lambda slot: minute(10 * slot)
    )
    assert [(s.node_id, s.slots) for s in stays] == [("a", 2), ("b", 1), ("b", 1)]
    assert (stays[0].starts_at, stays[0].ends_at) == (minute(0), minute(20))


def test_what_was_planned_after_the_end_did_not_happen() -> None:
    stays = merge_cells(
        [[0, "a"], [1, "a"], [2, "b"]],
        slot_starts_at=lambda slot: minute(10 * slot),
        until=minute(14),
    )
    assert [(s.node_id, s.ends_at) for s in stays] == [("a", minute(14))]


def test_blocks_lie_where_their_time_is() -> None:
    drawn = ribbon((0, "a"), (1, "a"), (4, "b"), now=15)
    assert [(block.x, block.width) for block in drawn.blocks] == [
        ("0.000%", "24.390%"),
        ("48.780%", "12.195%"),
    ]
    assert [(block.state, block.done) for block in drawn.blocks] == [
        (BlockState.CURRENT, "75.00%"),
        (BlockState.NEXT, "0.00%"),
    ]
    assert drawn.deadline.x == "97.561%"
    assert drawn.now is not None
    assert drawn.now.x == "18.293%"


def test_a_gap_is_a_pause_and_another_node_is_a_move() -> None:
    drawn = ribbon((0, "a"), (2, "b"), (3, "a"), now=-0.5, deadline=80)
    assert len(drawn.pauses) == 1
    assert [move.label for move in drawn.moves] == ["Moves to kite-07", "Moves to heron-03"]
    assert drawn.now is None


@pytest.mark.parametrize(
    ("deadline", "spare", "late"),
    [(80, "1 h 10 min spare", None), (10, None, None), (5, None, "5 min late")],
)
def test_time_to_spare_and_lateness_are_told_in_words(
    deadline: float, spare: str | None, late: str | None
) -> None:
    drawn = ribbon((0, "a"), now=1, deadline=deadline)
    assert (drawn.spare and drawn.spare.label) == spare
    assert (drawn.late and drawn.late.label) == late


def test_the_sentence_says_what_the_drawing_shows() -> None:
    drawn = ribbon((0, "b"), (1, "a"), (3, "a"), now=15)
    assert drawn.lead == (
        "Started on kite-07 0.00 s after the bid, then moved to heron-03 at 09:10, "
        "then pauses from 09:20 to 09:30."
    )
    assert drawn.rest == "The plan ends at 09:40 and has 40 min to spare."


def test_an_ended_job_has_no_now_and_is_solid_to_its_end() -> None:
    drawn = ribbon((0, "a"), now=70, ended_at=minute(9))
    assert drawn.now is None
    assert [block.state for block in drawn.blocks] == [BlockState.PAST]
    assert drawn.rest == "Ended at 09:09, 1 h 11 min before the deadline."


def test_a_plan_without_slots_is_drawn_too() -> None:
    drawn = ribbon(now=1)
    assert drawn.blocks == ()
    assert drawn.lead == "No slots are planned at the moment."


def test_checkpoints_too_near_each_other_share_one_label() -> None:
    marks = [RibbonMark(minute(at), str(at)) for at in (10, 11, 12, 30)]
    marks.append(RibbonMark(minute(60), "adapter", final=True))
    drawn = ribbon((0, "a"), now=35, marks=marks)
    assert [mark.label for mark in drawn.marks] == ["10", "", "", "30", "adapter"]
    assert [mark.css for mark in drawn.marks] == ["", "", "", "", "final next"]


def test_a_block_too_narrow_for_its_words_goes_without_them() -> None:
    wide, narrow = ribbon((0, "a"), (1, "a"), (4, "b"), now=15, deadline=80).blocks
    assert wide.worded
    assert wide.detail == "A100, 2 slots"
    assert not narrow.worded
    assert narrow.spoken.startswith("kite-07, A40, serverless, 1 slot, 09:40 to 09:50")


def test_the_deadlines_label_has_its_place_on_the_axis_to_itself() -> None:
    drawn = ribbon((0, "a"), now=1, deadline=80)
    assert [tick.label for tick in drawn.axis] == ["09:15", "09:30", "09:45", "10:00"]
    assert (drawn.deadline.x, drawn.deadline.css) == ("97.561%", "end")
    late = ribbon((0, "a"), (8, "a"), now=1, deadline=5)
    assert late.deadline.css == "start"
    assert [tick.label for tick in late.axis] == ["09:30", "10:00"]


def test_a_job_that_was_stopped_had_no_time_to_spare() -> None:
    ended = ribbon((0, "a"), (1, "a"), now=30, ended_at=minute(14))
    stopped = ribbon((0, "a"), (1, "a"), now=30, ended_at=minute(14), was_stopped=True)
    assert ended.spare is not None
    assert ended.rest.endswith("before the deadline.")
    assert stopped.spare is None
    assert stopped.rest.startswith("Stopped at ")
