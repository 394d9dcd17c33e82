"""A messy file to a prepared one: all steps, in two passes, with one row in memory at a time."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from workers.preparation.changes import (
    EXACT_DUPLICATE,
    Action,
    Change,
    ChangeLog,
    Step,
    cut_excerpt,
)
from workers.preparation.duplicates import DuplicateRows, choose_sample, find_common_phrases
from workers.preparation.filters import REPETITIVE, refuse_unwanted
from workers.preparation.plan import (
    PreparationPlan,
    PreparationSummary,
    count_steps,
    drop_split_settings,
    list_groups,
)
from workers.preparation.reading import RawRow, read_raw_rows
from workers.preparation.repair import RowDroppedError, refuse_other_format, repair_row
from workers.preparation.roles import ColumnCounts
from workers.preparation.settings import PreparationSettings
from workers.preparation.splitting import choose_held_out
from workers.preparation.spool import RowSpool
from workers.preparation.texts import find_prompt, join_texts, read_sides
from workers.preparation.tracing import ROW_ID, read_object, take_row_ids
from workers.protocol.job_spec import DataFormat
from workers.protocol.record_types import ByteStream, Limits

TRAINING_FILE = "train.jsonl"
VALIDATION_FILE = "validation.jsonl"
CHANGES_FILE = "changes.jsonl"
REPORT_FILE = "report.json"
ORIGINS_FILE = "origins.jsonl"

NAMES_STAY = "Names of people are not found and not masked."

_ROWS_MAX = Limits().max_rows


def prepare_dataset(
    stream: ByteStream,
    folder: Path,
    settings: PreparationSettings,
    *,
    count_tokens: Callable[[str], int] | None = None,
    has_row_ids: bool = False,
) -> PreparationPlan:
    """Prepare a data set; what was done, which is also what is planned.

    Writes ``train.jsonl``, ``validation.jsonl`` when rows are held out, ``origins.jsonl`` (the row
    id of each row of both, in their order), ``changes.jsonl`` (one ``Change`` a line) and
    ``report.json`` (the summary) into ``folder``, which must exist. The same file and settings give
    the same bytes. A plan is made by this function too: what is shown to an owner is what it did to
    a copy.

    Parameters
    ----------
    stream : ByteStream
        The original file, read once.
    count_tokens
        Tokens of a text, for the plan's steps; without it they are 0.
    has_row_ids
        The rows came back from a vendor, with the ids that they left with.

    Raises
    ------
    UnreadableFileError
        When the file is no text or is empty; nothing is written then but an empty list of changes.
    """
    excerpts = _Excerpts(settings)
    tokens = _TokenCounts(count_tokens)
    columns = ColumnCounts()
    raws = read_raw_rows(stream)
    with (
        (folder / CHANGES_FILE).open("w", encoding="utf-8") as changes,
        TemporaryFile(dir=folder) as file,
    ):
        log = ChangeLog(changes)
        spool = RowSpool(file)
        rows = take_row_ids(raws) if has_row_ids else raws
        rows_in = _spool_rows(rows, spool, log, settings, excerpts, tokens, columns)
        _settle_forms(spool, log, excerpts, tokens)
        main = spool.find_main_format()
        groups: defaultdict[int, list[int]] = defaultdict(list)
        kept = list(_iter_kept(spool, main, log, settings, excerpts, groups, tokens))
        held_out = _choose_held_out(spool, kept, settings)
        masked, rows_sha256 = _write_rows(
            folder, spool, kept, held_out, log, settings, excerpts, tokens
        )
        listed = list_groups(
            groups,
            show=lambda at: (spool.rows[at].line, excerpts.cut_row(spool.read(at))),
        )
    summary = _summarize(
        log,
        settings,
        rows_in=rows_in,
        kept=len(kept),
        held_out=len(held_out),
        masked=masked,
        main=main,
    )
    report = json.dumps(asdict(summary), ensure_ascii=False, indent=2)
    (folder / REPORT_FILE).write_text(report + "\n", encoding="utf-8")
    return PreparationPlan(
        settings=drop_split_settings(asdict(settings)),
        summary=summary,
        steps=count_steps(log, rows_in=rows_in, tokens_in=tokens.found, tokens_lost=tokens.lost),
        columns=columns.list_columns(settings.roles, hide=excerpts.hide),
        keys=log.list_keys(),
        examples=log.list_examples(),
        groups=listed,
        rows_sha256=rows_sha256,
    )


def _summarize(
    log: ChangeLog,
    settings: PreparationSettings,
    *,
    rows_in: int,
    kept: int,
    held_out: int,
    masked: Counter[str],
    main: DataFormat | None,
) -> PreparationSummary:
    return PreparationSummary(
        rows_in=rows_in,
        rows_out=kept - held_out,
        rows_held_out=held_out,
        changed=_count(log, Action.CHANGED),
        dropped=_count(log, Action.DROPPED),
        exact_duplicates=log.reasons(Step.DUPLICATES).get(EXACT_DUPLICATE, 0),
        repetitive=log.reasons(Step.FILTERS).get(REPETITIVE, 0),
        reasons={step.value: found for step in Step if (found := log.reasons(step))},
        masked=dict(sorted(masked.items())),
        format=None if main is None else main.value,
        notes=(NAMES_STAY,) if settings.mask_personal_data else (),
    )


def _choose_held_out(spool: RowSpool, kept: list[int], settings: PreparationSettings) -> set[int]:
    if not settings.validation_share:
        return set()
    prompts = (find_prompt(spool.read(position)) for position in kept)
    return choose_held_out(prompts, share=settings.validation_share, seed=settings.seed)


def _count(log: ChangeLog, action: Action) -> dict[str, int]:
    return {step.value: count for step in Step if (count := log.count(step, action))}


class _Excerpts:
    """Excerpts for the list of changes, which must not keep what masking hides."""

    def __init__(self, settings: PreparationSettings) -> None:
        self._settings = settings

    def cut_raw(self, raw: RawRow) -> str:
        if raw.text is not None:
            return self._cut(raw.text)
        return self._cut(json.dumps(raw.cells, ensure_ascii=False)) if raw.cells else ""

    def cut_row(self, value: dict[str, Any]) -> str:
        return self._cut(json.dumps(value, ensure_ascii=False))

    def hide(self, text: str) -> str:
        masker = self._settings.build_masker()
        return text if masker is None else masker.mask_text(text)

    def _cut(self, text: str) -> str:
        return cut_excerpt(self.hide(text))


class _TokenCounts:
    """Tokens of rows' texts, and what of them each step takes away."""

    def __init__(self, count: Callable[[str], int] | None) -> None:
        self._count = count or (lambda text: 0)
        self.found = 0
        self.lost: Counter[Step] = Counter()

    def count(self, value: Any) -> int:
        return self._count(join_texts(value))

    def note_found(self, raw: RawRow) -> int:
        """Count a row as it was found."""
        row = read_object(raw)
        tokens = self.count(raw.text or "" if row is None else row)
        self.found += tokens
        return tokens


