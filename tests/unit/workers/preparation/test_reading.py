"""Rows are found in whatever file people have."""

from __future__ import annotations

import io
import json

import pytest

from workers.preparation.reading import RawRow, UnreadableFileError, read_raw_rows
from workers.protocol.record_types import Limits


def read(data: bytes, **limits: int) -> list[RawRow]:
    return list(read_raw_rows(io.BytesIO(data), limits=Limits(**limits)))


ROWS = [{"prompt": "a {", "completion": 'b "}"'}, {"prompt": "c", "completion": "d"}]


@pytest.mark.parametrize("indent", [None, 2], ids=["on one line", "indented"])
def test_a_json_list_is_read_object_by_object(indent: int | None) -> None:
    rows = read(json.dumps(ROWS, indent=indent).encode())
    assert [json.loads(row.text or "") for row in rows] == ROWS


def test_objects_over_several_lines_are_read_without_a_list() -> None:
    rows = read("\n".join(json.dumps(row, indent=2) for row in ROWS).encode())
    assert [json.loads(row.text or "") for row in rows] == ROWS


def test_what_stands_between_the_objects_of_a_list_is_refused_not_lost() -> None:
    rows = read(b'["one", {"a": 1}, "two",\n3, {"a": 2}]\n')
    assert [(row.line, row.text, bool(row.refusal)) for row in rows] == [
        (1, '"one"', True),
        (1, '{"a": 1}', False),
        (1, '"two"', True),
        (2, "3", True),
        (2, '{"a": 2}', False),
    ]


def test_a_broken_object_of_a_list_spoils_no_other() -> None:
    lines = ['[{"a": "one"},', '{"a": "two,', '{"a": "three"}]']
    rows = read("\n".join(lines).encode())
    assert [(row.line, row.text) for row in rows] == [
        (1, '{"a": "one"}'),
        (2, '{"a": "two,'),
        (3, '{"a": "three"}'),
    ]


def test_an_object_that_is_never_closed_is_refused_with_its_line() -> None:
    data = b'[\n{"a": "x"},\n' + b'{"a": [\n' * 50
    rows = read(data, max_line_bytes=200)
    assert rows[0] == RawRow(2, '{"a": "x"}', number=1)
    assert "too long" in rows[-1].refusal or rows[-1].text is not None


def test_fences_around_json_are_left_out() -> None:
    rows = read(b'```json\n{"text": "one"}\n```\n')
    assert [row.text for row in rows] == ['{"text": "one"}']


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_is_read(encoding: str) -> None:
    mark = "\ufeff".encode(encoding)
    rows = read(mark + '{"text": "Grüße"}\n{"text": "日本"}\n'.encode(encoding))
    assert [json.loads(row.text or "")["text"] for row in rows] == ["Grüße", "日本"]


def test_a_line_in_windows_1252_is_mended() -> None:
    rows = read(b'{"text": "caf\xe9"}\n{"text": "plain"}\n')
    assert rows[0].text == '{"text": "café"}'
    assert rows[0].mended == "The line was not UTF-8; it was read as Windows-1252."
    assert rows[1].mended == ""


def test_a_table_keeps_its_own_column_names() -> None:
    rows = read(b'Question,Answer\n"Where, please?",Here\nWhen?,Now\nWho?,You\n')
    assert [row.cells for row in rows] == [
        {"Question": "Where, please?", "Answer": "Here"},
        {"Question": "When?", "Answer": "Now"},
        {"Question": "Who?", "Answer": "You"},
    ]
    assert [row.line for row in rows] == [2, 3, 4]


def test_a_row_of_a_table_with_another_number_of_cells_is_refused() -> None:
    rows = read(b"prompt,completion\na,b\nc,d,e\n")
    assert rows[1].refusal == "The row has 3 cells, the first line names 2."
    assert rows[1].line == 3


def test_a_cell_may_go_over_several_lines() -> None:
    rows = read(b'prompt,completion\n"a\nb",c\nd,e\n')
    assert [(row.line, row.cells) for row in rows] == [
        (2, {"prompt": "a\nb", "completion": "c"}),
        (4, {"prompt": "d", "completion": "e"}),
    ]


@pytest.mark.parametrize("rest", [3, 3_000], ids=["to the end", "too long for a cell"])
def test_a_quote_that_is_never_closed_costs_its_own_row_only(rest: int) -> None:
    lines = [f"q{number},a{number} {'x' * 60}\n" for number in range(rest)]
    rows = read(f'prompt,completion\na,b\nc,"d\n{"".join(lines)}'.encode())
    assert [row.line for row in rows] == list(range(2, 4 + rest))
    assert [row.line for row in rows if row.refusal] == [3]
    assert (rows[1].text, rows[-1].cells["prompt"]) == ('c,"d', f"q{rest - 1}")  # type: ignore[index]


def test_a_line_of_a_cell_that_cannot_be_read_refuses_its_row() -> None:
    data = b'prompt,completion\na,"b\n' + b"x" * 200 + b'\nend"\nc,d\n'
    rows = read(data, max_line_bytes=100)
    assert rows[0].refusal == "The line is longer than 100 bytes."
    assert rows[1].cells == {"prompt": "c", "completion": "d"}


def test_columns_of_one_name_and_of_none_are_told_apart() -> None:
    rows = read(b",text,Text,label\n0,one,two,x\n1,three,four,y\n")
    assert rows[0].cells == {"column 1": "0", "text": "one", "Text 2": "two", "label": "x"}


def test_prose_becomes_paragraphs() -> None:
    rows = read(b"One line.\nAnother.\n\nA second paragraph.\n")
    assert [(row.line, row.cells) for row in rows] == [
        (1, {"text": "One line.\nAnother."}),
        (4, {"text": "A second paragraph."}),
    ]


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"", "empty"), (b" \n\n", "empty"), (b"PK\x03\x04rest", "zip"), (b"a\x00b\n", "binary")],
)
def test_what_is_no_text_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(UnreadableFileError, match=words):
        read(data)


def test_an_overlong_line_is_refused_and_the_next_is_read() -> None:
    data = b'{"text": "' + b"x" * 500 + b'"}\n{"text": "short"}\n'
    rows = read(data, max_line_bytes=100)
    assert rows[0].refusal == "The line is longer than 100 bytes."
    assert rows[1].text == '{"text": "short"}'
