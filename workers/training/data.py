"""Rows of a data set as token sequences with the loss on what is to be learnt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from workers.protocol.blobs import hash_file
from workers.protocol.messages import DataFormat
from workers.protocol.records import (
    CHAT_ROLES,
    IgnoredKey,
    IgnoredKeys,
    LineError,
    Row,
    Segment,
    describe_ignored_keys,
    read_rows,
)
from workers.training.faults import UserFault
from workers.training.packing import Example, TokenSequence

#: What a job's loss is a mean over.
LossKind = Literal["tokens", "pairs", "labels"]

#: For tokenizers without a chat template.
PLAIN_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '### ' + message['role'].capitalize() + ':\n' + message['content'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '### Assistant:\n' }}{% endif %}"
)

#: Rows tokenized at once.
_CHUNK_ROWS = 512


@dataclass(frozen=True, slots=True)
class DataReport:
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
    #: Keys of the training rows, and of a validation file's, that nothing reads.
    ignored_keys: tuple[IgnoredKey, ...] = ()
    validation_ignored_keys: tuple[IgnoredKey, ...] = ()

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
    report: DataReport
    #: Classification only: the classes in the order of their numbers.
    labels: tuple[str, ...] = ()


def prepare_data(
    *,
    tokenizer: Any,
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
    rows, ignored = _read(data_path, data_format, skip_lines)
    validation_rows, validation_ignored = (
        ([], ()) if validation_path is None else _read(validation_path, data_format, ())
    )
    labels = _labels(rows, validation_rows) if data_format is DataFormat.CLASSIFICATION else ()
    reader = _Tokenization(tokenizer, sequence_length, labels)
    examples = reader.examples(rows)
    if not examples:
        raise UserFault(
            "No row has anything to learn within the sequence length. Raise the sequence length "
            "or check that the rows have answers."
        )
    if validation_path is not None:
        train = examples
        valid = reader.examples(validation_rows)
    else:
        train, valid = held_out(examples, share=validation_share, seed=seed)
    report = DataReport(
        rows=len(rows),
        train_rows=len(train),
        valid_rows=len(valid),
        tokens=sum(example.token_count for example in train),
        loss_tokens=sum(example.trained_tokens for example in train),
        longest_tokens=max(len(seq) for example in train for seq in example.sequences),
        truncated_lines=tuple(reader.truncated),
        dropped_lines=tuple(reader.dropped),
        sha256=hash_file(data_path),
        ignored_keys=ignored,
        validation_ignored_keys=validation_ignored,
    )
    kinds: dict[DataFormat, LossKind] = {
        DataFormat.PREFERENCE: "pairs",
        DataFormat.CLASSIFICATION: "labels",
    }
    kind = kinds.get(data_format, "tokens")
    return PreparedData(tuple(train), tuple(valid), kind, report, labels)


def held_out(
    examples: list[Example], *, share: float, seed: int
) -> tuple[list[Example], list[Example]]:
    """Split off validation rows: the same ones for the same rows, share and seed.

    At least one row is held out when a share is asked and two rows are there, and at
    least one is kept to train on.
    """
    if share <= 0 or len(examples) < 2:
        return examples, []
    count = min(max(1, round(share * len(examples))), len(examples) - 1)
    order = np.random.default_rng([seed & 0xFFFFFFFF, 0xE7A1]).permutation(len(examples))
    chosen = set(order[:count].tolist())
    train = [example for i, example in enumerate(examples) if i not in chosen]
    return train, [examples[i] for i in sorted(chosen)]


def _labels(rows: list[Row], validation_rows: list[Row]) -> tuple[str, ...]:
    """The classes in the order of their numbers, whatever the order of rows: 2 before 10."""
    labels = sorted({_label(row) for row in rows}, key=lambda name: (len(name), name))
    if len(labels) < 2:
        raise UserFault("All rows have the same label, so there is nothing to tell apart.")
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
) -> tuple[list[Row], tuple[IgnoredKey, ...]]:
    rows: list[Row] = []
    errors: list[LineError] = []
    ignored = IgnoredKeys()
    with path.open("rb") as file:
        for row in read_rows(file, format=data_format, skip_lines=frozenset(skip_lines)):
            if isinstance(row, LineError):
                errors.append(row)
            else:
                rows.append(row)
                ignored.note(row)
    if errors:
        different = {error.message: error for error in reversed(errors)}
        told = sorted(different.values(), key=lambda error: error.line)[:3]
        first = "; ".join(f"line {error.line}: {error.message}" for error in told)
        count = "1 line" if len(errors) == 1 else f"{len(errors)} lines"
        raise UserFault(f"{count} of the data cannot be read: {first}")
    return rows, ignored.found()


class _Tokenization:
    """Turns rows into examples and keeps count of what was cut."""

    def __init__(self, tokenizer: Any, sequence_length: int, labels: tuple[str, ...] = ()) -> None:
        self.tokenizer = tokenizer
        self.labels = {name: number for number, name in enumerate(labels)}
        self.sequence_length = sequence_length
        self.truncated: list[int] = []
        self.dropped: list[int] = []
        ids = tokenizer("").input_ids
        eos = tokenizer.eos_token_id
        # what the tokenizer puts before a text by itself: a BOS token, or nothing
        self.prefix = ids[:-1] if ids and ids[-1] in (eos, tokenizer.sep_token_id) else ids
        self.suffix = [eos] if eos is not None else []
        self.template = tokenizer.chat_template or PLAIN_CHAT_TEMPLATE

    def examples(self, rows: Sequence[Row]) -> list[Example]:
        found: list[Example] = []
        for start in range(0, len(rows), _CHUNK_ROWS):
            found += self._chunk(rows[start : start + _CHUNK_ROWS])
        return found

    def _chunk(self, rows: Sequence[Row]) -> list[Example]:
        if self.labels:
            return self._classified(rows)
        conversations = [
            (index, segments)
            for index, row in enumerate(rows)
            for segments in (row.segments, row.rejected)
            if segments
        ]
        pieces = [self._pieces(segments) for _, segments in conversations]
        texts = [text for row_pieces in pieces for text, _ in row_pieces]
        encoded = iter(self._encode(texts))
        sequences: dict[int, list[TokenSequence]] = {}
        cut: set[int] = set()
        for (index, segments), row_pieces in zip(conversations, pieces, strict=True):
            runs = [(next(encoded), train) for _, train in row_pieces]
            if segments[0].role not in CHAT_ROLES:
                runs = [(self.prefix, False), *runs, (self.suffix, segments[-1].train)]
            sequence = _sequence(runs)
            if len(sequence) > self.sequence_length:
                cut.add(index)
                sequence = TokenSequence(
                    sequence.tokens[: self.sequence_length],
                    sequence.weights[: self.sequence_length],
                )
            sequences.setdefault(index, []).append(sequence)
        examples = []
        for index, row in enumerate(rows):
            if all(sequence.weights.any() for sequence in sequences[index]):
                examples.append(Example(row.line, tuple(sequences[index])))
                if index in cut:
                    self.truncated.append(row.line)
            else:
                self.dropped.append(row.line)
        return examples

    def _classified(self, rows: Sequence[Row]) -> list[Example]:
        """Whole texts with the model's own special tokens, cut by its own rules."""
        texts = [row.segments[0].text for row in rows]
        encoded = self.tokenizer(texts).input_ids
        cut = self.tokenizer(texts, truncation=True, max_length=self.sequence_length).input_ids
        examples = []
        for row, whole, ids in zip(rows, encoded, cut, strict=True):
            if len(whole) > len(ids):
                self.truncated.append(row.line)
            weights = np.zeros(len(ids), dtype=np.float32)
            sequence = TokenSequence(np.asarray(ids, dtype=np.int64), weights)
            examples.append(Example(row.line, (sequence,), self.labels[_label(row)]))
        return examples

    def _encode(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        return self.tokenizer(texts, add_special_tokens=False).input_ids

    def _pieces(self, segments: tuple[Segment, ...]) -> list[tuple[str, bool]]:
        """The row's text in stretches, each with whether the loss counts it."""
        if segments[0].role not in CHAT_ROLES:
            return [(segment.text, segment.train) for segment in segments if segment.text]
        messages = [{"role": s.role, "content": s.text} for s in segments]
        pieces: list[tuple[str, bool]] = []
        done = ""
        for index, segment in enumerate(segments):
            if segment.role == "assistant":
                opened = self._render(messages[:index], generation=True)
                done = _extend(pieces, done, opened, train=False)
            upto = self._render(messages[: index + 1], generation=False)
            done = _extend(pieces, done, upto, train=segment.train)
        return pieces

    def _render(self, messages: list[dict[str, str]], *, generation: bool) -> str:
        if not messages and not generation:
            return ""
        try:
            return self.tokenizer.apply_chat_template(
                messages,
                chat_template=self.template,
                tokenize=False,
                add_generation_prompt=generation,
            )
        # a template is a program of the model's maker and may refuse in any way
        except Exception as error:
            raise UserFault(
                f"The model's chat template refuses a conversation: {error}. "
                "Check the order of the roles."
            ) from error


def _extend(pieces: list[tuple[str, bool]], done: str, upto: str, *, train: bool) -> str:
    if not upto.startswith(done):
        raise UserFault(
            "The model's chat template rewrites earlier messages, so the answers cannot be told "
            "apart. Use prompt and completion rows for this model."
        )
    if len(upto) > len(done):
        pieces.append((upto[len(done) :], train))
    return upto


def _sequence(runs: Iterable[tuple[list[int], bool]]) -> TokenSequence:
    tokens: list[int] = []
    weights: list[float] = []
    for ids, train in runs:
        tokens += ids
        weights += [float(train)] * len(ids)
    if weights:
        # nothing comes before the first token to predict it from
        weights[0] = 0.0
    return TokenSequence(np.asarray(tokens, dtype=np.int64), np.asarray(weights, dtype=np.float32))


def _count(rows: int, one: str = "", many: str = "") -> str:
    """``1 row`` or ``2 rows``, with the verb that goes with it."""
    return f"1 row {one}".rstrip() if rows == 1 else f"{rows} rows {many}".rstrip()


def _some(lines: tuple[int, ...], most: int = 10) -> str:
    word = "line" if len(lines) == 1 else "lines"
    shown = ", ".join(str(line) for line in lines[:most])
    rest = f" and {len(lines) - most} more" if len(lines) > most else ""
    return f"{word} {shown}{rest}"
