"""The express lane's answers as plain values: a question in, an answer out, nothing else read.

A market writes both to its log. With the log alone every answer can be found again: by
:func:`answer_question` for a job that asks, by :func:`plan_waiting` for those that wait when a
seat came free before its time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple, cast

from scheduler.prompts.admission import LaneAnswer, admit_job
from scheduler.prompts.gangs import (
    FoundGang,
    GangRules,
    compute_gang_run_s,
    compute_held_seat_s,
    find_gang,
)
from scheduler.prompts.jobs import Course, TuningJob, run_s
from scheduler.prompts.planning import Promise, choose_course, keep_promises
from scheduler.prompts.pools import WarmPool
from scheduler.prompts.rules import LaneRules

#: Multiples of an SLO at which later ones are looked for.
STRETCHES = (1.25, 1.5, 2.0, 3.0, 5.0)


def build_question(
    job: TuningJob,
    promised: Sequence[Promise],
    seats: Sequence[tuple[str, float]],
    now_s: float,
    *,
    rules: LaneRules,
    latest_s: float,
    price: Mapping[str, Any],
    gangs: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Put everything that an answer is made from into plain values.

    Parameters
    ----------
    job : TuningJob
        With the SLO asked for.
    promised : sequence of Promise
        Jobs admitted that wait for a seat.
    seats : sequence of (str, float)
        Each warm seat and when it is free.
    now_s : float
        The moment of the answer; all times are seconds on its clock.
    rules : LaneRules
    latest_s : float
        End of the time that the seats are bought for: nothing is certified beyond it.
    price : mapping of str to any
        What :func:`compute_price_micros` takes, besides work and SLO.
    gangs : mapping of str to any, optional
        The fields of :class:`~scheduler.prompts.gangs.GangRules`, and ``seats``: each with its
        node and when it is free of all that waits there. Without it a job gets one seat.
    """
    question = build_waiting_question(promised, seats, now_s, rules=rules) | {
        "job": _job_to_json(job),
        "latest_s": float(latest_s),
        "price": dict(price),
    }
    return question if gangs is None else question | {"gangs": dict(gangs)}


def build_waiting_question(
    promised: Sequence[Promise],
    seats: Sequence[tuple[str, float]],
    now_s: float,
    *,
    rules: LaneRules,
) -> dict[str, Any]:
    """Put everything that a plan of waiting jobs is made from into plain values.

    Parameters
    ----------
    promised, seats, now_s, rules
        As in :func:`build_question`.
    """
    return {
        "promised": [_promise_to_json(promise) for promise in promised],
        "seats": [[name, float(free_s)] for name, free_s in sorted(seats)],
        "now_s": float(now_s),
        "rules": {
            name: value if isinstance(value, int) else float(value)
            for name, value in asdict(rules).items()
        },
    }


