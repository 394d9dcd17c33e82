"""Held-out rows that training cannot have seen: no prompt stands on both sides."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from workers.preparation.duplicates import hash_text


def choose_held_out(prompts: Iterable[str], *, share: float, seed: int) -> set[int]:
    """Positions of the rows to set aside.

    Rows with the same prompt stay together. The order in which groups are chosen follows from the
    seed and the prompts alone, so that rows added later do not reshuffle the others.

    Parameters
    ----------
    prompts : iterable of str
        What the model is asked, row by row.
    share : float
        Of all rows, 0 to 0.5. Whole groups are taken until the next one would exceed it.
    """
    groups: dict[bytes, list[int]] = {}
    total = 0
    for position, prompt in enumerate(prompts):
        groups.setdefault(hash_text(prompt), []).append(position)
        total += 1
    room = int(total * share)
    salt = seed.to_bytes(16, "big", signed=True)
    chosen: set[int] = set()
    for _, positions in sorted(
        groups.items(), key=lambda group: hashlib.sha256(salt + group[0]).digest()
    ):
        if len(chosen) + len(positions) <= room:
            chosen.update(positions)
    return chosen
