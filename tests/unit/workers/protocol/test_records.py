"""The one reader of training data: what it takes, and in which bounds."""

import tracemalloc

import pytest

from tests.unit.workers.protocol.record_reading import chat, error_of, row_of, rows_of
from workers.protocol.job_spec import DataFormat
from workers.protocol.records import (
    Container,
    Limits,
    LineError,
    Row,
    Segment,
    detect_format,
    read_rows,
)


class TestFormats:
    def test_chat_trains_on_assistant_messages_only(self):
        row = row_of(chat(("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello.")))
        assert row.format is DataFormat.CHAT
        assert row.line == 1
        assert row.segments == (
            Segment("system", "Be brief.", False),
            Segment("user", "Hi", False),
            Segment("assistant", "Hello.", True),
        )

    def test_a_weight_of_zero_keeps_a_reply_as_context(self):
        messages = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", "weight": 0},
            {"role": "user", "content": "c", "weight": 0},
            {"role": "assistant", "content": "d", "weight": 1},
        ]
        row = row_of({"messages": messages})
        assert [segment.train for segment in row.segments] == [False, False, False, True]

    def test_text_parts_are_joined(self):
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        row = row_of(chat(("user", parts), ("assistant", "c")))
        assert row.segments[0].text == "ab"

    def test_tool_calls_are_learned_in_one_spelling(self):
        calls = [{"type": "function", "id": "1", "function": {"name": "f", "arguments": "{}"}}]
        row = row_of(
            {
                "messages": [
                    {"role": "user", "content": "a"},
                    {"role": "assistant", "content": None, "tool_calls": calls},
                    {"role": "tool", "tool_call_id": "1", "content": "7"},
                ],
                "tools": [],
                "parallel_tool_calls": True,
            }
        )
        assert row.segments[1] == Segment(
            "assistant",
            "",
            True,
            calls='[{"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}}]',
        )
        assert row.segments[2] == Segment("tool", "7", False, call_id="1")
        assert row.ignored_keys == ()

    def test_prompt_and_completion(self):
        row = row_of({"prompt": "1 + 1 =", "completion": " 2"})
        assert row.format is DataFormat.COMPLETION
        assert row.segments == (
            Segment("prompt", "1 + 1 =", False),
            Segment("completion", " 2", True),
        )

    @pytest.mark.parametrize("extra", [{}, {"input": ""}, {"input": None}])
    def test_instruction_without_input(self, extra):
        row = row_of({"instruction": "Add.", "output": "2", **extra})
        assert row.format is DataFormat.INSTRUCTION
        assert row.segments == (Segment("user", "Add.", False), Segment("assistant", "2", True))

    def test_instruction_with_input(self):
        row = row_of({"instruction": "Add.", "input": "1, 1", "output": "2"})
        assert row.segments[0].text == "Add.\n\n1, 1"

    def test_alpaca_rows_with_their_ready_made_text_stay_instructions(self):
        row = row_of({"instruction": "Add.", "input": "", "output": "2", "text": "Below is"})
        assert row.format is DataFormat.INSTRUCTION
        assert row.ignored_keys == ("text",)

    def test_a_file_of_text_reads_the_text_of_such_rows_when_told_to(self):
        row = row_of(
            {"instruction": "Add.", "output": "2", "text": "Below is"}, format=DataFormat.TEXT
        )
        assert row.segments == (Segment("text", "Below is", True),)

    def test_text_lines(self):
        assert row_of({"text": "Once."}).segments == (Segment("text", "Once.", True),)

    def test_preference_texts(self):
        row = row_of({"prompt": "Q", "chosen": "good", "rejected": "bad"})
        assert row.format is DataFormat.PREFERENCE
        assert row.segments == (Segment("prompt", "Q", False), Segment("completion", "good", True))
        assert row.rejected == (Segment("prompt", "Q", False), Segment("completion", "bad", True))

    def test_preference_messages_with_a_text_prompt_become_a_conversation(self):
        row = row_of(
            {
                "prompt": "Q",
                "chosen": [{"role": "assistant", "content": "good"}],
                "rejected": [{"role": "assistant", "content": "bad"}],
            }
        )
        assert row.segments == (Segment("user", "Q", False), Segment("assistant", "good", True))

    def test_preference_conversations_share_their_common_beginning(self):
        row = row_of(
            {
                "chosen": chat(("user", "Q"), ("assistant", "good"))["messages"],
                "rejected": chat(("user", "Q"), ("assistant", "bad"))["messages"],
            }
        )
        assert row.segments == (Segment("user", "Q", False), Segment("assistant", "good", True))
        assert row.rejected == (Segment("user", "Q", False), Segment("assistant", "bad", True))

    def test_preference_dialogues_in_one_text_share_their_common_beginning(self):
        row = row_of({"chosen": "Human: Q\nBot: yes sir", "rejected": "Human: Q\nBot: yellow"})
        assert row.segments == (
            Segment("prompt", "Human: Q\nBot:", False),
            Segment("completion", " yes sir", True),
        )
        assert row.rejected[1] == Segment("completion", " yellow", True)

    def test_preference_texts_with_nothing_in_common_have_no_prompt(self):
        row = row_of({"chosen": "good", "rejected": "bad"})
        assert row.segments == (Segment("completion", "good", True),)

    def test_openai_preference(self):
        row = row_of(
            {
                "input": {"messages": [{"role": "user", "content": "Q"}], "tools": []},
                "preferred_output": [{"role": "assistant", "content": "good"}],
                "non_preferred_output": [{"role": "assistant", "content": "bad"}],
            }
        )
        assert row.format is DataFormat.PREFERENCE
        assert row.segments == (Segment("user", "Q", False), Segment("assistant", "good", True))
        assert row.rejected == (Segment("user", "Q", False), Segment("assistant", "bad", True))

    def test_keys_that_nothing_reads_are_told(self):
        row = row_of({"text": "a", "source": "web", "id": 4})
        assert row.ignored_keys == ("id", "source")

    @pytest.mark.parametrize("separator", [",", ";", "\t"])
    def test_csv(self, separator):
        table = (
            f'Prompt{separator}completion\r\n"a\nb"{separator}c\r\n\r\nd{separator}"e ""f"""\r\n'
        )
        assert rows_of(table) == [
            Row(
                2,
                DataFormat.COMPLETION,
                (Segment("prompt", "a\nb", False), Segment("completion", "c", True)),
            ),
            Row(
                5,
                DataFormat.COMPLETION,
                (Segment("prompt", "d", False), Segment("completion", 'e "f"', True)),
            ),
        ]

    def test_plain_text_rows_are_paragraphs(self):
        rows = rows_of("One\ntwo.\n\n\nThree.\n")
        assert [(row.line, row.segments[0].text) for row in rows] == [
            (1, "One\ntwo."),
            (5, "Three."),
        ]

    def test_long_paragraphs_are_cut_at_lines_and_words_and_lose_nothing(self):
        words = " ".join(f"word{i}" for i in range(1000))
        text = "\n".join(["short line"] * 30 + [words] + ["the end"])
        rows = rows_of(text, limits=Limits(text_row_chars=100))
        assert max(len(row.segments[0].text) for row in rows) <= 100
        assert " ".join(row.segments[0].text for row in rows).split() == text.split()

    def test_a_word_longer_than_a_row_is_cut_too(self):
        rows = rows_of("x" * 250, limits=Limits(text_row_chars=100))
        assert [len(row.segments[0].text) for row in rows] == [100, 100, 50]


