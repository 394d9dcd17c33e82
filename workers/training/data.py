"""Rows of a data set as token sequences with the loss on what is to be learnt."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from workers.protocol.blobs import hash_file
from workers.protocol.job_spec import DataFormat
from workers.protocol.records import (
    IgnoredKey,
    IgnoredKeys,
    LineError,
    Row,
    describe_ignored_keys,
    read_rows,
)
from workers.protocol.row_order import choose_validation_rows
from workers.protocol.token_layout import (
    TemplateError,
    TokenRun,
    choose_chat_templates,
    describe_refusal,
    lay_out_rows,
    list_serving_arguments,
)
from workers.training.faults import UserFault
from workers.training.packing import Example, TokenSequence
from workers.training.sample_prompts import SamplePrompt, choose_prompts

#: What a job's loss is a mean over.
LossKind = Literal["tokens", "pairs", "labels"]

#: Rows tokenized at once.
_CHUNK_ROWS = 512


@dataclass(frozen=True, slots=True)
class RowCounts:
    """What became of the rows."""

    rows: int
    train_rows: int
    valid_rows: int
    #: Tokens of the training rows, and those among them the loss counts.
    tokens: int
    loss_tokens: int
    longest_tokens: int
    #: Lines of rows that were cut at the sequence length.
    truncated_lines: tuple[int, ...]
    #: Lines of rows that had nothing to learn left once cut.
    dropped_lines: tuple[int, ...]
    sha256: str
    #: Lines of rows that were left out because an answer is empty.
    empty_lines: tuple[int, ...] = ()
    #: Keys of the training rows, and of a validation file's, that nothing reads.
    ignored_keys: tuple[IgnoredKey, ...] = ()
    validation_ignored_keys: tuple[IgnoredKey, ...] = ()
    #: As ``list_serving_arguments`` gives them.
    serving_arguments: tuple[str, ...] = ()

    def sentences(self) -> tuple[str, ...]:
        """For the job's log."""
        # of rows with labels no token is learnt, but the label
        learnt = f", {self.loss_tokens} of them learnt" if self.loss_tokens else ""
        lines = [
            f"{_count(self.train_rows)} to train on ({self.tokens} tokens{learnt}), "
            f"{_count(self.valid_rows)} held out; the longest has {self.longest_tokens} tokens."
        ]
        if self.truncated_lines:
            lines.append(
                f"{_count(len(self.truncated_lines), 'was', 'were')} cut at the sequence length: "
                f"{_some(self.truncated_lines)}."
            )
        if self.dropped_lines:
            lines.append(
                f"{_count(len(self.dropped_lines), 'was', 'were')} left out, because the cut left "
                f"nothing to learn: {_some(self.dropped_lines)}. Raise the sequence length."
            )
        if self.empty_lines:
            lines.append(
                f"{_count(len(self.empty_lines), 'was', 'were')} left out, because an answer is "
                f"empty: {_some(self.empty_lines)}."
            )
        if self.serving_arguments:
            given = " and ".join(f"{name}=true" for name in self.serving_arguments)
            lines.append(
                "The model's chat template asks for no thoughts by itself. Answers with thoughts "
                f"were learnt after what it asks with {given}: serve the adapter with that."
            )
        lines += describe_ignored_keys(self.ignored_keys)
        lines += [
            f"Validation data: {sentence}"
            for sentence in describe_ignored_keys(self.validation_ignored_keys)
        ]
        return tuple(lines)


@dataclass(frozen=True, slots=True)
class PreparedData:
    train: tuple[Example, ...]
    valid: tuple[Example, ...]
    kind: LossKind
    report: RowCounts
    #: Classification only: the classes in the order of their numbers.
    labels: tuple[str, ...] = ()
    #: Of held-out rows, for samples of what the model writes.
    prompts: tuple[SamplePrompt, ...] = ()