def answer_question(question: Mapping[str, Any]) -> dict[str, Any]:
    """Answer a question of :func:`build_question`.

    Returns
    -------
    dict
        ``answer`` (a :class:`~scheduler.prompts.admission.LaneAnswer`), ``least_slo_s``, and,
        where it is no refusal, ``slo_s`` that is certified, ``seat``, ``start_s``, ``end_s``,
        ``looks_up`` and ``price_micros``; they are ``None`` otherwise. ``moved`` has what the jobs
        that waited were promised now, earliest start first, where the job is certified: their
        ids, seats, starts and ends. ``seats`` has all seats of a gang, and is left out where one
        seat does.

    Raises
    ------
    ValueError, KeyError
        For a question that cannot have been asked.
    """
    state = _read_state(question)
    job = _job_from_json(question["job"])
    pool = WarmPool(job.base_model, 0.0, tuple(free_s for free_s, _ in state.seats))
    latest_s = float(question["latest_s"])
    stretches = [s for s in STRETCHES if job.submitted_s + job.slo_s * s <= latest_s]
    least_s = _least_slo_s(job, state, question.get("gangs"))
    names = ("slo_s", "seat", "start_s", "end_s", "looks_up", "price_micros")
    no: dict[str, Any] = dict.fromkeys(names) | {"least_slo_s": least_s, "moved": []}
    if job.due_s > latest_s:
        return no | {"answer": str(LaneAnswer.FULL)}
    found = admit_job(
        job,
        state.promised,
        {job.base_model: pool},
        0,
        state.now_s,
        rules=state.rules,
        stretches=stretches,
    )
    gang = None
    if found.answer != LaneAnswer.CERTIFIED and "gangs" in question:
        gang = _find_gang(job, state, question["gangs"])
    if gang is not None:
        return no | {
            "answer": str(LaneAnswer.CERTIFIED),
            "slo_s": job.slo_s,
            "seat": gang.seats[0],
            "seats": list(gang.seats),
            "start_s": gang.start_s,
            "end_s": gang.end_s,
            "looks_up": choose_course(job, state.now_s, state.rules).looks_up,
            "price_micros": _price(job, job.slo_s, question),
        }
    if found.promise is None or found.plan is None:
        # Several seats would keep it, but are not free in time.
        is_full = found.answer == LaneAnswer.TOO_SHORT and job.slo_s >= least_s
        return no | {"answer": str(LaneAnswer.FULL if is_full else found.answer)}
    promise = found.promise
    places = _assign_seats(found.plan.promises, state)
    moved = [place for place in places if place[0] != job.id]
    return {
        "answer": str(found.answer),
        "slo_s": promise.job.slo_s,
        "seat": next(seat for name, seat, _, _ in places if name == job.id),
        "start_s": promise.start_s,
        "end_s": promise.end_s,
        "looks_up": promise.course.looks_up,
        "price_micros": _price(job, promise.job.slo_s, question),
        "least_slo_s": least_s,
        "moved": moved if found.answer == LaneAnswer.CERTIFIED else [],
    }


def plan_waiting(question: Mapping[str, Any]) -> dict[str, Any]:
    """Plan the jobs that wait again, on seats that may have come free before their time.

    Every promise is held, in the order of their starts (:func:`keep_promises`), so none starts
    later than before.

    Parameters
    ----------
    question
        Of :func:`build_waiting_question`.

    Returns
    -------
    dict
        ``moved`` as in :func:`answer_question`; empty where a promise can no longer be kept, and
        everything stays as it was planned.

    Raises
    ------
    ValueError, KeyError
        As :func:`answer_question`.
    """
    state = _read_state(question)
    if not state.promised:
        return {"moved": []}
    base_model = next(iter(state.promised.values())).job.base_model
    pool = WarmPool(base_model, 0.0, tuple(free_s for free_s, _ in state.seats))
    plan = keep_promises(
        state.promised.values(), {base_model: pool}, 0, state.now_s, rules=state.rules
    )
    is_kept = {one.job.id for one in plan.promises} == state.promised.keys()
    return {"moved": _assign_seats(plan.promises, state) if is_kept else []}


def compute_price_micros(
    *,
    work_s: float,
    slo_s: float,
    rate_micros: int,
    urgency_percent: int,
    gang: Mapping[str, Any] | None = None,
) -> int:
    """The posted price of a job, by its SLO.

    ``rate * work * (1 + urgency * work / SLO)``, rounded up: an SLO as long as the work costs the
    whole surcharge, one twice as long half of it. Of an SLO that only a gang keeps, the work is
    what all its seats hold.

    Parameters
    ----------
    work_s : float
        Seconds of a seat, at most.
    slo_s : float
    rate_micros : int
        Posted rate of a seat, micro-dollars a second.
    urgency_percent : int
        Surcharge at the shortest SLO.
    gang : mapping of str to any, optional
        The fields of :class:`~scheduler.prompts.gangs.GangRules`, where gangs are sold.
    """
    if gang is not None:
        work_s = compute_held_seat_s(work_s, slo_s, GangRules(**gang))
    share = min(1.0, work_s / slo_s)
    return math.ceil(rate_micros * work_s * (1.0 + urgency_percent / 100.0 * share))


