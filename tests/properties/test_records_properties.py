"""Whatever a file holds, reading it ends, stays in bounds and never raises."""

import io
import json

from hypothesis import example, given, settings
from hypothesis import strategies as st

from workers.protocol.job_spec import DataFormat
from workers.protocol.records import Limits, LineError, Row, detect_format, read_rows

LIMITS = Limits(max_line_bytes=2_000, max_rows=50, max_messages=5, text_row_chars=60)

KEYS = (
    *("messages", "role", "content", "weight", "tool_calls", "prompt", "completion"),
    *("instruction", "input", "output", "text", "chosen", "rejected"),
    *("preferred_output", "non_preferred_output"),
)

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["user", "assistant", "tool", "bot"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(KEYS) | st.text(max_size=5),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)

PIECES = st.lists(
    st.binary(max_size=30)
    | st.sampled_from(
        [
            b"\n", b"\r\n", b"\r", b"\xef\xbb\xbf", b"\x00", b'"', b"{", b"}", b"[", b"\\", b"\xff",
            b'{"text": "a"}', b'{"messages": [{"role": "', b"text\n", b"prompt,completion\n", b",",
            b'{"prompt": "a", "completion": "b"}', b" " * 50, b"\xed\xa0\x80", "é\u2028".encode(),
            b'{"chosen": "a b", "rejected": "a c"}', b"NaN", b"\\ud800", b"\x1b[0m",
        ]
    ),
    max_size=30,
).map(b"".join)  # fmt: skip


def check(data: bytes, **arguments) -> list[Row | LineError]:
    values = list(read_rows(io.BytesIO(data), limits=LIMITS, **arguments))
    assert values
    for value in values[:-1]:
        assert not (isinstance(value, LineError) and value.fatal)
    lines = [value.line for value in values]
    assert lines == sorted(lines)
    assert lines[0] >= 1
    assert lines[-1] <= data.count(b"\n") + 1
    for value in values:
        if isinstance(value, Row):
            assert value.segments
            assert any(segment.train for segment in value.segments)
            for segment in (*value.segments, *value.rejected):
                segment.text.encode("utf-8")
                assert "\x00" not in segment.text
        else:
            check_error(value)
    assert sum(isinstance(value, Row) for value in values) <= LIMITS.max_rows
    return values


def check_error(error: LineError) -> None:
    assert error.message[0].isupper()
    assert error.message.endswith((".", ")"))
    assert len(error.message) < 400
    assert len(error.excerpt) <= 98
    assert 0 <= error.excerpt_mark_start <= error.excerpt_mark_end <= len(error.excerpt)
    assert not any(ord(c) < 32 or 0xD800 <= ord(c) <= 0xDFFF for c in error.excerpt)
    assert error.column is None or error.column >= 1
    error.message.encode("utf-8")


@given(st.binary(max_size=400) | PIECES, st.sampled_from([None, *DataFormat]))
@example(b'{"', None)
@example(b"\xef\xbb\xbf\n\n", DataFormat.CHAT)
@settings(max_examples=400, deadline=None)
def test_any_bytes_are_read_to_the_end(data, data_format):
    check(data, format=data_format)
    detect_format(data)


@given(st.lists(JSON_VALUES, min_size=1, max_size=6))
@settings(max_examples=150, deadline=None)
def test_any_json_is_a_row_or_a_located_error(values):
    check("\n".join(json.dumps(value) for value in values).encode())


@given(PIECES, st.integers(1, 7))
@settings(max_examples=200, deadline=None)
def test_how_the_stream_is_cut_does_not_matter(data, size):
    class Slow(io.BytesIO):
        def read(self, _size=-1, /):
            return super().read(min(size, _size))

    slow = list(read_rows(Slow(data), limits=LIMITS))
    assert slow == list(read_rows(io.BytesIO(data), limits=LIMITS))


@given(PIECES)
@settings(max_examples=200, deadline=None)
def test_leaving_out_the_faulty_lines_leaves_exactly_the_rows(data):
    values = check(data)
    if any(isinstance(value, LineError) and value.fatal for value in values):
        return
    faulty = frozenset(value.line for value in values if isinstance(value, LineError))
    kept = list(read_rows(io.BytesIO(data), limits=LIMITS, skip_lines=faulty))
    assert kept == [value for value in values if value.line not in faulty]


@given(PIECES)
@settings(max_examples=200, deadline=None)
def test_the_node_that_is_told_the_format_reads_the_markets_rows(data):
    """The market detects; the node is told what was detected, and has no file name."""
    rows = [value for value in check(data, name="data.jsonl") if isinstance(value, Row)]
    if rows:
        told = check(data, format=rows[0].format)
        assert [value for value in told if isinstance(value, Row)] == rows


TEXTS = st.text(
    st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=40
).filter(str.strip)


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=5))
@settings(max_examples=200, deadline=None)
def test_what_is_written_is_what_is_read(pairs):
    data = "".join(json.dumps({"prompt": p, "completion": c}) + "\n" for p, c in pairs)
    rows = check(data.encode())
    assert [tuple(segment.text for segment in row.segments) for row in rows] == pairs
