"""Which keys a row of each format has, and what is said of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache

from workers.protocol.job_spec import DataFormat
from workers.protocol.record_json import show_name
from workers.protocol.record_types import CHAT_ROLES, Row, ValueRefusal

#: Keys a row must have, in the order in which a row with several is recognised.
REQUIRED: tuple[tuple[DataFormat, frozenset[str]], ...] = (
    (DataFormat.CHAT, frozenset({"messages"})),
    # As ShareGPT writes chats.
    (DataFormat.CHAT, frozenset({"conversations"})),
    (DataFormat.PREFERENCE, frozenset({"input", "preferred_output", "non_preferred_output"})),
    (DataFormat.PREFERENCE, frozenset({"chosen", "rejected"})),
    (DataFormat.INSTRUCTION, frozenset({"instruction", "output"})),
    (DataFormat.COMPLETION, frozenset({"prompt", "completion"})),
    (DataFormat.CLASSIFICATION, frozenset({"text", "label"})),
    (DataFormat.TEXT, frozenset({"text"})),
)
#: Keys a row may have besides, without a word about them.
OPTIONAL: dict[DataFormat, frozenset[str]] = {
    DataFormat.CHAT: frozenset({"tools", "functions", "parallel_tool_calls"}),
    DataFormat.PREFERENCE: frozenset({"prompt", "tools"}),
    DataFormat.CLASSIFICATION: frozenset(),
    DataFormat.INSTRUCTION: frozenset({"input"}),
    DataFormat.COMPLETION: frozenset(),
    DataFormat.TEXT: frozenset(),
}
MESSAGE_KEYS = frozenset(
    {
        *("role", "content", "weight", "name", "tool_calls", "tool_call_id", "function_call"),
        *("reasoning_content", "refusal", "audio", "annotations"),
    }
)

KNOWN_FORMATS = (
    "Use messages or conversations; or prompt and completion; or instruction, input and output; "
    "or text; or text and label; or prompt, chosen and rejected."
)

#: Different keys of a file reported by name; the others are reported together.
_KEYS_TOLD = 32
#: Ignored keys remembered of one row, so that a hostile one costs no memory.
_KEYS_OF_A_ROW = 16
#: Longer keys are no slip of the pen.
_KEY_CHARS = 64
_LETTERS = "abcdefghijklmnopqrstuvwxyz_"

#: Keys that change what a row of a format means if they are written a little otherwise, by the
#: format they then would have: an ignored neighbour of one is most likely a slip of the pen.
_MEANINGFUL: dict[DataFormat, tuple[str, ...]] = {
    DataFormat.CHAT: (),
    DataFormat.PREFERENCE: ("prompt",),
    DataFormat.CLASSIFICATION: (),
    DataFormat.INSTRUCTION: ("input",),
    DataFormat.COMPLETION: (),
    DataFormat.TEXT: ("label",),
}
_PLAIN = (DataFormat.INSTRUCTION, DataFormat.COMPLETION, DataFormat.TEXT)
_UNWEIGHTED = "Rows cannot be weighted: leave out or repeat rows instead."
_SYSTEM = "Write it as a first message with the role system."
_SYSTEM_TEXT = "Write it at the beginning of the prompt, or use messages."
#: Keys that stand at a place where nothing reads them, though their owner counts on them.
_MISPLACED: dict[tuple[DataFormat, str], str] = {
    (DataFormat.CHAT, "weight"): "A weight belongs into a message, beside role and content.",
    (DataFormat.CHAT, "role"): "A role belongs into a message.",
    (DataFormat.CHAT, "content"): "Content belongs into a message.",
    (DataFormat.CHAT, "system"): _SYSTEM,
    (DataFormat.PREFERENCE, "system"): _SYSTEM_TEXT,
    (DataFormat.PREFERENCE, "weight"): _UNWEIGHTED,
    (DataFormat.INSTRUCTION, "context"): "Did you mean input? Then rename it.",
    (DataFormat.COMPLETION, "label"): (
        "Every completion is learnt as a good one. For good and bad ones use prompt, chosen and "
        "rejected."
    ),
    **{(kind, "weight"): _UNWEIGHTED for kind in (*_PLAIN, DataFormat.CLASSIFICATION)},
    **{(kind, "system"): _SYSTEM_TEXT for kind in (DataFormat.INSTRUCTION, DataFormat.COMPLETION)},
}


@dataclass(frozen=True, slots=True)
class IgnoredKey:
    """A key that rows of a file have and nothing reads."""

    #: Fit to be shown; empty for the keys beyond those reported by name, together.
    key: str
    #: Rows that have it.
    rows: int
    #: Line of the first of them, from 1.
    line: int
    #: What its owner most likely meant, and what to do; empty when it looks like a plain extra.
    hint: str = ""


class IgnoredKeys:
    """Counts the ignored keys of a file's rows, in bounded memory."""

    def __init__(self) -> None:
        self._rows: Counter[str] = Counter()
        self._first: dict[str, Row] = {}
        self._beyond = 0
        self._beyond_line = 0

    def note(self, row: Row) -> None:
        beyond = False
        for key in row.ignored_keys:
            if key not in self._first:
                if len(self._first) >= _KEYS_TOLD:
                    beyond = True
                    continue
                self._first[key] = row
            self._rows[key] += 1
        if beyond:
            self._beyond += 1
            self._beyond_line = self._beyond_line or row.line

    def found(self) -> tuple[IgnoredKey, ...]:
        """Keys with a hint first, then by how many rows have them."""
        keys = [
            IgnoredKey(
                show_name(key) or "(no name)", self._rows[key], row.line, find_hint(key, row.format)
            )
            for key, row in self._first.items()
        ]
        keys.sort(key=lambda found: (not found.hint, -found.rows, found.line, found.key))
        if self._beyond:
            keys.append(IgnoredKey("", self._beyond, self._beyond_line))
        return tuple(keys)


