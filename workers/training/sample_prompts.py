"""Prompts of held-out rows, to show what a model writes to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workers.protocol.records import Row
from workers.protocol.reports import SAMPLES_MAX
from workers.protocol.work import OPENING_TOKENS, PROMPT_TOKENS_MAX
from workers.training.packing import Example


@dataclass(frozen=True, slots=True)
class SamplePrompt:
    """What stands before the first answer of a held-out row."""

    #: ``int64[P]``
    tokens: np.ndarray
    #: The words to show; empty where they are the tokens'.
    text: str


def choose_prompts(valid: Sequence[Example], rows: Sequence[Row]) -> tuple[SamplePrompt, ...]:
    """The first few prompts of the held-out rows that are short enough and differ.

    Parameters
    ----------
    rows
        Those that the examples were made of, and maybe others.
    """
    by_line = {row.line: row for row in rows}
    found: dict[bytes, SamplePrompt] = {}
    for example in valid:
        prompt = _find_prompt(example, by_line[example.line])
        if prompt is not None:
            found.setdefault(prompt.tokens.tobytes(), prompt)
        if len(found) == SAMPLES_MAX:
            break
    return tuple(found.values())


def _find_prompt(example: Example, row: Row) -> SamplePrompt | None:
    if example.label is not None:
        return None
    sequence = example.sequences[0]
    length = int(np.flatnonzero(sequence.weights)[0])
    before = [s.text for s in row.segments[: _first_trained(row)] if s.text]
    if not before:
        length = min(OPENING_TOKENS, len(sequence) // 2)
    if not 0 < length <= PROMPT_TOKENS_MAX:
        return None
    return SamplePrompt(sequence.tokens[:length].copy(), before[-1] if before else "")


def _first_trained(row: Row) -> int:
    return next(index for index, segment in enumerate(row.segments) if segment.train)
