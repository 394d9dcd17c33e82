"""Trace files: CSV with ``submit_s``, ``duration_s`` and optional ``gpus``, ``deadline_s``."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from scheduler.experiments.tiers.workload import Workload

REQUIRED = ("submit_s", "duration_s")
#: The longest job and the longest trace: a run goes minute by minute, and more is a
#: trace whose times are not in seconds.
LONGEST_S = 10 * 365.0 * 86400.0
#: The widest gang.
WIDEST_GPUS = 100_000


class TraceError(ValueError):
    """A trace file that cannot be read; the message names file, line and remedy."""


def read_trace(path: Path, *, limit: int | None = None) -> Workload:
    """Reads a trace file.

    Parameters
    ----------
    path : Path
        UTF-8 CSV with a header. ``gpus`` defaults to 1 and fractions round up;
        ``deadline_s`` is on the clock of ``submit_s``, a job whose field is empty has
        one drawn; other columns are ignored.
    limit : int, optional
        Only the first rows.

    Returns
    -------
    Workload
        In order of submission, times counted from the first.

    Raises
    ------
    TraceError
        With the line number, for a missing column, a value that is not a number, a
        negative or infinite time, a duration or GPU count not above zero, one too large
        to be meant, a deadline before its job, or no rows.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(_rows(path, file, limit))
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: not a UTF-8 text file; export the trace as CSV") from error
    if not rows:
        raise TraceError(f"{path}: no jobs; the file needs one line per job after the header")
    table = np.array(rows)
    table = table[np.argsort(table[:, 0], kind="stable")]
    if table[-1, 0] - table[0, 0] > LONGEST_S:
        raise TraceError(
            f"{path}: submit_s spans {(table[-1, 0] - table[0, 0]) / 31_536_000:,.0f} years, at "
            "most 10 can be simulated; are the times in seconds?"
        )
    return Workload(
        path.stem,
        table[:, 0] - table[0, 0],
        np.ascontiguousarray(table[:, 1]),
        np.ceil(table[:, 2]).astype(np.int64),
        None if np.isnan(table[:, 3]).all() else table[:, 3] - table[0, 0],
    )


def _rows(
    path: Path, file: Iterator[str], limit: int | None
) -> Iterator[tuple[float, float, float, float]]:
    reader = csv.reader(file)
    header = [name.strip() for name in next(reader, list[str]())]
    missing = [name for name in REQUIRED if name not in header]
    if missing:
        raise TraceError(
            f"{path}, line 1: no column {' and no column '.join(missing)}; "
            "the header must name submit_s and duration_s (gpus and deadline_s are optional)"
        )
    for name in (*REQUIRED, "gpus", "deadline_s"):
        if header.count(name) > 1:
            raise TraceError(f"{path}, line 1: the column {name} is there twice; keep one")
    columns = [header.index(name) for name in REQUIRED]
    gpus = header.index("gpus") if "gpus" in header else None
    deadline = header.index("deadline_s") if "deadline_s" in header else None
    read = 0
    try:
        for row in reader:
            if not row:
                continue
            if limit is not None and read >= limit:
                return
            line = reader.line_num
            if len(row) != len(header):
                raise TraceError(
                    f"{path}, line {line}: {len(row)} fields, the header has {len(header)}"
                )
            submit = _number(path, line, "submit_s", row[columns[0]])
            duration = _number(path, line, "duration_s", row[columns[1]])
            count = 1.0 if gpus is None else _number(path, line, "gpus", row[gpus])
            if submit < 0:
                raise TraceError(f"{path}, line {line}: submit_s is {submit}, below zero")
            for name, value in (("duration_s", duration), ("gpus", count)):
                if value <= 0:
                    raise TraceError(
                        f"{path}, line {line}: {name} is {value}; it must be above zero "
                        "(drop jobs that never ran)"
                    )
            if duration > LONGEST_S:
                raise TraceError(
                    f"{path}, line {line}: duration_s is {duration:g}, more than 10 years; "
                    "are the times in seconds?"
                )
            if count > WIDEST_GPUS:
                raise TraceError(
                    f"{path}, line {line}: gpus is {count:g}; at most {WIDEST_GPUS:,} are possible"
                )
            due = math.nan
            if deadline is not None and row[deadline].strip():
                due = _number(path, line, "deadline_s", row[deadline])
                if due < submit:
                    raise TraceError(
                        f"{path}, line {line}: deadline_s is {due:g}, before submit_s {submit:g}; "
                        "it counts on the same clock (leave it empty to have one drawn)"
                    )
            read += 1
            yield submit, duration, count, due
    except csv.Error as error:
        raise TraceError(f"{path}, line {reader.line_num}: not CSV ({error})") from error


def _number(path: Path, line: int, name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise TraceError(f"{path}, line {line}: {name} is {text!r}, not a number") from None
    if not math.isfinite(value):
        raise TraceError(f"{path}, line {line}: {name} is {text!r}; it must be finite")
    return value
