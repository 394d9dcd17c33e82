"""JSON lists, as many exports are, become lines that training reads."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marketplace.common.errors import UserError
from marketplace.jobs.importing import (
    is_json_list,
    read_columns,
    write_json_lines,
    write_named_table,
)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


class Slow(io.BytesIO):
    """Gives a few bytes at a time, as a network does."""

    def __init__(self, data: bytes, step: int) -> None:
        super().__init__(data)
        self.step = step

    def read(self, size: int | None = -1) -> bytes:
        return super().read(self.step)


def lines(data: bytes, step: int = 7) -> list[Any]:
    written = io.BytesIO()
    write_json_lines(Slow(data, step), written)
    return [json.loads(line) for line in written.getvalue().split(b"\n")[:-1]]


@given(st.lists(VALUES, max_size=6), st.sampled_from([None, 2]), st.integers(1, 40))
def test_item_17_becomes_line_17_whatever_it_holds(
    items: list[Any], indent: int | None, step: int
) -> None:
    # Lone surrogates have no bytes.
    data = json.dumps(items, indent=indent, ensure_ascii=False).encode("utf-8", "replace")
    assert lines(data, step) == json.loads(data)


def test_numbers_and_keys_are_left_as_they_were_written() -> None:
    written = io.BytesIO()
    write_json_lines(io.BytesIO(b'\xef\xbb\xbf [{"a": 1.50,\n "a": 2}, 12\n]'), written)
    assert written.getvalue() == b'{"a": 1.50,  "a": 2}\n12\n'


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "The list breaks off."),
        (b'[{"a": 1}', "no comma and no end"),
        (b'[{"a": 1', "Item 1 of the list is incomplete JSON"),
        (b'[{"a": 1}, {"b" 2}]', "Item 2 of the list is incomplete JSON"),
        (b"[1, ]", "No item follows the comma after item 1."),
        (b"[1 2]", "After item 1 of the list there is no comma"),
        (b'["\xff"]', "not UTF-8"),
        (b"[" * 100_000, "Item 1 of the list is incomplete JSON"),
    ],
)
def test_a_list_that_is_not_whole_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(UserError, match=words) as refused:
        lines(data, step=50_000)
    assert refused.value.code == "invalid_dataset"


def test_an_item_without_end_is_refused_before_all_of_it_is_read() -> None:
    stream = io.BytesIO(b'["' + b"x" * 40_000_000)
    with pytest.raises(UserError, match="too long"):
        write_json_lines(stream, io.BytesIO())
    assert stream.tell() < 5_000_000


def test_only_a_list_is_taken_for_one() -> None:
    assert is_json_list(b"\xef\xbb\xbf \n [")
    assert not is_json_list(b'{"messages": []}')
    assert not is_json_list(b"")


def named(data: bytes, **columns: str) -> bytes:
    written = io.BytesIO()
    write_named_table(io.BytesIO(data), written, columns=columns)
    return written.getvalue()


@pytest.mark.parametrize(
    ("first", "columns"),
    [
        (b"Question,Answer", ["question", "answer"]),
        (b"\xef\xbb\xbfq;a;note", ["q", "a", "note"]),
        (b'q\t"the, answer"', ["q", "the, answer"]),
        (b"only", ["only"]),
        (b"a,a", []),
        (b"a,,b", []),
        (b'"broken', []),
        (b",".join(b"c%d" % number for number in range(500)), []),
    ],
)
def test_the_first_line_of_a_table_names_its_columns(first: bytes, columns: list[str]) -> None:
    assert read_columns(io.BytesIO(first + b"\n1,2\n")) == columns
    assert read_columns(io.BytesIO(first)) == []


def test_a_table_gets_other_names_and_every_row_stays_on_its_line() -> None:
    rows = b'"a, b",\xc3\xa9\r\n"two\nlines",c\n'
    assert named(b"Question,Answer\n" + rows, prompt="question", completion="answer") == (
        b"prompt,completion\n" + rows
    )
    # What is not chosen is not taken for something that training knows.
    assert named(b"q;input;text\nx;y;z\n", prompt="q", completion="text") == (
        b"prompt;unused input;completion\nx;y;z\n"
    )


@pytest.mark.parametrize(
    "columns",
    [{"prompt": "nothing"}, {"question": "q"}, {"prompt": "q", "text": "q"}],
)
def test_a_name_or_column_that_is_not_there_is_refused(columns: dict[str, str]) -> None:
    with pytest.raises(UserError) as refused:
        named(b"q,a\n1,2\n", **columns)
    assert refused.value.code == "invalid_columns"
