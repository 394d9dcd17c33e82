"""The plan ribbon: one row of time from bid to deadline, placed in percent.

Pure arithmetic over a job's cells; the templates draw it as SVG whose geometry is in attributes,
so it needs neither script nor inline style.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import pairwise

from marketplace.web.times import format_clock, format_duration

#: Blocks with more slots than this get no ticks: they would be a grey band.
TICKS_MAX = 48
#: Spare time below this share of the window is drawn as a warning.
THIN_SPARE = timedelta(minutes=10)
#: Percent of the width: no axis text nearer to an end, no words in spare time narrower than that.
EDGE = 3
SPARE_LABEL = 10
#: Percent between two labels of checkpoints.
MARK_LABEL = 6
#: Percent left of the deadline that its label takes on a narrow screen, with and without seconds.
DEADLINE_LABEL = {True: 22, False: 15}
#: Pixels of the narrowest drawing that still has words in its blocks, of a character, of the rest.
DRAWING_PX, CHARACTER_PX, PADDING_PX = 560, 6.6, 20


class BlockState(StrEnum):
    PAST = "past"
    CURRENT = "cur"
    NEXT = "next"


@dataclass(frozen=True, slots=True)
class RibbonNode:
    name: str
    #: ``serverless``, ``marketplace`` or ``conventional``: the block's fill.
    tier: str
    gpu: str


@dataclass(frozen=True, slots=True)
class NodeSpan:
    """Consecutive slots on one node."""

    node_id: str
    starts_at: datetime
    ends_at: datetime
    slots: int


@dataclass(frozen=True, slots=True)
class RibbonMark:
    """A checkpoint, or the adapter."""

    at: datetime
    label: str
    final: bool = False


@dataclass(frozen=True, slots=True)
class RibbonBlock:
    x: str
    width: str
    tier: str
    state: BlockState
    name: str
    detail: str
    #: Share of the block that is done, in percent.
    done: str
    starts_at: datetime
    ends_at: datetime
    ticks: tuple[str, ...]
    spoken: str
    #: Its name and detail have room inside it.
    worded: bool = True


@dataclass(frozen=True, slots=True)
class RibbonItem:
    x: str
    label: str
    css: str = ""
    width: str = "0%"


@dataclass(frozen=True, slots=True)
class Ribbon:
    starts_at: datetime
    ends_at: datetime
    blocks: tuple[RibbonBlock, ...]
    axis: tuple[RibbonItem, ...]
    pauses: tuple[RibbonItem, ...]
    moves: tuple[RibbonItem, ...]
    marks: tuple[RibbonItem, ...]
    deadline: RibbonItem
    spare: RibbonItem | None
    late: RibbonItem | None
    now: RibbonItem | None
    #: What is under way, then what follows from it.
    lead: str
    rest: str

    @property
    def tiers(self) -> list[str]:
        return sorted({block.tier for block in self.blocks})


def merge_cells(
    cells: Sequence[Sequence[object]],
    *,
    slot_starts_at: Callable[[int], datetime],
    until: datetime | None = None,
) -> list[NodeSpan]:
    """Merge neighbouring cells on one node; what lies after ``until`` did not happen."""
    stays: list[NodeSpan] = []
    last_slot: int | None = None
    for slot, node in cells:
        assert isinstance(slot, int)
        starts_at, ends_at = slot_starts_at(slot), slot_starts_at(slot + 1)
        if until is not None and starts_at >= until:
            break
        ends_at = ends_at if until is None else min(ends_at, until)
        if stays and stays[-1].node_id == node and last_slot == slot - 1:
            first = stays[-1]
            stays[-1] = NodeSpan(first.node_id, first.starts_at, ends_at, first.slots + 1)
        else:
            stays.append(NodeSpan(str(node), starts_at, ends_at, 1))
        last_slot = slot
    return stays


def build_ribbon(
    *,
    stays: Sequence[NodeSpan],
    machines: Mapping[str, RibbonNode],
    begun_at: datetime,
    deadline_at: datetime,
    now: datetime,
    ended_at: datetime | None = None,
    marks: Sequence[RibbonMark] = (),
) -> Ribbon:
    """Place everything between the bid and the deadline, or the end if that is later."""
    finish_at = ended_at or (stays[-1].ends_at if stays else deadline_at)
    last_at = max(deadline_at, finish_at, *(mark.at for mark in marks))
    ends_at = last_at + (last_at - begun_at) * 0.025
    span_s = max((ends_at - begun_at).total_seconds(), 1.0)

    def place(at: datetime) -> float:
        return min(100.0, max(0.0, (at - begun_at).total_seconds() / span_s * 100))

    def width(start: datetime, end: datetime) -> str:
        return f"{place(end) - place(start):.3f}%"

    with_seconds = span_s < 3600
    room = DEADLINE_LABEL[with_seconds]
    early = place(deadline_at) < room
    taken = (-EDGE * 2, room) if early else (-room, EDGE * 2)
    is_over = ended_at is not None

    def say(at: datetime) -> str:
        return format_clock(at, now, seconds=with_seconds)

    lead, rest = _sentences(stays, machines, begun_at, deadline_at, finish_at, ended_at, now, say)
    blocks = tuple(
        _block(stay, machines[stay.node_id], now, is_over, say, place, width) for stay in stays
    )
    pairs = list(pairwise(stays))
    spare = None if finish_at >= deadline_at else (finish_at, deadline_at)
    late = (deadline_at, finish_at) if finish_at > deadline_at else None
    return Ribbon(
        starts_at=begun_at,
        ends_at=ends_at,
        blocks=blocks,
        axis=tuple(
            RibbonItem(f"{place(at):.3f}%", _tick_words(at, with_seconds))
            for at in _axis_times(begun_at, ends_at)
            if EDGE < place(at) < 100 - EDGE
            and not taken[0] < place(at) - place(deadline_at) < taken[1]
        ),
        pauses=tuple(
            RibbonItem(f"{place(a.ends_at):.3f}%", "pause", width=width(a.ends_at, b.starts_at))
            for a, b in pairs
            if b.starts_at > a.ends_at
        ),
        moves=tuple(
            RibbonItem(f"{place(b.starts_at):.3f}%", f"Moves to {machines[b.node_id].name}")
            for a, b in pairs
            if a.node_id != b.node_id
        ),
        marks=tuple(_marks(marks, now, place)),
        deadline=RibbonItem(
            f"{place(deadline_at):.3f}%",
            say(deadline_at),
            "start" if early else "end",
        ),
        spare=None
        if spare is None
        else RibbonItem(
            f"{place(spare[0]):.3f}%",
            f"{format_duration((spare[1] - spare[0]).total_seconds())} spare"
            if place(spare[1]) - place(spare[0]) > SPARE_LABEL
            else "",
            "thin" if spare[1] - spare[0] < THIN_SPARE and span_s > 7200 else "",
            width(*spare),
        ),
        late=None
        if late is None
        else RibbonItem(
            f"{place(late[0]):.3f}%",
            f"{format_duration((late[1] - late[0]).total_seconds())} late",
            width=width(*late),
        ),
        now=None
        if is_over or not begun_at <= now <= ends_at
        else RibbonItem(f"{place(now):.3f}%", say(now)),
        lead=lead,
        rest=rest,
    )


def _block(
    stay: NodeSpan,
    machine: RibbonNode,
    now: datetime,
    is_over: bool,
    say: Callable[[datetime], str],
    place: Callable[[datetime], float],
    width: Callable[[datetime, datetime], str],
) -> RibbonBlock:
    length = (stay.ends_at - stay.starts_at).total_seconds() or 1.0
    done = min(1.0, max(0.0, (now - stay.starts_at).total_seconds() / length))
    if is_over or done >= 1:
        state, done = BlockState.PAST, 1.0
    else:
        state = BlockState.NEXT if done <= 0 else BlockState.CURRENT
    slots = f"{stay.slots} slot" + ("s" if stay.slots > 1 else "")
    ticks = range(1, stay.slots) if stay.slots <= TICKS_MAX else ()
    share = width(stay.starts_at, stay.ends_at)
    words = max(len(machine.name), len(f"{machine.gpu}, {slots}") * 0.9) * CHARACTER_PX
    return RibbonBlock(
        x=f"{place(stay.starts_at):.3f}%",
        width=share,
        tier=machine.tier,
        state=state,
        name=machine.name,
        detail=f"{machine.gpu}, {slots}",
        done=f"{done * 100:.2f}%",
        starts_at=stay.starts_at,
        ends_at=stay.ends_at,
        ticks=tuple(f"{index / stay.slots * 100:.3f}%" for index in ticks),
        worded=words + PADDING_PX <= float(share.rstrip("%")) / 100 * DRAWING_PX,
        spoken=f"{machine.name}, {machine.gpu}, {machine.tier}, {slots}, "
        f"{say(stay.starts_at)} to {say(stay.ends_at)}",
    )


def _marks(
    marks: Sequence[RibbonMark], now: datetime, place: Callable[[datetime], float]
) -> Iterator[RibbonItem]:
    """Diamonds under the row; one too near its neighbour goes without its step."""
    labelled_at = [place(mark.at) for mark in marks if mark.final]
    for mark in marks:
        x = place(mark.at)
        apart = mark.final or all(abs(x - other) > MARK_LABEL for other in labelled_at)
        if apart:
            labelled_at.append(x)
        kinds = (("final", mark.final), ("next", mark.at > now))
        css = " ".join(word for word, wanted in kinds if wanted)
        yield RibbonItem(f"{x:.3f}%", mark.label if apart else "", css)


_STEPS_S = (1, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)


def _axis_times(start: datetime, end: datetime) -> list[datetime]:
    """Round clock times in the window, six at most."""
    span_s = (end - start).total_seconds()
    step_s = next((step for step in _STEPS_S if span_s / step <= 6), 86400)
    midnight = start.replace(hour=0, minute=0, second=0, microsecond=0)
    first = int((start - midnight).total_seconds() // step_s) + 1
    times = []
    while (at := midnight + timedelta(seconds=first * step_s)) < end:
        times.append(at)
        first += 1
    return times


def _tick_words(at: datetime, with_seconds: bool) -> str:
    return format_clock(at, at, seconds=with_seconds)


def _sentences(
    stays: Sequence[NodeSpan],
    machines: Mapping[str, RibbonNode],
    begun_at: datetime,
    deadline_at: datetime,
    finish_at: datetime,
    ended_at: datetime | None,
    now: datetime,
    say: Callable[[datetime], str],
) -> tuple[str, str]:
    if not stays:
        return "No slots are planned at the moment.", ""
    first = stays[0]
    name = machines[first.node_id].name
    if first.starts_at > now:
        parts = [f"Starts on {name} at {say(first.starts_at)}"]
    else:
        wait = format_duration(max(0.0, (first.starts_at - begun_at).total_seconds()))
        parts = [f"Started on {name} {wait} after the bid"]
    for before, after in pairwise(stays):
        verb = "moved" if after.starts_at <= now else "moves"
        target = machines[after.node_id].name
        if before.node_id != after.node_id:
            parts.append(f"{verb} to {target} at {say(after.starts_at)}")
        else:
            parts.append(f"pauses from {say(before.ends_at)} to {say(after.starts_at)}")
    if len(parts) > 4:
        parts = [*parts[:3], f"and {len(parts) - 3} more changes"]
    lead = ", then ".join(parts) + "."
    gap = format_duration(abs((deadline_at - finish_at).total_seconds()))
    if ended_at is not None:
        side = "before" if finish_at <= deadline_at else "after"
        return lead, f"Ended at {say(finish_at)}, {gap} {side} the deadline."
    if finish_at <= deadline_at:
        return lead, f"The plan ends at {say(finish_at)} and has {gap} to spare."
    return lead, f"The plan ends {gap} after the deadline; a late end is credited."
