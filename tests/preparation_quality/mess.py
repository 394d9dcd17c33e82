"""Twelve kinds of mess, and whether training on prepared rows is ever worse than on raw ones.

Of clean rows half get one kind of mess. *Raw* are the lines that are rows as they stand, *prepared*
what a preparation makes of the file; both are repeated to the same number of rows, so that both
jobs do the same work, and judged on the same clean rows, which neither saw. Each seed draws other
clean rows and other mess, and raw and prepared of one seed are compared with each other.

``python -m tests.preparation_quality.mess`` prints the table of ``docs/algorithms/preparation.md``.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from random import Random
from statistics import mean, stdev
from typing import Any

from tests.preparation_quality.duplicate_rows import Writer
from workers.models.pretraining.messy_data import CLEAN_ROWS, SOURCE
from workers.preparation import PreparationSettings, prepare_dataset
from workers.protocol.records import Row, read_rows

#: Other seeds than those that the nightly test trains on.
SEEDS, FIRST_SEED = 4, 11
#: Clean rows that a file is made of, and rows that each job trains on.
USED, TRAINED = 120, 96
#: Student's t for 95 % of both sides, by the number of seeds.
_T95 = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}
TRAINING = {
    "epochs": 1,
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
    """Losses on clean rows after training on one kind of mess, a pair for each seed."""

    name: str
    #: Of the first seed.
    raw_rows: int
    prepared_rows: int
    raw_losses: tuple[float, ...]
    prepared_losses: tuple[float, ...]

    @property
    def gains(self) -> list[float]:
        """How much lower the loss is on prepared rows, by seed."""
        return [raw - own for raw, own in zip(self.raw_losses, self.prepared_losses, strict=True)]

    @property
    def half_width(self) -> float:
        """Half of the 95 % interval of the mean gain."""
        return _T95[len(self.gains)] * stdev(self.gains) / math.sqrt(len(self.gains))

    def judge(self, *, by_chance: float) -> str:
        """Compare the mean gain with its interval, and with what another order of rows changes."""
        noise = max(self.half_width, by_chance)
        gain = mean(self.gains)
        return "better" if gain > noise else "worse" if gain < -noise else "the same"


def measure_mess(
    *, seeds: Sequence[int], kinds: Sequence[str] = tuple(KINDS), rows: int = TRAINED
) -> tuple[list[MessResult], float]:
    """Train on each kind raw and prepared; the losses, and how far they differ by chance.

    The chance is the mean difference, over the seeds, between two orders of the same clean rows.

    Parameters
    ----------
    rows
        Rows that each job trains on.
    """
    found: list[_Seed] = []
    for seed in seeds:
        found.append(_measure_seed(seed, kinds, rows))
        print(f"seed {seed}: {found[-1].losses}", file=sys.stderr)
    results = [
        MessResult(
            name,
            found[0].rows[f"raw-{number}"],
            found[0].rows[f"prepared-{number}"],
            tuple(one.losses[f"raw-{number}"] for one in found),
            tuple(one.losses[f"prepared-{number}"] for one in found),
        )
        for number, name in enumerate(kinds)
    ]
    return results, mean(abs(one.losses["order-0"] - one.losses["order-1"]) for one in found)


@dataclass(frozen=True, slots=True)
class _Seed:
    """Rows and losses of one seed's jobs, by job."""

    rows: dict[str, int]
    losses: dict[str, float]


def _measure_seed(seed: int, kinds: Sequence[str], rows: int) -> _Seed:
    """Train all jobs of one seed on one base, each from the same first weights."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        clean = _read_clean()
        _write(folder / "clean.jsonl", list(map(_dump_row, clean[-CLEAN_ROWS:])), CLEAN_ROWS)
        used = Random(seed).sample(clean[:-CLEAN_ROWS], USED)
        files: dict[str, list[str]] = {}
        for number, kind in enumerate(kinds):
            text = make_mess(KINDS[kind], used, seed=seed)
            files[f"raw-{number}"] = _list_usable(text)
            files[f"prepared-{number}"] = _prepare(text, folder / str(number))
        for order in range(2):
            lines = list(map(_dump_row, used))
            Random(order).shuffle(lines)
            files[f"order-{order}"] = lines
        # Several kinds leave the same usable rows, or are mended to the same ones: trained on once.
        first = {tuple(lines): job for job, lines in reversed(files.items())}
        for lines, job in first.items():
            _write(folder / f"{job}.jsonl", lines, rows)
        losses = _train(folder, list(first.values()))
        return _Seed(
            {job: len(lines) for job, lines in files.items()},
            {job: losses[first[tuple(lines)]] for job, lines in files.items()},
        )


def make_mess(kind: Mess, used: Sequence[Turns], *, seed: int) -> str:
    """A file of which half of the clean rows have a kind of mess."""
    writer = Writer(seed)
    lines: list[str] = []
    for number, turns in enumerate(used):
        lines += kind(turns, writer) if number % 2 else [_dump_row(turns)]
    writer.random.shuffle(lines)
    # The first line says what a row is: without a preparation, the others are none.
    lines.insert(0, _dump_row(used[0]))
    return "\n".join(lines) + "\n"


def _read_clean() -> list[Turns]:
    return [json.loads(line)["messages"] for line in SOURCE.read_text("utf-8").splitlines()]


def _dump_row(turns: Turns) -> str:
    return _dump({"messages": turns})


def _list_usable(text: str) -> list[str]:
    stream = io.BytesIO(text.encode())
    usable = {row.line for row in read_rows(stream, name="raw.jsonl") if isinstance(row, Row)}
    return [line for number, line in enumerate(text.splitlines(), start=1) if number in usable]


def _prepare(text: str, folder: Path) -> list[str]:
    folder.mkdir()
    prepare_dataset(io.BytesIO(text.encode()), folder, PreparationSettings())
    return (folder / "train.jsonl").read_text("utf-8").splitlines()


def _write(path: Path, lines: Sequence[str], rows: int) -> None:
    """Write the lines over and over, so many as a job trains on."""
    path.write_text("".join(f"{line}\n" for line in islice(cycle(lines), rows)), encoding="utf-8")


def _train(folder: Path, jobs: list[str]) -> dict[str, float]:
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS, choices=sorted(_T95))
    parser.add_argument("--first", type=int, default=FIRST_SEED, help="the first of them")
    asked = parser.parse_args()
    seeds = range(asked.first, asked.first + asked.seeds)
    results, chance = measure_mess(seeds=seeds)
    print(
        "| mess in half of the rows | usable | prepared | loss raw | loss prepared | lower by | |"
    )
    print("|--|--|--|--|--|--|--|")
    verdicts = [each.judge(by_chance=chance) for each in results]
    for each, verdict in zip(results, verdicts, strict=True):
        print(
            f"| {each.name} | {each.raw_rows} | {each.prepared_rows} | {mean(each.raw_losses):.3f} "
            f"| {mean(each.prepared_losses):.3f} | {mean(each.gains):.3f} \u00b1 "
            f"{each.half_width:.3f} | {verdict} |"
        )
    print(f"\n{len(seeds)} seeds. Two orders of the same clean rows differ by {chance:.3f}.")
    return 1 if "worse" in verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
