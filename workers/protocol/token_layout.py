"""How rows become tokens: one layout for the market, which counts them, and the node, which trains.

A row is one sequence, a preference row two. A sequence is a list of runs: tokens, and whether the
loss counts them. Chat rows stand in the model's own template; other rows between what its tokenizer
puts before a text and the token that ends one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Protocol

from workers.protocol.messages import DataFormat
from workers.protocol.record_types import CHAT_ROLES, Row, Segment

#: For models without a chat template.
PLAIN_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '### ' + message['role'].capitalize() + ':\n' + message['content'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '### Assistant:\n' }}{% endif %}"
)

#: Tokens, and whether the loss counts them.
TokenRun = tuple[Sequence[int], bool]


class TemplateError(ValueError):
    """The model's chat template cannot lay out a conversation; the text says what to do."""


def describe_refusal(error: Exception) -> str:
    """What an owner is told when a template refuses a conversation with an error."""
    return (
        f"The model's chat template refuses a conversation: {error}. Check the order of the roles."
    )


class TextEncoder(Protocol):
    """A base model's tokenizer and chat template."""

    @property
    def prefix(self) -> Sequence[int]:
        """What the tokenizer puts before a text by itself: a BOS token, or nothing."""
        ...

    @property
    def suffix(self) -> Sequence[int]:
        """What ends a text: an EOS token, or nothing."""
        ...

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Tokens of each text, without special ones around it."""
        ...

    def encode_whole(self, texts: list[str]) -> list[list[int]]:
        """Tokens of each text with the model's special tokens around it."""
        ...

    def render(self, messages: list[dict[str, str]], *, generation: bool) -> str:
        """A conversation in the model's chat template, open for an answer with ``generation``."""
        ...


def lay_out_rows(rows: Sequence[Row], encoder: TextEncoder) -> Iterator[list[list[TokenRun]]]:
    """The sequences of each row, as runs; the first token of a sequence is never trained.

    Rows of one call share one call of the tokenizer.

    Raises
    ------
    TemplateError
        When the chat template refuses a conversation or rewrites earlier messages.
    """
    if rows and rows[0].format is DataFormat.CLASSIFICATION:
        texts = [row.segments[0].text for row in rows]
        for tokens in encoder.encode_whole(texts):
            whole: list[TokenRun] = [(tokens, False)]
            yield [whole]
        return
    sequences = [
        [segments for segments in (row.segments, row.rejected) if segments] for row in rows
    ]
    pieces = [[_split_pieces(segments, encoder) for segments in of_row] for of_row in sequences]
    texts = [text for of_row in pieces for of_one in of_row for text, _ in of_one]
    encoded = iter(encoder.encode(texts) if texts else ())
    for of_row, row_pieces in zip(sequences, pieces, strict=True):
        yield [
            _lay_out(
                segments,
                list(zip(islice(encoded, len(of_one)), (t for _, t in of_one), strict=True)),
                encoder,
            )
            for segments, of_one in zip(of_row, row_pieces, strict=True)
        ]


def _lay_out(
    segments: tuple[Segment, ...], runs: Sequence[TokenRun], encoder: TextEncoder
) -> list[TokenRun]:
    if segments[0].role not in CHAT_ROLES:
        runs = [(encoder.prefix, False), *runs, (encoder.suffix, segments[-1].train)]
    laid_out = [(tokens, train) for tokens, train in runs if tokens]
    if laid_out and laid_out[0][1]:
        # Nothing comes before the first token to predict it from.
        tokens = laid_out[0][0]
        laid_out[0:1] = [(tokens[:1], False), (tokens[1:], True)]
    return laid_out


def _split_pieces(segments: tuple[Segment, ...], encoder: TextEncoder) -> list[tuple[str, bool]]:
    """The text in stretches, each with whether the loss counts it."""
    if segments[0].role not in CHAT_ROLES:
        return [(segment.text, segment.train) for segment in segments if segment.text]
    messages = [{"role": s.role, "content": s.text} for s in segments]
    pieces: list[tuple[str, bool]] = []
    done = ""
    for index, segment in enumerate(segments):
        if segment.role == "assistant":
            opened = encoder.render(messages[:index], generation=True)
            done = _extend(pieces, done, opened, train=False)
        upto = encoder.render(messages[: index + 1], generation=False)
        done = _extend(pieces, done, upto, train=segment.train)
    return pieces


def _extend(pieces: list[tuple[str, bool]], done: str, upto: str, *, train: bool) -> str:
    if not upto.startswith(done):
        raise TemplateError(
            "The model's chat template rewrites earlier messages, so the answers cannot be told "
            "apart. Use prompt and completion rows for this model."
        )
    if len(upto) > len(done):
        pieces.append((upto[len(done) :], train))
    return upto