def _spool_rows(
    raws: Iterable[RawRow],
    spool: RowSpool,
    log: ChangeLog,
    settings: PreparationSettings,
    excerpts: _Excerpts,
    tokens: _TokenCounts,
    columns: ColumnCounts,
) -> int:
    """Repair and filter; how many rows the file had."""
    count = 0
    for raw in raws:
        count += 1
        if count > _ROWS_MAX:
            reason = f"The file has more than {_ROWS_MAX:,} rows; the rest was not read."
            log.add(Change(raw.line, Step.READING, Action.DROPPED, (reason,)))
            return count
        columns.note(raw)
        found = tokens.note_found(raw)
        try:
            row = repair_row(raw, to_chat=settings.to_chat, roles=settings.roles, is_alone=False)
        except RowDroppedError as dropped:
            step = Step.READING if raw.refusal else Step.REPAIR
            tokens.lost[step] += found
            log.add(Change(raw.line, step, Action.DROPPED, (str(dropped),), excerpts.cut_raw(raw)))
            continue
        unwanted = refuse_unwanted(row.value, settings)
        is_shown = row.reasons or row.pair is not None or unwanted is not None
        before = excerpts.cut_raw(raw) if is_shown else ""
        if row.reasons and (row.pair is None or unwanted is not None):
            after = excerpts.cut_row(row.value)
            log.add(Change(raw.line, Step.REPAIR, Action.CHANGED, row.reasons, before, after))
        repaired = tokens.count(row.value) if row.reasons else found
        tokens.lost[Step.REPAIR] += found - repaired
        if unwanted is not None:
            tokens.lost[Step.FILTERS] += repaired
            log.add(Change(raw.line, Step.FILTERS, Action.DROPPED, (unwanted,), before))
            continue
        log.note_unread(row.unread)
        spool.add(row, tokens=repaired, before=before)
    return count


