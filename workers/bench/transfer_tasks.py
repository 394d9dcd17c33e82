"""Twelve small tasks in four families, generated from seeds.

Tasks of a family share their form and differ in words, so that one should help another;
tasks of different families share nothing but the language.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from workers.models.pretraining.words import DAYS, NAMES, PRODUCTS

Row = dict[str, str]


@dataclass(frozen=True, slots=True)
class TransferTask:
    """One task: rows on demand."""

    name: str
    family: str
    make: Callable[[Random], Row]


def _reply(shop: str, opening: str, closing: str) -> Callable[[Random], Row]:
    def make(random: Random) -> Row:
        name, product, day = random.choice(NAMES), random.choice(PRODUCTS), random.choice(DAYS)
        return {
            "instruction": "Answer the customer.",
            "input": f"Where is my {product}? {name}",
            "output": f"{opening} {name}, your {product} comes on {day[:3]}. {closing} {shop}",
        }

    return make


def _units(large: str, small: str, factor: int) -> Callable[[Random], Row]:
    def make(random: Random) -> Row:
        left, right = random.randint(1, 30), random.randint(1, factor - 1)
        whole = left * factor
        return {
            "instruction": "Add the two.",
            "input": f"{left} {large} + {right} {small}",
            "output": f"{left} {large} is {whole} {small}, together {whole + right} {small}.",
        }

    return make


def _record(pattern: str) -> Callable[[Random], Row]:
    def make(random: Random) -> Row:
        values = {
            "n": random.choice(NAMES),
            "p": random.choice(PRODUCTS),
            "d": random.choice(DAYS),
            "k": random.randint(2, 20),
        }
        return {
            "instruction": "Write the order down.",
            "input": "{n} wants {k} pieces of the {p} on {d}.".format(**values),
            "output": pattern.format(**values),
        }

    return make


def _list(change: Callable[[list[str]], list[str]], asked: str) -> Callable[[Random], Row]:
    def make(random: Random) -> Row:
        words = random.sample(PRODUCTS, 4)
        return {
            "instruction": asked,
            "input": ", ".join(words),
            "output": ", ".join(change(words)),
        }

    return make


TASKS = (
    TransferTask("reply north", "reply", _reply("Northwind", "Dear", "Warmly,")),
    TransferTask("reply south", "reply", _reply("Southgate", "Hello", "Yours,")),
    TransferTask("reply east", "reply", _reply("Eastfield", "Good day", "Kind regards from")),
    TransferTask("units length", "units", _units("m", "cm", 100)),
    TransferTask("units weight", "units", _units("kg", "g", 1000)),
    TransferTask("units time", "units", _units("h", "min", 60)),
    TransferTask("record semicolons", "record", _record("{n};{p};{k};{d}")),
    TransferTask("record keys", "record", _record("name={n} item={p} count={k} day={d}")),
    TransferTask("record brackets", "record", _record("[{n}] [{p}] [{k}] [{d}]")),
    TransferTask("list reversed", "list", _list(lambda w: w[::-1], "Turn the list round.")),
    TransferTask("list sorted", "list", _list(sorted, "Sort the list.")),
    TransferTask("list ends", "list", _list(lambda w: [w[0], w[-1]], "Keep the ends.")),
)


def write_task(task: TransferTask, path: Path, *, rows: int, seed: int) -> None:
    """Rows of one task as JSON lines, none twice; the same bytes for one seed."""
    random = Random(f"{task.name} {seed}")  # noqa: S311
    seen: dict[str, Row] = {}
    while len(seen) < rows:
        row = task.make(random)
        seen.setdefault(row["input"], row)
    lines = (json.dumps(row) + "\n" for row in seen.values())
    path.write_text("".join(lines), encoding="utf-8")