def _least_slo_s(job: TuningJob, state: _State, gangs: Mapping[str, Any] | None) -> float:
    """The SLO that an idle seat just keeps, or the largest gang that is sold."""
    length_s = run_s(choose_course(job, state.now_s, state.rules), 1, state.rules)
    if gangs is not None:
        length_s = compute_gang_run_s(
            length_s, _read_gang_rules(gangs).most, _read_gang_rules(gangs)
        )
    return state.now_s - job.submitted_s + length_s


def _price(job: TuningJob, slo_s: float, question: Mapping[str, Any]) -> int:
    return compute_price_micros(work_s=job.work_gpu_s, slo_s=slo_s, **question["price"])


def _find_gang(job: TuningJob, state: _State, gangs: Mapping[str, Any]) -> FoundGang | None:
    course = choose_course(job, state.now_s, state.rules)
    return find_gang(
        run_s(course, 1, state.rules),
        job.due_s,
        [(str(name), str(node), float(free_s)) for name, node, free_s in gangs["seats"]],
        state.now_s,
        rules=_read_gang_rules(gangs),
        round_s=state.rules.round_s,
    )


def _read_gang_rules(gangs: Mapping[str, Any]) -> GangRules:
    return GangRules(int(gangs["most"]), int(gangs["places"]), float(gangs["fixed_s"]))


class _State(NamedTuple):
    """What every question has."""

    now_s: float
    rules: LaneRules
    promised: dict[str, Promise]
    #: When each seat is free, and its name; earliest first.
    seats: list[tuple[float, str]]


def _read_state(question: Mapping[str, Any]) -> _State:
    return _State(
        float(question["now_s"]),
        LaneRules(**question["rules"]),
        {p.job.id: p for p in map(_promise_from_json, question["promised"])},
        sorted((float(free_s), str(name)) for name, free_s in question["seats"]),
    )


def _assign_seats(promises: Sequence[Promise], state: _State) -> list[list[Any]]:
    """Name the seat of every promise: each job's id, seat, start and end.

    Of the seats free by a start, the one that came free last is taken: idle ones can go back.
    """
    free = list(state.seats)
    places: list[list[Any]] = []
    for one in sorted(promises, key=lambda one: (one.start_s, one.job.due_s, one.job.id)):
        chosen = max(seat for seat in free if seat[0] <= one.start_s)
        free.remove(chosen)
        free.append((one.end_s + state.rules.round_s, chosen[1]))
        places.append([one.job.id, chosen[1], one.start_s, one.end_s])
    return places


def _job_to_json(job: TuningJob) -> dict[str, Any]:
    return {
        "id": job.id,
        "base_model": job.base_model,
        "submitted_s": float(job.submitted_s),
        "slo_s": float(job.slo_s),
        "work_gpu_s": float(job.work_gpu_s),
        "lookup_gpu_s": float(job.lookup_gpu_s),
    }


def _job_from_json(data: Mapping[str, Any]) -> TuningJob:
    return TuningJob(**cast(Any, data))


def _promise_to_json(promise: Promise) -> dict[str, Any]:
    course = promise.course
    return {
        "job": _job_to_json(promise.job),
        "gpus": promise.gpus,
        "course": [course.looks_up, float(course.work_gpu_s), float(course.fixed_s)],
        "start_s": float(promise.start_s),
        "end_s": float(promise.end_s),
    }


def _promise_from_json(data: Mapping[str, Any]) -> Promise:
    looks_up, work_gpu_s, fixed_s = data["course"]
    return Promise(
        _job_from_json(data["job"]),
        int(data["gpus"]),
        Course(bool(looks_up), float(work_gpu_s), float(fixed_s)),
        float(data["start_s"]),
        float(data["end_s"]),
    )
