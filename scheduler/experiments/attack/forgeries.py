"""Forged logs: a market that alters what it has published, and makes the chain fit again.

The forger has the database, the program and the salts, but not the head that a witness was
given. It changes a value anywhere, leaves entries out, repeats or moves them, cuts the end
off, or lets the market's own program write the whole log again from another day. Every
hash is worked out again, and outcomes too where the engine takes the events.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from scheduler.auction import ChainEntry, Engine, ZoneRules
from scheduler.auction.audit.transcripts import verify_transcript, write_transcript_lines
from scheduler.auction.log.chain import entry_to_json
from scheduler.auction.log.codec import event_from_json, outcome_to_json, rules_to_json
from scheduler.auction.prices import Settings
from scheduler.experiments.attack.findings import Finding, Measure
from scheduler.experiments.attack.market_logs import make_log_rules, write_log
from scheduler.experiments.auction.scenario import Scenario
from scheduler.public_log.entries import digest, hash_entry, hide_bid
from scheduler.public_log.heads import Head, SignedHead, sign_head
from scheduler.types import Task

#: Name under which the market signs heads of the log.
_ZONE = "zone"
#: Few steps: what is forged is checked against them just as well.
_SETTINGS = Settings(futures=2, iterations=6)

#: An entry as JSON values, without its hashes.
_Entry = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ForgerySize:
    """How much is run."""

    forgeries: int
    slots: int
    bids_per_slot: float


QUICK = ForgerySize(forgeries=300, slots=8, bids_per_slot=3.0)
FULL = ForgerySize(forgeries=600, slots=12, bids_per_slot=4.0)


@dataclass(frozen=True, slots=True)
class Victim:
    """A published log, and what its forger needs to write another."""

    scenario: Scenario
    day: Sequence[Task]
    rules: ZoneRules
    log: Sequence[ChainEntry]


def run(size: ForgerySize) -> Iterator[Finding]:
    """Forge a log at random, each time with one head given away, or none."""
    victim = make_victim(size, seed=0)
    for shows_bids in (True, False):
        rng = np.random.default_rng([7, shows_bids])
        with_head: list[float] = []
        without: list[float] = []
        while len(with_head) < size.forgeries:
            forged = forge(victim, rng)
            lines, honest = (
                write_lines(log, victim.rules, shows_bids=shows_bids)
                for log in (forged, [entry_to_json(entry) for entry in victim.log])
            )
            if goes_on(lines, honest):
                continue
            passes = is_accepted(lines)
            without.append(float(passes))
            head = draw_head(lines, honest, rng)
            with_head.append(float(passes and is_accepted(lines, [head])))
        form = "bids shown" if shows_bids else "bids left out"
        yield Finding(
            experiment="forgeries",
            case=f"a log altered at random, every hash made to fit, {form}",
            measures={
                "pass_one_witnessed_head": Measure.of(with_head),
                "pass_no_witness": Measure.of(without),
            },
            goal="none passes a witness that has one head from after the forged place",
            verdict="missed" if any(with_head) else "holds",
        )


def make_victim(size: ForgerySize, *, seed: int) -> Victim:
    """Write the log of a small first day with nodes of two types."""
    scenario = Scenario(
        "zone",
        slots=size.slots,
        nodes=4,
        bids_per_slot=size.bids_per_slot,
        a100_capacity=8_000.0,
        a40_capacity=4_000.0,
        a100_ask=4_500.0,
        a40_ask=2_500.0,
        most_epochs=1,
    )
    day = scenario.day(seed)
    log = write_log(scenario, day, settings=_SETTINGS, salt="secret")
    return Victim(scenario, day, make_log_rules(scenario, _SETTINGS), log)


def write_lines(log: Sequence[_Entry], rules: ZoneRules, *, shows_bids: bool) -> list[str]:
    """Write entries as a transcript, every hash made to fit what they say."""
    header = next(
        write_transcript_lines(
            [], zone=_ZONE, rules=rules, shows=None if shows_bids else lambda _: False
        )
    )
    lines, head = [header], digest(rules_to_json(rules))
    for position, data in enumerate(log, start=1):
        body = {"event": data["event"], "outcome": data["outcome"]}
        hash_ = hash_entry(position=position, prev_hash=head, **body)
        entry = {"position": position, **body, "prev_hash": head, "hash": hash_}
        lines.append(json.dumps(entry if shows_bids else hide_bid(entry)))
        head = hash_
    return lines


def goes_on(lines: Sequence[str], honest: Sequence[str]) -> bool:
    """Tell whether a transcript is the honest one, or goes on from it: nothing in it is forged.

    A secret that a public log does not show may change nothing in it, and a bid that is made up may
    be the last one.
    """
    return list(lines[: len(honest)]) == list(honest)


def is_accepted(lines: Sequence[str], witness: Sequence[SignedHead] | None = None) -> bool:
    """Tell whether a transcript verifies."""
    try:
        return verify_transcript(lines, witness=witness).ok
    except ValueError:
        # It is no transcript at all.
        return False


def draw_head(lines: Sequence[str], honest: Sequence[str], rng: np.random.Generator) -> SignedHead:
    """Give the one head of the honest log that a witness has, from after the forged place."""
    pairs = zip(lines, honest, strict=False)
    first = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(lines), len(honest) - 1))
    at = json.loads(honest[int(rng.integers(first, len(honest)))])
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    return sign_head(
        Head(_ZONE, at["position"], at["hash"]),
        signed_at="2026-01-01T00:00:00+00:00",
        public_key=key.public_key().public_bytes_raw().hex(),
        sign=key.sign,
    )


# -- forgeries -----------------------------------------------------------------------------


def forge(victim: Victim, rng: np.random.Generator) -> list[_Entry]:
    """Give the entries of a log that was forged in one way of ``WAYS``."""
    way = list(WAYS.values())[int(rng.integers(len(WAYS)))]
    return way(victim, rng)


def _alter_value(victim: Victim, rng: np.random.Generator) -> list[_Entry]:
    log = _copy(victim)
    at = int(rng.integers(len(log)))
    part = "event" if rng.random() < 0.5 else "outcome"
    _alter_leaf(log[at], part, rng)
    return log if rng.random() < 0.5 else _replay(log, victim.rules, kept=at)


def _leave_out(victim: Victim, rng: np.random.Generator) -> list[_Entry]:
    log = _copy(victim)
    del log[int(rng.integers(len(log)))]
    return _replay(log, victim.rules)


def _repeat(victim: Victim, rng: np.random.Generator) -> list[_Entry]:
    log = _copy(victim)
    log.insert(int(rng.integers(len(log))), log[int(rng.integers(len(log)))])
    return _replay(log, victim.rules)


def _move(victim: Victim, rng: np.random.Generator) -> list[_Entry]:
    log = _copy(victim)
    log.insert(int(rng.integers(len(log))), log.pop(int(rng.integers(len(log)))))
    return _replay(log, victim.rules)


def _cut(victim: Victim, rng: np.random.Generator) -> list[_Entry]:
    return _copy(victim)[: int(rng.integers(len(victim.log)))]


def _write_another_day(victim: Victim, rng: np.random.Generator) -> list[_Entry]:
    """Let the market's own program write the log of a day with one bid changed."""
    day = list(victim.day)
    at = int(rng.integers(len(day)))
    salt = "secret"
    match int(rng.integers(4)):
        case 0:
            day[at] = replace(day[at], bid=day[at].bid * float(rng.uniform(0.3, 3.0)))
        case 1:
            del day[at]
        case 2:
            day.insert(at, replace(day[at], id="made up"))
        case _:
            salt = "another secret"
    log = write_log(victim.scenario, day, settings=_SETTINGS, salt=salt)
    return [entry_to_json(entry) for entry in log]