def _settle_forms(
    spool: RowSpool, log: ChangeLog, excerpts: _Excerpts, tokens: _TokenCounts
) -> None:
    for row in spool.settle_forms(tokens.count):
        tokens.lost[Step.REPAIR] -= row.tokens_added
        if row.reasons:
            after = excerpts.cut_row(row.value)
            reasons = tuple(row.reasons)
            log.add(Change(row.line, Step.REPAIR, Action.CHANGED, reasons, row.before, after))


def _iter_kept(
    spool: RowSpool,
    main: DataFormat | None,
    log: ChangeLog,
    settings: PreparationSettings,
    excerpts: _Excerpts,
    groups: defaultdict[int, list[int]],
    tokens: _TokenCounts,
) -> Iterator[int]:
    """Positions of rows in the file's format that say something new.

    ``groups`` gets the positions of the others by the row that they repeat.
    """
    common = find_common_phrases(list(map(spool.read_sides, choose_sample(len(spool.rows)))))
    earlier = DuplicateRows(
        similarity=settings.near_duplicate_similarity, read=spool.read_sides, common=common
    )
    for position, row in enumerate(spool.rows):
        assert main is not None
        value = spool.read(position)
        step, reason = Step.DUPLICATES, None
        if row.format is not main:
            step, reason = Step.REPAIR, refuse_other_format(row.format, main)
        elif settings.drop_duplicates:
            duplicate = earlier.find(position, read_sides(value))
            if duplicate is not None:
                groups[duplicate.first].append(position)
                words = "the same text as" if duplicate.is_exact else "nearly the same text as"
                reason = f"The row has {words} line {spool.rows[duplicate.first].line}."
        if reason is None:
            yield position
        else:
            tokens.lost[step] += row.tokens
            log.add(Change(row.line, step, Action.DROPPED, (reason,), excerpts.cut_row(value)))


def _write_rows(
    folder: Path,
    spool: RowSpool,
    kept: list[int],
    held_out: set[int],
    log: ChangeLog,
    settings: PreparationSettings,
    excerpts: _Excerpts,
    tokens: _TokenCounts,
) -> tuple[Counter[str], str]:
    """Mask and write; how many personal data of each kind were replaced, and the rows' SHA-256."""
    masked: Counter[str] = Counter()
    rows = hashlib.sha256()
    training = folder / TRAINING_FILE
    validation = folder / VALIDATION_FILE
    origins: dict[bool, list[int]] = {False: [], True: []}
    with training.open("w", encoding="utf-8") as train, validation.open("w", encoding="utf-8") as v:
        for index, position in enumerate(kept):
            value = spool.read(position)
            masker = settings.build_masker()
            if masker is not None:
                hidden = masker.mask_row(value)
                if masker.counts:
                    masked.update({kind.value: n for kind, n in masker.counts.items()})
                    found = ", ".join(f"{n} {kind.value}" for kind, n in masker.counts.items())
                    reason = f"Personal data were replaced: {found}."
                    line = spool.rows[position].line
                    after = excerpts.cut_row(hidden)
                    log.add(
                        Change(line, Step.PERSONAL_DATA, Action.CHANGED, (reason,), after=after)
                    )
                    value = hidden
                    tokens.lost[Step.PERSONAL_DATA] += spool.rows[position].tokens - tokens.count(
                        hidden
                    )
            origins[index in held_out].append(spool.rows[position].number)
            target = v if index in held_out else train
            text = json.dumps(value, ensure_ascii=False) + "\n"
            rows.update(text.encode("utf-8"))
            target.write(text)
    if not held_out:
        validation.unlink()
    with (folder / ORIGINS_FILE).open("w", encoding="utf-8") as out:
        for is_held_out, numbers in origins.items():
            file = VALIDATION_FILE if is_held_out else TRAINING_FILE
            for row, number in enumerate(numbers, start=1):
                out.write(json.dumps({"file": file, "row": row, ROW_ID: number}) + "\n")
    return masked, rows.hexdigest()
