"""The express lane's answers as plain values: a question in, an answer out, nothing else read.

A market writes both to its log. Whoever has the log finds every answer again with
:func:`answer_question`, which the market itself decides with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, cast

from scheduler.prompts.admission import LaneAnswer, admit_job
from scheduler.prompts.jobs import Course, TuningJob, run_s
from scheduler.prompts.latency_budget import affords_lookup, budget_left_s, predict_course
from scheduler.prompts.planning import Promise
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
    boot_s: float,
    latest_s: float,
    price: Mapping[str, int],
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
    boot_s : float
        Seconds until a seat that is bought now is ready.
    latest_s : float
        End of the time that the seats are bought for: nothing is certified beyond it.
    price : mapping of str to int
        What :func:`compute_price_micros` takes, besides work and SLO.
    """
    return {
        "job": _job_to_json(job),
        "promised": [_promise_to_json(promise) for promise in promised],
        "seats": [[name, float(free_s)] for name, free_s in sorted(seats)],
        "now_s": float(now_s),
        "rules": {
            name: value if isinstance(value, int) else float(value)
            for name, value in asdict(rules).items()
        },
        "boot_s": float(boot_s),
        "latest_s": float(latest_s),
        "price": dict(price),
    }


def answer_question(question: Mapping[str, Any]) -> dict[str, Any]:
    """Answer a question of :func:`build_question`.

    Returns
    -------
    dict
        ``answer`` (a :class:`~scheduler.prompts.admission.LaneAnswer`), ``least_slo_s``, and,
        where it is no refusal, ``slo_s`` that is certified, ``seat``, ``start_s``, ``end_s``,
        ``looks_up`` and ``price_micros``; they are ``None`` otherwise.

    Raises
    ------
    ValueError, KeyError
        For a question that cannot have been asked.
    """
    now_s, rules = float(question["now_s"]), LaneRules(**question["rules"])
    job = _job_from_json(question["job"])
    promised = {p.job.id: p for p in map(_promise_from_json, question["promised"])}
    seats = sorted((float(free_s), str(name)) for name, free_s in question["seats"])
    pool = WarmPool(job.base_model, float(question["boot_s"]), tuple(free_s for free_s, _ in seats))
    latest_s = float(question["latest_s"])
    stretches = [s for s in STRETCHES if job.submitted_s + job.slo_s * s <= latest_s]
    least_s = _least_slo_s(job, now_s, rules)
    names = ("slo_s", "seat", "start_s", "end_s", "looks_up", "price_micros")
    no: dict[str, Any] = dict.fromkeys(names)
    if job.due_s > latest_s:
        return no | {"answer": str(LaneAnswer.FULL), "least_slo_s": least_s}
    found = admit_job(
        job, promised, {job.base_model: pool}, 0, now_s, rules=rules, stretches=stretches
    )
    if found.promise is None:
        return no | {"answer": str(found.answer), "least_slo_s": least_s}
    promise = found.promise
    return {
        "answer": str(found.answer),
        "slo_s": promise.job.slo_s,
        "seat": _choose_seat(seats, promise.start_s),
        "start_s": promise.start_s,
        "end_s": promise.end_s,
        "looks_up": promise.course.looks_up,
        "price_micros": compute_price_micros(
            work_s=job.work_gpu_s, slo_s=promise.job.slo_s, **question["price"]
        ),
        "least_slo_s": least_s,
    }


def compute_price_micros(
    *, work_s: float, slo_s: float, rate_micros: int, urgency_percent: int
) -> int:
    """The posted price of a job, by its SLO.

    ``rate * work * (1 + urgency * work / SLO)``, rounded up: an SLO as long as the work costs the
    whole surcharge, one twice as long half of it.

    Parameters
    ----------
    work_s : float
        Seconds of a seat, at most.
    slo_s : float
    rate_micros : int
        Posted rate of a seat, micro-dollars a second.
    urgency_percent : int
        Surcharge at the shortest SLO.
    """
    share = min(1.0, work_s / slo_s)
    return math.ceil(rate_micros * work_s * (1.0 + urgency_percent / 100.0 * share))


def _least_slo_s(job: TuningJob, now_s: float, rules: LaneRules) -> float:
    """The SLO that an idle seat just keeps."""
    course = predict_course(
        job, affords_lookup(job, budget_left_s(job, now_s, rules)), rules, shared=True
    )
    return now_s - job.submitted_s + run_s(course, 1, rules)


def _choose_seat(seats: Sequence[tuple[float, str]], start_s: float) -> str:
    """Of the seats free by the start, the one that came free last: idle ones can go back."""
    return max(((free_s, name) for free_s, name in seats if free_s <= start_s))[1]


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