#: By what they do.
WAYS: dict[str, Callable[[Victim, np.random.Generator], list[_Entry]]] = {
    "a value altered": _alter_value,
    "an entry left out": _leave_out,
    "an entry repeated": _repeat,
    "an entry moved": _move,
    "the end cut off": _cut,
    "another day written": _write_another_day,
}


def _copy(victim: Victim) -> list[_Entry]:
    return [json.loads(json.dumps(entry_to_json(entry))) for entry in victim.log]


def _replay(log: list[_Entry], rules: ZoneRules, *, kept: int | None = None) -> list[_Entry]:
    """Work out again what events lead to, where the engine takes them; one outcome is kept."""
    engine = Engine(rules)
    for at, data in enumerate(log):
        try:
            outcome = outcome_to_json(engine.transition(event_from_json(data["event"])))
        except (ValueError, KeyError, TypeError):
            continue
        if at != kept:
            log[at] = {**data, "outcome": outcome}
    return log


def _alter_leaf(data: Any, key: Any, rng: np.random.Generator) -> None:
    """Change one value somewhere below ``data[key]``, by as little as there is or by much."""
    value = data[key]
    if isinstance(value, dict | list) and value:
        inner = cast("dict[Any, Any] | list[Any]", value)
        keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
        _alter_leaf(inner, keys[int(rng.integers(len(keys)))], rng)
    elif isinstance(value, bool):
        data[key] = not value
    elif isinstance(value, int):
        data[key] = value + int(rng.choice([-1, 1, 1000]))
    elif isinstance(value, float):
        data[key] = float(rng.choice([math.nextafter(value, math.inf), 0.9 * value - 1.0]))
    elif isinstance(value, str):
        data[key] = f"{value}x"
    else:
        data[key] = 1 if value is None else None