def prepare_data(
    *,
    encoder: TokenizerEncoder,
    data_path: Path,
    validation_path: Path | None,
    data_format: DataFormat,
    skip_lines: tuple[int, ...],
    sequence_length: int,
    validation_share: float,
    seed: int,
) -> PreparedData:
    """Read, tokenize, cut and split a job's data.

    Raises
    ------
    UserFault
        When lines are faulty or nothing is left to train on.
    """
    rows, ignored, empty = _read(data_path, data_format, skip_lines)
    validation_rows, validation_ignored, _ = (
        ([], (), ()) if validation_path is None else _read(validation_path, data_format, ())
    )
    labels = _labels(rows, validation_rows) if data_format is DataFormat.CLASSIFICATION else ()
    reader = _Examples(encoder, sequence_length, labels)
    examples = reader.build(rows)
    if not examples:
        raise UserFault(
            "No row has anything to learn within the sequence length. Raise the sequence length "
            "or check that the rows have answers."
        )
    if validation_path is not None:
        train = examples
        valid = reader.build(validation_rows)
    else:
        train, valid = hold_out_rows(examples, share=validation_share, seed=seed)
    report = RowCounts(
        rows=len(rows),
        train_rows=len(train),
        valid_rows=len(valid),
        tokens=sum(example.token_count for example in train),
        loss_tokens=sum(example.trained_tokens for example in train),
        longest_tokens=max(len(seq) for example in train for seq in example.sequences),
        truncated_lines=tuple(reader.truncated),
        dropped_lines=tuple(reader.dropped),
        sha256=hash_file(data_path),
        empty_lines=empty,
        ignored_keys=ignored,
        validation_ignored_keys=validation_ignored,
        serving_arguments=list_serving_arguments(rows, encoder),
    )
    kinds: dict[DataFormat, LossKind] = {
        DataFormat.PREFERENCE: "pairs",
        DataFormat.CLASSIFICATION: "labels",
    }
    kind = kinds.get(data_format, "tokens")
    prompts = choose_prompts(valid, validation_rows or rows)
    return PreparedData(tuple(train), tuple(valid), kind, report, labels, prompts)


def hold_out_rows(
    examples: list[Example], *, share: float, seed: int
) -> tuple[list[Example], list[Example]]:
    """Split off validation rows: the same ones for the same rows, share and seed.

    If a share is asked for and there are two rows or more, at least one row is held out and at
    least one is left to train on. At most ``VALIDATION_ROWS_MAX`` rows are held out.
    """
    chosen = choose_validation_rows(rows=len(examples), share=share, seed=seed)
    train = [example for example, held in zip(examples, chosen, strict=True) if not held]
    return train, [example for example, held in zip(examples, chosen, strict=True) if held]


def _labels(rows: list[Row], validation_rows: list[Row]) -> tuple[str, ...]:
    """The classes in the order of their numbers, whatever the order of rows: 2 before 10."""
    labels = sorted({_label(row) for row in rows}, key=lambda name: (len(name), name))
    if len(labels) < 2:
        raise UserFault(
            "All rows have the same label, so there is nothing to classify. Add rows with another "
            "label."
        )
    for row in validation_rows:
        if _label(row) not in labels:
            raise UserFault(
                f"Line {row.line} of the validation file has the label {_label(row)!r}, which "
                "no training row has."
            )
    return tuple(labels)


def _label(row: Row) -> str:
    return next(segment.text for segment in row.segments if segment.role == "label")


def _read(
    path: Path, data_format: DataFormat, skip_lines: tuple[int, ...]
) -> tuple[list[Row], tuple[IgnoredKey, ...], tuple[int, ...]]:
    """Rows, keys that nothing reads, and lines left out because an answer is empty."""
    rows: list[Row] = []
    errors: list[LineError] = []
    empty: list[int] = []
    ignored = IgnoredKeys()
    with path.open("rb") as file:
        for row in read_rows(file, format=data_format, skip_lines=frozenset(skip_lines)):
            if isinstance(row, LineError) and row.is_empty:
                empty.append(row.line)
            elif isinstance(row, LineError):
                errors.append(row)
            else:
                rows.append(row)
                ignored.note(row)
    if errors:
        different = {error.message: error for error in reversed(errors)}
        reported = sorted(different.values(), key=lambda error: error.line)[:3]
        first = "; ".join(f"line {error.line}: {error.message}" for error in reported)
        count = "1 line" if len(errors) == 1 else f"{len(errors)} lines"
        raise UserFault(f"{count} of the data cannot be read: {first}")
    return rows, ignored.found(), tuple(empty)


