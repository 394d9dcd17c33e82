"""Rows that are sound but not wanted: too short, too long, repetitive, in another language."""

from __future__ import annotations

from collections import Counter
from typing import Any

from workers.preparation.languages import detect_language
from workers.preparation.settings import PreparationSettings
from workers.preparation.texts import join_texts, split_words

#: A row with at least this many words of which one run of four makes up the share below repeats
#: itself.
_MIN_WORDS = 40
_REPEATED_SHARE = 0.5
REPETITIVE = "The row repeats the same few words over and over."


def refuse_unwanted(value: dict[str, Any], settings: PreparationSettings) -> str | None:
    """Why a row is left out; ``None`` for one to keep."""
    text = join_texts(value)
    if len(text) < settings.min_chars:
        return f"The row has {len(text):,} characters, fewer than {settings.min_chars:,}."
    if len(text) > settings.max_chars:
        return f"The row has {len(text):,} characters, more than {settings.max_chars:,}."
    if is_repetitive(text):
        return REPETITIVE
    if settings.languages:
        language = detect_language(text)
        if language is not None and language not in settings.languages:
            wanted = " or ".join(settings.languages)
            return f"The row is in the language '{language}', not in {wanted}."
    return None


def is_repetitive(text: str) -> bool:
    """Whether one run of four words makes up half of a text."""
    words = split_words(text)
    if len(words) < _MIN_WORDS:
        return False
    runs = Counter(zip(words, words[1:], words[2:], words[3:], strict=False))
    return 4 * runs.most_common(1)[0][1] >= _REPEATED_SHARE * len(words)
