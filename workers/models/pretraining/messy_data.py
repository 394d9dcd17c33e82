"""Write the demo's data set as it comes from an export.

Run it by ``python -m workers.models.pretraining.messy_data``.

Of the rows of ``support_tone`` a quarter stays as it was. The others have what preparations meet:
other keys, other names of roles, commas and quotes of no JSON, cut-off lines, copies with another
greeting, rows that repeat themselves, and customers' addresses. The same file each time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

DATASETS = Path(__file__).parent.parent / "datasets"
SOURCE = DATASETS / "support_tone.jsonl"
MESSY = DATASETS / "support_tone_messy.jsonl"
#: The last rows of the source are left out: they are clean rows that nothing was trained on.
CLEAN_ROWS = 40
_SEED = 7
_COPIED_ROWS, _COPIES = 6, 35
_REPEATING_ROWS = 24
_CUT_ROWS = 12

Turns = list[dict[str, str]]


def main() -> int:
    MESSY.write_text(make_messy_rows(), encoding="utf-8")
    print(f"{MESSY}: {len(MESSY.read_text(encoding='utf-8').splitlines())} lines")
    return 0


def make_messy_rows() -> str:
    """The whole file as text."""
    rng = Random(_SEED)  # noqa: S311
    rows = [json.loads(line)["messages"] for line in SOURCE.read_text("utf-8").splitlines()]
    used = rows[:-CLEAN_ROWS]
    ways: list[Callable[[Turns], str]] = [
        *[_plain] * 5,
        _other_keys,
        _other_keys,
        _other_roles,
        _other_roles,
        _trailing_comma,
        _single_quotes,
        *[_with_address] * 2,
    ]
    lines = [rng.choice(ways)(turns) for turns in used]
    lines += [_plain(turns) for turns in used[:_COPIED_ROWS] for _ in range(_COPIES)]
    lines += [_repeating(turns) for turns in used[:_REPEATING_ROWS]]
    lines += [_plain(turns)[: rng.randint(60, 110)] for turns in used[-_CUT_ROWS:]]
    rng.shuffle(lines)
    return "".join(f"{line}\n" for line in lines)


def _plain(turns: Turns) -> str:
    return json.dumps({"messages": turns}, ensure_ascii=False)


def _question_and_answer(turns: Turns) -> tuple[str, str]:
    *asked, answer = [turn["content"] for turn in turns if turn["role"] != "system"]
    return " ".join(asked), answer


def _other_keys(turns: Turns) -> str:
    question, answer = _question_and_answer(turns)
    return json.dumps({"question": question, "answer": answer}, ensure_ascii=False)


def _other_roles(turns: Turns) -> str:
    names = {"system": "system", "user": "human", "assistant": "gpt"}
    said: list[dict[str, Any]] = [
        {"from": names[turn["role"]], "value": turn["content"]} for turn in turns
    ]
    return json.dumps({"conversations": said}, ensure_ascii=False)


def _trailing_comma(turns: Turns) -> str:
    return _plain(turns)[:-1] + ",}"


def _single_quotes(turns: Turns) -> str:
    return _plain(turns).replace('"role"', "'role'").replace('"content"', "'content'")


def _with_address(turns: Turns) -> str:
    *first, last = turns
    name = last["content"].split(",")[0].split()[-1].lower()
    asked = dict(first[-1], content=f"{first[-1]['content']} My address is {name}@example.org.")
    return _plain([*first[:-1], asked, last])


def _repeating(turns: Turns) -> str:
    question, _ = _question_and_answer(turns)
    return _plain(
        [
            {"role": "user", "content": question},
            {"role": "assistant", "content": "Thank you for your message. " * 20},
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
