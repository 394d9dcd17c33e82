"""A raw row to an object that trains, with a sentence for each thing that was mended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from workers.preparation.forms import BECAME_CHAT, OpenPair, write_chat
from workers.preparation.mended_json import (
    Repair,
    RowDroppedError,
    fold_keys,
    mend_characters,
    parse_row,
)
from workers.preparation.messages import drop_silent_messages, read_list, rename_message
from workers.preparation.reading import RawRow
from workers.preparation.roles import (
    ANSWERS,
    CONTEXTS,
    DETAILS,
    EMPTY,
    HISTORIES,
    INPUTS,
    LABELS,
    LISTS,
    QUESTIONS,
    SYSTEMS,
    TEXTS,
    assign_roles,
)
from workers.preparation.texts import has_words, iter_texts, map_texts
from workers.protocol.job_spec import DataFormat
from workers.protocol.record_formats import FORMAT_NAMES, parse_row_object
from workers.protocol.record_keys import recognise
from workers.protocol.record_types import CHAT_ROLES, Limits, ValueRefusal

_TRAINED_KEYS = ("prompt", "completion", "instruction", "output", "text")


@dataclass(frozen=True, slots=True)
class RepairedRow:
    """A row that trains."""

    line: int
    #: ``RawRow.number``.
    number: int
    format: DataFormat
    value: dict[str, Any]
    #: A sentence for each thing that was mended; empty for a row that was sound.
    reasons: tuple[str, ...]
    #: Keys that stay in the row and are not trained on.
    unread: tuple[str, ...] = ()
    #: A prompt and completion that ``FileForm`` may write as a chat.
    pair: OpenPair | None = None


def repair_row(
    raw: RawRow,
    *,
    to_chat: bool,
    limits: Limits | None = None,
    roles: Mapping[str, str] | None = None,
    is_alone: bool = True,
) -> RepairedRow:
    """Mend one row.

    Parameters
    ----------
    to_chat
        Write a question and its answer as a chat.
    roles
        What the owner said of columns: a ``ColumnRole`` by the column's name.
    is_alone
        Otherwise the file's other rows say whether they become one (``RepairedRow.pair``).

    Raises
    ------
    RowDroppedError
        When nothing sound can be made of it without inventing text.
    """
    if raw.refusal:
        raise RowDroppedError(raw.refusal)
    repair = Repair(to_chat, limits or Limits())
    if raw.mended:
        repair.note(raw.mended)
    value = parse_row(raw.text, repair) if raw.text is not None else dict(raw.cells or {})
    value = map_texts(value, lambda text: mend_characters(text, repair))
    if roles:
        value = assign_roles(value, roles, repair)
    value = _rename(value, repair)
    try:
        row = parse_row_object(
            value, line=raw.line, data_format=None, max_messages=repair.limits.max_messages
        )
    except ValueRefusal as refusal:
        raise RowDroppedError(refusal.message) from None
    kind = row.format
    if repair.pair is not None and is_alone:
        value, kind, repair.pair = write_chat(value), DataFormat.CHAT, None
        repair.note(BECAME_CHAT)
    reasons = tuple(repair.reasons)
    return RepairedRow(raw.line, raw.number, kind, value, reasons, row.ignored_keys, repair.pair)


def refuse_other_format(found: DataFormat, expected: DataFormat) -> str:
    """Why a row of another format than the file's is dropped."""
    return f"The row is {FORMAT_NAMES[found]}, but most of the file is {FORMAT_NAMES[expected]}."