class TestFiles:
    @pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf", b"\n\n \r\n", b"\n" * 200_000])
    def test_an_empty_file_is_refused(self, data):
        assert error_of(data) == LineError(
            1, None, "The file is empty. Upload one with some rows.", fatal=True
        )

    def test_a_csv_with_only_a_header_has_no_rows(self):
        assert error_of("prompt,completion\n") == LineError(
            1, None, "The file has no rows. Upload one with some.", fatal=True
        )

    @pytest.mark.parametrize(
        ("head", "says"),
        [
            (b"PK\x03\x04rest", "zip"),
            (b"\x1f\x8b\x08", "gzip"),
            (b"PAR1....", "Parquet"),
            (b"%PDF-1.7", "PDF"),
            ('{"text": "a"}'.encode("utf-16"), "UTF-16"),
            (b'{"text": "a\x00b"}', "binary"),
        ],
    )
    def test_what_is_not_text_is_refused_as_a_whole(self, head, says):
        error = error_of(head)
        assert error.fatal
        assert says in error.message
        assert detect_format(head) is None

    def test_a_byte_order_mark_and_windows_line_ends_change_nothing(self):
        plain = rows_of('{"text": "a"}\n{"text": "b"}\n')
        assert rows_of(b'\xef\xbb\xbf{"text": "a"}\r\n{"text": "b"}\r\n') == plain

    def test_a_million_empty_lines_before_a_row_are_skipped(self):
        (row,) = rows_of(b"\n" * 1_000_000 + b'{"text": "a"}')
        assert isinstance(row, Row)
        assert row.line == 1_000_001

    def test_a_million_empty_lines_inside_are_skipped(self):
        rows = rows_of(b'{"text": "a"}' + b"\r\n" * 1_000_000 + b'{"text": "b"}')
        assert [row.line for row in rows] == [1, 1_000_001]

    def test_the_last_line_needs_no_line_end(self):
        assert len(rows_of('{"text": "a"}\n{"text": "b"}')) == 2

    def test_a_json_list_is_refused_with_what_to_do(self):
        error = error_of('[\n {"instruction": "a", "output": "b"}\n]')
        assert error.fatal
        assert "Put one object on each line" in error.message

    def test_a_file_named_jsonl_that_is_prose_is_refused(self):
        assert error_of("hello\nworld\n", name="a.JSONL").fatal
        assert isinstance(rows_of("hello\nworld\n", name="a.txt")[0], Row)

    def test_a_file_named_csv_without_known_columns_is_refused(self):
        error = error_of("question,answer\na,b\n", name="faq.csv")
        assert error.fatal
        assert "first line must name the columns" in error.message

    def test_too_many_rows_are_refused(self):
        values = rows_of('{"text": "a"}\n' * 4, limits=Limits(max_rows=3))
        assert [isinstance(value, Row) for value in values] == [True, True, True, False]
        assert values[3] == LineError(
            4, None, "The file has more than 3 rows. Split it.", fatal=True
        )

    def test_lines_the_owner_left_out_are_not_read(self):
        data = '{"text": "a"}\n{"text": ""}\n{"text": "c"}\n'
        assert [type(v) for v in rows_of(data)] == [Row, LineError, Row]
        assert [v.line for v in rows_of(data, skip_lines=frozenset({2}))] == [1, 3]

    def test_the_format_is_what_most_rows_are(self):
        data = '{"text": "a"}\n' + '{"prompt": "a", "completion": "b"}\n' * 2
        first, *rest = rows_of(data)
        assert isinstance(first, LineError)
        assert first.message == (
            "This row is text, but the file is prompt and completion. Keep one format in a file."
        )
        assert {row.format for row in rest} == {DataFormat.COMPLETION}
        assert detect_format(data.encode(), complete=True).rows is DataFormat.COMPLETION

    def test_detection_knows_the_container(self):
        assert detect_format(b'{"text": "a"}').container is Container.JSONL
        assert detect_format(b"text\na\n").container is Container.CSV
        assert detect_format(b"prompt;completion\n").delimiter == ";"
        assert detect_format(b"Once upon a time").container is Container.PLAIN
        assert detect_format(b'{"strange": 1}').rows is None

    def test_plain_text_is_no_chat(self):
        assert error_of("hello", format=DataFormat.CHAT).fatal

    def test_a_first_line_that_is_broken_does_not_change_what_the_file_is(self):
        values = rows_of('"text": "a"}\n{"text": "b"}\n{"text": "c"}\n', format=DataFormat.TEXT)
        assert [type(v) for v in values] == [LineError, Row, Row]


class Endless:
    """Gives one byte over and over, and knows how much it gave."""

    def __init__(self, pattern: bytes, size: int) -> None:
        self._pattern, self._left = pattern, size

    def read(self, size: int, /) -> bytes:
        size = min(size, self._left)
        self._left -= size
        return (self._pattern * (size // len(self._pattern) + 1))[:size]


@pytest.mark.parametrize(
    "pattern", [b"a", b"\n", b'{"', b'"a,', b"[", b"\\", b" ", b'{"text":"a"}\n']
)
def test_a_large_hostile_file_is_read_in_bounded_memory(pattern):
    size = 4 * 1024 * 1024 if len(pattern) < 4 else 512 * 1024
    tracemalloc.start()
    try:
        limits = Limits(max_line_bytes=64 * 1024)
        for _ in read_rows(Endless(pattern, size), limits=limits):
            pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < max(size // 2, 1024 * 1024)