def describe_ignored_keys(keys: Iterable[IgnoredKey]) -> tuple[str, ...]:
    """What to tell the owner of a file: a sentence per suspicious key, one for the others."""
    suspicious = [found for found in keys if found.hint]
    plain = [found for found in keys if not found.hint]
    sentences = [
        f"Key {found.key} ({_rows(found.rows)}, first in line {found.line}) is not trained on. "
        f"{found.hint}"
        for found in suspicious
    ]
    if plain:
        named = ", ".join(f"{found.key or 'further keys'} ({_rows(found.rows)})" for found in plain)
        verb = "Key that is" if len(plain) == 1 and plain[0].key else "Keys that are"
        sentences.append(f"{verb} not trained on: {named}.")
    return tuple(sentences)


def find_hint(key: str, data_format: DataFormat) -> str:
    """What the owner of an ignored key most likely meant; empty when nothing comes to mind."""
    return "" if len(key) > _KEY_CHARS else _hint(key, data_format)


# files repeat their keys in every row
@lru_cache(maxsize=1024)
def _hint(key: str, data_format: DataFormat) -> str:
    misplaced = _MISPLACED.get((data_format, key))
    if misplaced is not None:
        return misplaced
    meant = find_near_word(key, _MEANINGFUL[data_format])
    if meant is not None:
        return f"Did you mean {meant}? Then rename it."
    misspelt = find_near_word(key, [name for kind, name in _MISPLACED if kind is data_format])
    return "" if misspelt is None else _MISPLACED[data_format, misspelt]


def find_near_word(name: object, known: Iterable[str]) -> str | None:
    """The known word that ``name`` is one slip of the pen away from, if there is one.

    A slip is a letter too many, too few or wrong, two letters swapped, or another case.
    """
    if not isinstance(name, str) or len(name) > _KEY_CHARS:
        return None
    return next((word for word in known if name != word and name.lower() in _slips(word)), None)


def suggest_names(names: Iterable[str], known: Iterable[str]) -> str:
    """A question to end a refusal with, with a space before it; empty when nothing is near."""
    known = tuple(known)
    for name in names:
        meant = find_near_word(name, known)
        if meant is not None:
            return f" Did you mean {meant} by {show_name(name)}?"
    return ""


def recognise(keys: frozenset[str]) -> DataFormat | None:
    """The format whose keys are all there; ``None`` when there is none."""
    return next((kind for kind, required in REQUIRED if required <= keys), None)


def recognise_csv_format(header: frozenset[str]) -> DataFormat | None:
    """``recognise`` for a table, whose cells cannot hold messages."""
    kind = recognise(header - {"messages", "preferred_output", "non_preferred_output"})
    return None if kind is DataFormat.CHAT else kind


def list_ignored_keys(
    keys: frozenset[str], data_format: DataFormat, used: frozenset[str]
) -> tuple[str, ...]:
    """The keys of a row that nothing reads, those with a hint first."""
    ignored = keys - used - OPTIONAL[data_format]
    if not ignored:
        return ()
    return tuple(
        sorted(ignored, key=lambda key: (not find_hint(key, data_format), key))[:_KEYS_OF_A_ROW]
    )


def refuse_unknown_keys(keys: frozenset[str], data_format: DataFormat | None) -> ValueRefusal:
    """Why an object with these keys is no row of any format."""
    if "conversations" in keys:
        return ValueRefusal(
            "Key conversations is not known. Use messages, a list of objects with "
            "role and content.",
            "conversations",
        )
    best = max(REQUIRED, key=lambda entry: (len(entry[1] & keys), entry[0] is data_format))
    others = sorted(keys - best[1])
    if best[1] & keys:
        missing = sorted(best[1] - keys)
        word = "Key" if len(missing) == 1 else "Keys"
        verb = "is" if len(missing) == 1 else "are"
        return ValueRefusal(
            f"{word} {' and '.join(missing)} {verb} missing.{suggest_names(others, missing)} "
            f"{KNOWN_FORMATS}"
        )
    if not keys:
        return ValueRefusal(f"The row is empty. {KNOWN_FORMATS}")
    first = sorted(keys)[:4]
    word = "Key" if len(first) == 1 else "Keys"
    verb = "is" if len(first) == 1 else "are"
    names = ", ".join(show_name(key) for key in first)
    meant = suggest_names(others, sorted({key for _, required in REQUIRED for key in required}))
    return ValueRefusal(f"{word} {names} {verb} not known.{meant} {KNOWN_FORMATS}", first[0])


def refuse_unknown_message_key(key: str) -> str:
    meant = suggest_names([key], sorted(MESSAGE_KEYS))
    return f"Key {show_name(key)} is not known in a message.{meant} Use role, content and weight."


def refuse_unknown_role(role: object) -> str:
    name = show_name(role) if isinstance(role, str) else "of this kind"
    meant = find_near_word(role, CHAT_ROLES)
    question = "" if meant is None else f" Did you mean {meant}?"
    return f"Role {name} is not known.{question} Use system, user, assistant or tool."


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"


@cache
def _slips(word: str) -> frozenset[str]:
    cuts = [(word[:i], word[i:]) for i in range(len(word) + 1)]
    return frozenset(
        {word}
        | {left + right[1:] for left, right in cuts if right}
        | {left + right[1] + right[0] + right[2:] for left, right in cuts if len(right) > 1}
        | {left + letter + right[1:] for left, right in cuts if right for letter in _LETTERS}
        | {left + letter + right for left, right in cuts for letter in _LETTERS}
    )