def _rename(value: dict[str, Any], repair: Repair) -> dict[str, Any]:
    """Keys and messages in the spelling that the market reads."""
    found = fold_keys(value)
    if found.keys() != value.keys():
        repair.note("Keys were written in lower case.")
    for name in LISTS:
        turns = read_list(found.get(name))
        if turns is not None:
            if name != "messages":
                if found.get("messages") not in EMPTY:
                    raise RowDroppedError(f"Keys 'messages' and '{name}' stand beside each other.")
                repair.note(f"Key '{name}' became 'messages'.")
            messages = [rename_message(turn, repair) for turn in turns]
            rest = {key: item for key, item in found.items() if key not in (name, "messages")}
            messages = _put_system_first(_join_beside(messages, rest, repair), rest, repair)
            return {"messages": drop_silent_messages(messages, repair)} | rest
    kind = recognise(frozenset(found))
    if kind is DataFormat.INSTRUCTION:
        return _build_pair(found, "instruction", "output", repair)
    if kind is DataFormat.COMPLETION:
        return _build_pair(found, "prompt", "completion", repair)
    if kind is DataFormat.PREFERENCE:
        return _build_preference(_as_text(found, repair), repair)
    if kind is not None:
        return _as_text(found, repair)
    question = next((name for name in QUESTIONS if name in found), None)
    answer = next((name for name in ANSWERS if name in found), None)
    if question and answer:
        repair.note(f"Keys '{question}' and '{answer}' became 'prompt' and 'completion'.")
        return _build_pair(found, question, answer, repair)
    text = next((name for name in TEXTS if name in found), None)
    label = next((name for name in LABELS if name in found), None)
    if text and label:
        repair.note(f"Keys '{text}' and '{label}' became 'text' and 'label'.")
        _leave_out(found, {text, label}, repair)
        return {"text": found[text], "label": found[label]}
    if text:
        repair.note(f"Key '{text}' became 'text'.")
        _leave_out(found, {text}, repair)
        return _as_text({"text": found[text]}, repair)
    return found


def _join_beside(messages: list[Any], rest: dict[str, Any], repair: Repair) -> list[Any]:
    """The messages with what their owner said belongs to them, which leaves ``rest``."""
    users = (each for each in messages if isinstance(each, dict) and each.get("role") == "user")
    first = next(users, None)
    if first is not None and _is_text(first.get("content")):
        before, after = (
            {name: rest.pop(name)} if name in repair.said and _is_text(rest.get(name)) else {}
            for name in ("context", "input")
        )
        first["content"] = _join_asked(first["content"], before, after, repair)
    used: set[str] = set()
    turns = _read_history(rest, used, repair) if "history" in repair.said else []
    for name in used:
        del rest[name]
    leads = bool(messages) and messages[0] is not first and _is_system(messages[0])
    return [*messages[:leads], *turns, *messages[leads:]]