class TokenizerEncoder:
    """The base model's tokenizer as the shared layout wants it.

    Parameters
    ----------
    stops
        Tokens that end an answer beside the tokenizer's EOS, as ``TextEncoder.stops``.
    """

    def __init__(self, tokenizer: Any, *, stops: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        ids = tokenizer("").input_ids
        eos = tokenizer.eos_token_id
        own = () if eos is None else (tokenizer.eos_token,)
        self.stops = tuple(dict.fromkeys((*own, *stops)))
        self.prefix: list[int] = (
            ids[:-1] if ids and ids[-1] in (eos, tokenizer.sep_token_id) else ids
        )
        self.suffix: list[int] = tokenizer.convert_tokens_to_ids(list(self.stops[:1]))
        self.templates = choose_chat_templates(
            tokenizer.chat_template, adds_bos=self.prefix == [tokenizer.bos_token_id]
        )

    def encode(self, texts: list[str]) -> list[list[int]]:
        return self._tokenizer(texts, add_special_tokens=False).input_ids

    def encode_whole(self, texts: list[str]) -> list[list[int]]:
        return self._tokenizer(texts).input_ids

    def cut_whole(self, texts: list[str], length: int) -> list[list[int]]:
        """As ``encode_whole``, cut by the tokenizer's own rules."""
        return self._tokenizer(texts, truncation=True, max_length=length).input_ids

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: Any,
        generation: bool,
        thinks: bool = False,
    ) -> str:
        if not messages and not generation:
            return ""
        try:
            return self._tokenizer.apply_chat_template(
                messages,
                tools=tools,
                chat_template=self.templates.choose(tools),
                tokenize=False,
                add_generation_prompt=generation,
                **self.templates.list_arguments(thinks=thinks),
            )
        # a template is a program of the model's maker and may refuse in any way
        except Exception as error:
            raise TemplateError(describe_refusal(error)) from error


class _Examples:
    """Turns rows into examples and keeps count of what was cut."""

    def __init__(
        self, encoder: TokenizerEncoder, sequence_length: int, labels: tuple[str, ...] = ()
    ) -> None:
        self.encoder = encoder
        self.labels = {name: number for number, name in enumerate(labels)}
        self.sequence_length = sequence_length
        self.truncated: list[int] = []
        self.dropped: list[int] = []

    def build(self, rows: Sequence[Row]) -> list[Example]:
        """Examples of the rows that have anything to learn within the sequence length.

        Raises
        ------
        UserFault
            When the chat template cannot lay a conversation out.
        """
        found: list[Example] = []
        for start in range(0, len(rows), _CHUNK_ROWS):
            chunk = rows[start : start + _CHUNK_ROWS]
            try:
                found += self._classified(chunk) if self.labels else self._chunk(chunk)
            except TemplateError as error:
                raise UserFault(str(error)) from error
        return found

    def _chunk(self, rows: Sequence[Row]) -> list[Example]:
        examples = []
        for row, of_row in zip(rows, lay_out_rows(rows, self.encoder), strict=True):
            for laid_out in of_row:
                sequences = tuple(map(_sequence, laid_out))
                cut = tuple(sequence.cut(self.sequence_length) for sequence in sequences)
                if all(sequence.weights.any() for sequence in cut):
                    examples.append(Example(row.line, cut))
                    if any(map(operator.is_not, cut, sequences)):
                        self.truncated.append(row.line)
                else:
                    self.dropped.append(row.line)
        return examples

    def _classified(self, rows: Sequence[Row]) -> list[Example]:
        """Whole texts with the model's own special tokens, cut by its own rules."""
        texts = [row.segments[0].text for row in rows]
        cut = self.encoder.cut_whole(texts, self.sequence_length)
        examples = []
        for row, whole, ids in zip(rows, lay_out_rows(rows, self.encoder), cut, strict=True):
            if len(_sequence(whole[0][0])) > len(ids):
                self.truncated.append(row.line)
            weights = np.zeros(len(ids), dtype=np.float32)
            sequence = TokenSequence(np.asarray(ids, dtype=np.int64), weights)
            examples.append(Example(row.line, (sequence,), self.labels[_label(row)]))
        return examples


def _sequence(runs: Iterable[TokenRun]) -> TokenSequence:
    tokens: list[int] = []
    weights: list[float] = []
    for ids, train in runs:
        tokens += ids
        weights += [float(train)] * len(ids)
    return TokenSequence(np.asarray(tokens, dtype=np.int64), np.asarray(weights, dtype=np.float32))


def _count(rows: int, one: str = "", many: str = "") -> str:
    """``1 row`` or ``2 rows``, with the verb that goes with it."""
    return f"1 row {one}".rstrip() if rows == 1 else f"{rows} rows {many}".rstrip()


def _some(lines: tuple[int, ...], most: int = 10) -> str:
    word = "line" if len(lines) == 1 else "lines"
    shown = ", ".join(str(line) for line in lines[:most])
    rest = f" and {len(lines) - most} more" if len(lines) > most else ""
    return f"{word} {shown}{rest}"
