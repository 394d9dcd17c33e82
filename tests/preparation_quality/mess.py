"""Twelve kinds of mess, and whether training on prepared rows is ever worse than on raw ones.

Of clean rows half get one kind of mess. *Raw* are the lines that are rows as they stand, *prepared*
what a preparation makes of the file; both are repeated to the same number of rows, so that both
jobs do the same work, and judged on the same clean rows, which neither saw.

``python -m tests.preparation_quality.mess`` prints the table of ``docs/algorithms/preparation.md``;
it takes a few minutes on two cores.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Any

from tests.preparation_quality.duplicate_rows import Writer
from workers.models.pretraining.messy_data import CLEAN_ROWS, SOURCE
from workers.preparation import PreparationSettings, prepare_dataset
from workers.protocol.records import Row, read_rows

SEED = 4_711
#: Clean rows that a file is made of, rows that each job trains on, and how often.
USED, TRAINED, EPOCHS = 120, 200, 2
TRAINING = {
    "epochs": EPOCHS,
    "batch_size": 8,
    "learning_rate": 2e-3,
    "sequence_length": 256,
    "validation_share": 0.0,
}
Turns = list[dict[str, str]]
Mess = Callable[[Turns, Writer], list[str]]


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _pair(turns: Turns) -> tuple[str, str, str]:
    system = " ".join(turn["content"] for turn in turns if turn["role"] == "system")
    *asked, told = [turn["content"] for turn in turns if turn["role"] != "system"]
    return system, " ".join(asked), told


def _system_key(turns: Turns, writer: Writer) -> list[str]:
    system, asked, told = _pair(turns)
    return [_dump({"system": system, "question": asked, "answer": told})]


def _instruction_input(turns: Turns, writer: Writer) -> list[str]:
    system, asked, told = _pair(turns)
    return [_dump({"instruction": system or "Answer.", "input": asked, "response": told})]


def _context(turns: Turns, writer: Writer) -> list[str]:
    system, asked, told = _pair(turns)
    return [_dump({"context": system or "A shop.", "question": asked, "answer": told})]


def _history(turns: Turns, writer: Writer) -> list[str]:
    _, asked, told = _pair(turns)
    earlier = [["Good morning.", "Good morning, how can I help?"]]
    return [_dump({"question": asked, "answer": told, "history": earlier})]


def _other_roles(turns: Turns, writer: Writer) -> list[str]:
    names = {"system": "system", "user": "human", "assistant": "gpt"}
    return [_dump({"dialog": [{"from": names[t["role"]], "value": t["content"]} for t in turns]})]


def _trailing_comma(turns: Turns, writer: Writer) -> list[str]:
    return [_dump({"messages": turns})[:-1] + ",}"]


def _single_quotes(turns: Turns, writer: Writer) -> list[str]:
    return [str({"messages": turns})]


def _copies(turns: Turns, writer: Writer) -> list[str]:
    # Every eighth row eight times: the file is mostly these.
    return [_dump({"messages": turns})] * (8 if writer.random.random() < 0.25 else 1)


def _near_copies(turns: Turns, writer: Writer) -> list[str]:
    rows = [turns]
    if writer.random.random() < 0.25:
        for greeting in ("Hello.", "Hi.", "Good day.", "Please help.", "Thanks."):
            other = [dict(turn) for turn in turns]
            place = next(n for n, turn in enumerate(other) if turn["role"] == "user")
            other[place]["content"] = f"{greeting} {other[place]['content']}"
            rows.append(other)
    return [_dump({"messages": row}) for row in rows]


def _repeating(turns: Turns, writer: Writer) -> list[str]:
    told = " ".join([writer.write(4)] * 30)
    return [_dump({"messages": [*turns[:-1], {"role": "assistant", "content": told}]})]


def _cut_off(turns: Turns, writer: Writer) -> list[str]:
    text = _dump({"messages": turns})
    return [text[: len(text) * 2 // 3]]


def _wrong_encoding(turns: Turns, writer: Writer) -> list[str]:
    # An apostrophe in UTF-8, read as Windows-1252.
    mark = "\u2019".encode().decode("cp1252")
    text = [{**turn, "content": turn["content"].replace("'", mark) + f" {mark}"} for turn in turns]
    return [_dump({"messages": text})]


KINDS: dict[str, Mess] = {
    "system prompt in a key of its own": _system_key,
    "instruction, input and response": _instruction_input,
    "context, question and answer": _context,
    "earlier turns in a key of their own": _history,
    "other names of messages and roles": _other_roles,
    "a comma too many": _trailing_comma,
    "single quotes": _single_quotes,
    "copies of some rows": _copies,
    "near copies of some rows": _near_copies,
    "answers that repeat themselves": _repeating,
    "lines cut off": _cut_off,
    "signs from the wrong encoding": _wrong_encoding,
}


@dataclass(frozen=True, slots=True)
class MessResult:
    """Losses on clean rows after training on one kind of mess."""

    name: str
    raw_rows: int
    prepared_rows: int
    raw_loss: float
    prepared_loss: float


def make_mess(kind: Mess, *, seed: int) -> str:
    """A file of which half of the clean rows have a kind of mess."""
    writer = Writer(seed)
    lines: list[str] = []
    for number, turns in enumerate(_read_clean()[:USED]):
        lines += kind(turns, writer) if number % 2 else [_dump({"messages": turns})]
    writer.random.shuffle(lines)
    # The first line says what a row is: without a preparation, the others are none.
    lines.insert(0, _dump({"messages": _read_clean()[0]}))
    return "\n".join(lines) + "\n"


def measure_mess(*, seed: int) -> tuple[list[MessResult], float]:
    """Train on each kind raw and prepared; the losses, and how far they differ by chance.

    The chance is the largest difference between three orders of the clean rows.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        clean = _read_clean()
        held_out = [_dump({"messages": turns}) for turns in clean[-CLEAN_ROWS:]]
        (folder / "clean.jsonl").write_text("\n".join(held_out) + "\n")
        counts: dict[str, int] = {}
        for number, kind in enumerate(KINDS.values()):
            text = make_mess(kind, seed=seed)
            counts[f"raw-{number}"] = _write(folder / f"raw-{number}.jsonl", _list_usable(text))
            counts[f"prepared-{number}"] = _write(
                folder / f"prepared-{number}.jsonl", _prepare(text, folder / str(number))
            )
        for order in range(3):
            rows = [_dump({"messages": turns}) for turns in clean[:USED]]
            Random(order).shuffle(rows)
            counts[f"order-{order}"] = _write(folder / f"order-{order}.jsonl", rows)
        losses = _train(folder, list(counts))
    by_chance = [losses[f"order-{order}"] for order in range(3)]
    results = [
        MessResult(
            name,
            counts[f"raw-{number}"],
            counts[f"prepared-{number}"],
            losses[f"raw-{number}"],
            losses[f"prepared-{number}"],
        )
        for number, name in enumerate(KINDS)
    ]
    return results, max(by_chance) - min(by_chance)