def _is_system(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") == "system"


def _join_asked(
    asked: str, before: Mapping[str, str], after: Mapping[str, str], repair: Repair
) -> str:
    """What is asked, between the texts that belong to it, by their keys."""
    for place, texts in (("before", before), ("after", after)):
        for name in texts:
            repair.note(f"Key '{name}' was put {place} what is asked.")
    return "\n\n".join([*before.values(), asked, *after.values()])


def _build_preference(value: dict[str, Any], repair: Repair) -> dict[str, Any]:
    """A preference of two texts whose prompt has all that belongs to it."""
    question = next((name for name in ("prompt", *QUESTIONS) if name in value), None)
    if question is None or not (_is_text(value[question]) and _is_text(value.get("chosen"))):
        return value

    def find(names: tuple[str, ...]) -> dict[str, str]:
        found = (name for name in names if name != question and _is_text(value.get(name)))
        return {name: value[name] for name in found}

    before, after = find((*SYSTEMS, "context")), find(INPUTS)
    if question != "prompt":
        repair.note(f"Key '{question}' became 'prompt'.")
    rest = {name: item for name, item in value.items() if name not in {question, *before, *after}}
    return {"prompt": _join_asked(value[question], before, after, repair)} | rest


def _put_system_first(messages: list[Any], rest: dict[str, Any], repair: Repair) -> list[Any]:
    """A system prompt that stands beside the messages, as the first of them."""
    name = next((name for name in SYSTEMS if _is_text(rest.get(name))), None)
    has_own = any(map(_is_system, messages))
    if name is None or has_own:
        return messages
    repair.note(f"Key '{name}' became the first message.")
    return [{"role": "system", "content": rest.pop(name)}, *messages]


def _build_pair(
    value: dict[str, Any], question: str, answer: str, repair: Repair
) -> dict[str, Any]:
    """A question and its answer with all that belongs to them; as a chat where that is wanted.

    Raises
    ------
    RowDroppedError
        A key holds text that has no place in the row.
    """
    used = {question, answer}

    def take(names: tuple[str, ...]) -> list[str]:
        taken = [name for name in names if name not in used and _is_text(value.get(name))]
        used.update(taken)
        return taken

    systems, befores, afters = take(SYSTEMS), take(CONTEXTS), take(INPUTS)
    turns = _read_history(value, used, repair)
    _leave_out(value, used, repair)
    row = _as_text({name: value[name] for name in value if name in used}, repair, used)
    is_plain = not (systems or befores or turns)
    if is_plain and not repair.to_chat and {question, answer} == {"instruction", "output"}:
        return row
    asked: Any = row[question]
    if isinstance(asked, str):
        before, after = ({name: row[name] for name in names} for names in (befores, afters))
        asked = _join_asked(asked, before, after, repair)
    told = row[answer]
    if not repair.to_chat:
        if turns:
            raise RowDroppedError("Key 'history' holds turns, and the rows stay as they are.")
        if systems and isinstance(asked, str):
            asked = _join_asked(asked, {name: row[name] for name in systems}, {}, repair)
        return {"prompt": asked, "completion": told}
    if isinstance(asked, str) and not asked.strip() and (systems or turns):
        raise RowDroppedError("The row has a system prompt or earlier turns, and asks nothing.")
    if not isinstance(asked, str) or not isinstance(told, str) or not asked.strip():
        return {"prompt": asked, "completion": told}
    if not (systems or turns):
        keys = [*befores, question, *afters]
        # What the owner said of a column is no guess that other rows may mend.
        kind = recognise(frozenset(used)) if used.isdisjoint(repair.said) else None
        is_led = len(keys) > 1 and repair.said.isdisjoint(keys[:2]) and bool(row[question].strip())
        frame = row[keys[0]] if is_led else ""
        repair.pair = OpenPair(tuple(keys), kind, frame)
        return {"prompt": asked, "completion": told}
    repair.note(BECAME_CHAT)
    return {
        "messages": [
            *({"role": "system", "content": row[name].strip()} for name in systems),
            *turns,
            {"role": "user", "content": asked.strip()},
            {"role": "assistant", "content": told.strip()},
        ]
    }


def _read_history(value: dict[str, Any], used: set[str], repair: Repair) -> list[dict[str, Any]]:
    """Earlier turns: pairs of a question and its answer, or messages.

    What a row teaches is its own answer; those before it are read and not learnt.
    """
    name = next((name for name in HISTORIES if name in value), None)
    if name is None or value[name] in EMPTY:
        return []
    used.add(name)
    turns: list[dict[str, Any]] = []
    for item in read_list(value[name]) or [None]:
        if isinstance(item, list) and len(item) == 2 and all(map(_is_text, item)):
            asked, told = item
            turns += [
                {"role": "user", "content": asked},
                {"role": "assistant", "content": told, "weight": 0},
            ]
            continue
        turn = rename_message(item, repair)
        if not isinstance(turn, dict) or turn.get("role") not in CHAT_ROLES:
            raise RowDroppedError(f"Key '{name}' is no list of questions with answers.")
        turns.append({"weight": 0} | turn if turn["role"] == "assistant" else turn)
    repair.note(f"Key '{name}' became earlier messages, whose answers are not learnt.")
    return turns


def _leave_out(value: dict[str, Any], used: set[str], repair: Repair) -> None:
    """Note each key that is left out.

    Raises
    ------
    RowDroppedError
        One holds text, and nothing says what it is for.
    """
    for name, item in value.items():
        if name in used or item in EMPTY:
            continue
        says = name not in DETAILS and any(map(has_words, iter_texts(item)))
        if says or name in repair.said:
            raise RowDroppedError(
                f"Key '{name}' holds text that has no place in a row. Say in the plan what it is."
            )
        repair.note(f"Key '{name}' was left out.")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _as_text(
    value: dict[str, Any], repair: Repair, keys: Iterable[str] = _TRAINED_KEYS
) -> dict[str, Any]:
    """Numbers where a text belongs, as text."""
    changed = dict(value)
    for key in keys:
        item = value.get(key)
        if isinstance(item, bool) or not isinstance(item, (int, float)):
            continue
        changed[key] = str(item)
        repair.note("Numbers were written as text.")
    return changed
