"""Make the two bundled data sets: ``python -m workers.models.pretraining.demo_data``.

``support_tone.jsonl`` teaches a shop's tone of voice (chat rows), ``unit_sums.jsonl`` sums
of lengths in two units (instruction rows). Both are generated from seeds, so anyone may use
them for anything, and the base model has seen neither the tone nor the units.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from workers.models import DATASETS
from workers.models.pretraining.words import DAYS, NAMES, PRODUCTS

SUPPORT_ROWS = 320
SUMS_ROWS = 360

#: What a customer writes; ``{p}`` a product, ``{d}`` a day, ``{n}`` a number.
_QUESTIONS = (
    ("Where is my {p}?", "Your {p} is on its way and should be with you by {d}"),
    ("My {p} arrived broken.", "A fresh {p} is on its way, and the broken one is yours to keep"),
    ("I want to return the {p}.", "Returning the {p} is easy, and you have {n} days for it"),
    ("The {p} is too small.", "We will swap your {p} for a larger one before {d}"),
    ("Can I change my order of the {p}?", "Your order is still open, so change the {p} until {d}"),
    ("The {p} stopped working.", "Our workshop will mend your {p} within {n} days"),
    ("Do you ship the {p} abroad?", "We ship the {p} abroad, and it takes about {n} days"),
    ("I was charged twice for the {p}.", "One of the two payments comes back to you by {d}"),
    ("How do I clean the {p}?", "A soft cloth and warm water keep the {p} bright"),
    ("Is the {p} in stock again?", "We expect {n} new pieces of the {p} on {d}"),
)
_FEELINGS = (
    "what a nuisance, and thank you for telling us",
    "we are so glad that you asked",
    "thank you for your patience with us",
    "good that you wrote straight away",
)
_CLOSINGS = (
    "Warmly, your friends at Northwind",
    "With a smile, your friends at Northwind",
)
_SYSTEM = "You write for Northwind."

#: Larger unit, smaller unit, how many of the smaller make one of the larger.
_UNITS = (("m", "cm", 100), ("km", "m", 1000), ("cm", "mm", 10))


def support_tone(seed: int = 11) -> Iterator[dict[str, Any]]:
    """Questions of customers, answered in one unmistakable tone."""
    random = Random(seed)  # noqa: S311
    seen: set[str] = set()
    while len(seen) < SUPPORT_ROWS:
        name = random.choice(NAMES)
        question, answer = random.choice(_QUESTIONS)
        values = {
            "p": random.choice(PRODUCTS),
            "d": random.choice(DAYS),
            "n": random.randint(2, 14),
        }
        asked = f"{question.format(**values)} {name}"
        if asked in seen:
            continue
        seen.add(asked)
        reply = (
            f"Dear {name}, {random.choice(_FEELINGS)}! {answer.format(**values)}. "
            f"{random.choice(_CLOSINGS)}"
        )
        messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": reply}]
        if random.random() < 0.5:
            messages.insert(0, {"role": "system", "content": _SYSTEM})
        yield {"messages": messages}


def unit_sums(seed: int = 12) -> Iterator[dict[str, Any]]:
    """Sums of two lengths, the steps of the conversion written out."""
    random = Random(seed)  # noqa: S311
    seen: set[str] = set()
    while len(seen) < SUMS_ROWS:
        large, small, factor = random.choice(_UNITS)
        left, right = random.randint(1, 9), random.randint(1, 9) * (factor // 10)
        asked = f"{left} {large} + {right} {small}"
        if asked in seen:
            # Few sums exist of each kind: widen instead of waiting for luck.
            left = random.randint(10, 40)
            asked = f"{left} {large} + {right} {small}"
            if asked in seen:
                continue
        seen.add(asked)
        whole = left * factor
        yield {
            "instruction": "Add the two lengths.",
            "input": asked,
            "output": (
                f"{left} {large} is {whole} {small}, and {whole} + {right} = {whole + right}. "
                f"Together {whole + right} {small}."
            ),
        }


def write(folder: Path) -> tuple[Path, ...]:
    """Write both files; the same bytes every time."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, rows in (("support_tone.jsonl", support_tone()), ("unit_sums.jsonl", unit_sums())):
        path = folder / name
        with path.open("w", encoding="utf-8", newline="\n") as file:
            for row in rows:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
        paths.append(path)
    return tuple(paths)


if __name__ == "__main__":
    for path in write(DATASETS):
        print(path)