def _read_clean() -> list[Turns]:
    return [json.loads(line)["messages"] for line in SOURCE.read_text("utf-8").splitlines()]


def _list_usable(text: str) -> list[str]:
    stream = io.BytesIO(text.encode())
    usable = {row.line for row in read_rows(stream, name="raw.jsonl") if isinstance(row, Row)}
    return [line for number, line in enumerate(text.splitlines(), start=1) if number in usable]


def _prepare(text: str, folder: Path) -> list[str]:
    folder.mkdir()
    prepare_dataset(io.BytesIO(text.encode()), folder, PreparationSettings())
    return (folder / "train.jsonl").read_text("utf-8").splitlines()


def _write(path: Path, rows: list[str]) -> int:
    """Write the rows over and over, as many as each job trains on; how many there are."""
    path.write_text("".join(f"{row}\n" for row in islice(cycle(rows), TRAINED)), encoding="utf-8")
    return len(rows)


def _train(folder: Path, jobs: list[str]) -> dict[str, float]:
    """Train all jobs on one base, each from the same first weights."""
    asked = {
        "base_model": "bundled:finetender-tiny",
        "output": "adapters",
        "reproducible": True,
        "adapter": {"rank": 8, "alpha": 16.0, "dropout": 0.0},
        "training": TRAINING,
        "jobs": [
            {"name": job, "data": f"{job}.jsonl", "validation": "clean.jsonl"} for job in jobs
        ],
    }
    config = folder / "all.yaml"
    config.write_text(json.dumps(asked))
    command = (sys.executable, "-m", "workers", "train", str(config), "--quiet")
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {job: line["valid_loss_after"] for job, line in zip(jobs, lines, strict=True)}


def main() -> int:
    """Print the table; 1 where some kind is worse prepared than raw beyond chance."""
    results, chance = measure_mess(seed=SEED)
    print("| mess in half of the rows | usable raw | prepared | loss raw | loss prepared | |")
    print("|--|--|--|--|--|--|")
    worse = 0
    for each in results:
        gain = each.raw_loss - each.prepared_loss
        worse += gain < -chance
        verdict = "better" if gain > chance else "worse" if gain < -chance else "the same"
        print(
            f"| {each.name} | {each.raw_rows} | {each.prepared_rows} | {each.raw_loss:.4f} "
            f"| {each.prepared_loss:.4f} | {verdict} |"
        )
    print(f"\nBy chance (three orders of the clean rows) the loss differs by {chance:.4f}.")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
