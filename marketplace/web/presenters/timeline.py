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


@dataclass(frozen=True, slots=True)
class _Scale:
    """Where a moment stands in the drawing, and how it is written."""

    begun_at: datetime
    ends_at: datetime
    now: datetime

    @property
    def span_s(self) -> float:
        return max((self.ends_at - self.begun_at).total_seconds(), 1.0)

    @property
    def with_seconds(self) -> bool:
        return self.span_s < 3600

    def place(self, at: datetime) -> float:
        """Percent of the width."""
        return min(100.0, max(0.0, (at - self.begun_at).total_seconds() / self.span_s * 100))

    def x(self, at: datetime) -> str:
        return f"{self.place(at):.3f}%"

    def width(self, start: datetime, end: datetime) -> str:
        return f"{self.place(end) - self.place(start):.3f}%"

    def say(self, at: datetime) -> str:
        return format_clock(at, self.now, seconds=self.with_seconds)


def build_ribbon(
    *,
    stays: Sequence[NodeSpan],
    machines: Mapping[str, RibbonNode],
    begun_at: datetime,
    deadline_at: datetime,
    now: datetime,
    ended_at: datetime | None = None,
    was_stopped: bool = False,
    marks: Sequence[RibbonMark] = (),
) -> Ribbon:
    """Place everything between the bid and the deadline, or the end if that is later.

    A job that ``was_stopped`` before it was done had no time to spare.
    """
    finish_at = ended_at or (stays[-1].ends_at if stays else deadline_at)
    last_at = max(deadline_at, finish_at, *(mark.at for mark in marks))
    ends_at = last_at + (last_at - begun_at) * 0.025
    scale = _Scale(begun_at, ends_at, now)
    is_early = scale.place(deadline_at) < DEADLINE_LABEL[scale.with_seconds]
    is_over = ended_at is not None
    lead, rest = _sentences(
        stays, machines, scale, deadline_at=deadline_at, finish_at=finish_at, ended_at=ended_at
    )
    if was_stopped:
        rest = f"Stopped at {scale.say(finish_at)}."
    has_spare = finish_at < deadline_at and not was_stopped
    pairs = list(pairwise(stays))
    return Ribbon(
        starts_at=begun_at,
        ends_at=ends_at,
        blocks=tuple(_block(stay, machines[stay.node_id], scale, is_over) for stay in stays),
        axis=tuple(_axis(scale, deadline_at, is_early)),
        pauses=tuple(
            RibbonItem(scale.x(a.ends_at), "pause", width=scale.width(a.ends_at, b.starts_at))
            for a, b in pairs
            if b.starts_at > a.ends_at
        ),
        moves=tuple(
            RibbonItem(scale.x(b.starts_at), f"Moves to {machines[b.node_id].name}")
            for a, b in pairs
            if a.node_id != b.node_id
        ),
        marks=tuple(_marks(marks, scale)),
        deadline=RibbonItem(
            scale.x(deadline_at), scale.say(deadline_at), "start" if is_early else "end"
        ),
        spare=_spare(scale, finish_at, deadline_at) if has_spare else None,
        late=_late(scale, deadline_at, finish_at) if finish_at > deadline_at else None,
        now=None
        if is_over or not begun_at <= now <= ends_at
        else RibbonItem(scale.x(now), scale.say(now)),
        lead=lead,
        rest=rest,
    )


def _axis(scale: _Scale, deadline_at: datetime, is_early: bool) -> Iterator[RibbonItem]:
    """Round times, without those that the edges or the deadline's label would cover."""
    room = DEADLINE_LABEL[scale.with_seconds]
    taken = (-EDGE * 2, room) if is_early else (-room, EDGE * 2)
    for at in _axis_times(scale.begun_at, scale.ends_at):
        place = scale.place(at)
        is_free = not taken[0] < place - scale.place(deadline_at) < taken[1]
        if EDGE < place < 100 - EDGE and is_free:
            yield RibbonItem(scale.x(at), format_clock(at, at, seconds=scale.with_seconds))


def _spare(scale: _Scale, start: datetime, end: datetime) -> RibbonItem:
    has_room = scale.place(end) - scale.place(start) > SPARE_LABEL
    return RibbonItem(
        scale.x(start),
        f"{format_duration((end - start).total_seconds())} spare" if has_room else "",
        "thin" if end - start < THIN_SPARE and scale.span_s > 7200 else "",
        scale.width(start, end),
    )


def _late(scale: _Scale, start: datetime, end: datetime) -> RibbonItem:
    late = format_duration((end - start).total_seconds())
    return RibbonItem(scale.x(start), f"{late} late", width=scale.width(start, end))


def _block(stay: NodeSpan, machine: RibbonNode, scale: _Scale, is_over: bool) -> RibbonBlock:
    length = (stay.ends_at - stay.starts_at).total_seconds() or 1.0
    done = min(1.0, max(0.0, (scale.now - stay.starts_at).total_seconds() / length))
    if is_over or done >= 1:
        state, done = BlockState.PAST, 1.0
    else:
        state = BlockState.NEXT if done <= 0 else BlockState.CURRENT
    slots = f"{stay.slots} slot" + ("s" if stay.slots > 1 else "")
    ticks = range(1, stay.slots) if stay.slots <= TICKS_MAX else ()
    share = scale.width(stay.starts_at, stay.ends_at)
    words = max(len(machine.name), len(f"{machine.gpu}, {slots}") * 0.9) * CHARACTER_PX
    return RibbonBlock(
        x=scale.x(stay.starts_at),
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
        f"{scale.say(stay.starts_at)} to {scale.say(stay.ends_at)}",
    )


def _marks(marks: Sequence[RibbonMark], scale: _Scale) -> Iterator[RibbonItem]:
    """Diamonds under the row; one too near its neighbour goes without its step."""
    labelled_at = [scale.place(mark.at) for mark in marks if mark.final]
    for mark in marks:
        x = scale.place(mark.at)
        apart = mark.final or all(abs(x - other) > MARK_LABEL for other in labelled_at)
        if apart:
            labelled_at.append(x)
        kinds = (("final", mark.final), ("next", mark.at > scale.now))
        css = " ".join(word for word, wanted in kinds if wanted)
        yield RibbonItem(scale.x(mark.at), mark.label if apart else "", css)


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


def _sentences(
    stays: Sequence[NodeSpan],
    machines: Mapping[str, RibbonNode],
    scale: _Scale,
    *,
    deadline_at: datetime,
    finish_at: datetime,
    ended_at: datetime | None,
) -> tuple[str, str]:
    now, say = scale.now, scale.say
    if not stays:
        return "No slots are planned at the moment.", ""
    first = stays[0]
    name = machines[first.node_id].name
    if first.starts_at > now:
        parts = [f"Starts on {name} at {say(first.starts_at)}"]
    else:
        wait = format_duration(max(0.0, (first.starts_at - scale.begun_at).total_seconds()))
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
