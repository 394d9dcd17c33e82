"""What the reader of training data says of lines and rows that it does not take."""

import json

import pytest

from tests.unit.workers.protocol.record_reading import chat, error_of, marked, row_of, rows_of
from workers.protocol.records import (
    Limits,
    LineError,
    Row,
)


class TestJsonErrors:
    def test_an_unclosed_quote(self):
        line = '{"messages":[{"role":"user","content":"Where is my ord'
        error = error_of(line)
        assert error.message == "The text starts a quote and never closes it, at character 39."
        assert error.column == 39
        assert error.excerpt == line
        assert marked(error) == '"Where is my ord'

    @pytest.mark.parametrize(
        ("line", "says", "column"),
        [
            ('{"text": }', "A value is missing at character 10", 10),
            ("{'text': 'a'}", "A key in double quotes must stand at character 2", 2),
            ('{"text" "a"}', "A colon is missing at character 9", 9),
            ('{"text": "a" "b"}', "A comma or a closing bracket is missing at character 14", 14),
            ('{"text": "a"} {"text": "b"}', "the line goes on", 15),
            ('{"text": "a\tb"}', "raw control character at character 12", 12),
            (r'{"text": "a\qb"}', "backslash at character 12", 12),
            ('{"text": "a"', "The line ends before its JSON does", 12),
            ("{", "The line ends before its JSON does", 1),
            ('{"text": NaN}', "The value NaN is no number in JSON", 10),
            ('{"a": [1, {"b": -Infinity}], "text": ""}', "The value -Infinity is no number", 17),
            ('{"text": "a", "text": "b"}', "Key text stands twice in one object", 15),
            ('{"text": "a\\u0000b"}', "NUL character", None),
            ('{"text": "a\\ud800b"}', "half of a character pair (\\ud800)", None),
            ('{"text": 1' + "0" * 5000 + "}", "too many digits", None),
        ],
    )
    def test_a_broken_line_says_where(self, line, says, column):
        error = error_of(line)
        assert says in error.message
        assert error.column == column
        assert not error.fatal

    def test_invalid_utf8_says_the_byte_and_the_character(self):
        first, second = rows_of('{"text": "é'.encode() + b'\xff"}\n{"text": "ok"}\n')
        assert first.message == ("Byte 0xff at character 12 is not UTF-8. Save the file as UTF-8.")
        assert first.column == 12
        assert marked(first) == "\ufffd"
        assert isinstance(second, Row)

    @pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
    def test_a_nesting_bomb_is_refused_before_it_is_parsed(self, opening, closing):
        error = error_of('{"text": ' + opening * 100_000 + closing * 100_000 + "}")
        assert error.message.startswith("There are more than 32 brackets inside each other")

    def test_brackets_inside_texts_are_not_nesting(self):
        assert row_of({"text": "[{" * 500 + '\\"['}).segments[0].text.startswith("[{[{")

    def test_a_giant_line_is_refused_and_the_next_one_read(self):
        limits = Limits(max_line_bytes=1000)
        data = json.dumps({"text": "x" * 200_000}) + '\n{"text": "b"}\n'
        first, second = rows_of(data, limits=limits)
        assert first.message == "The line is longer than 1,000 bytes. Split it into several rows."
        assert len(first.excerpt) <= 100
        assert second.line == 2
        assert isinstance(second, Row)

    def test_a_line_of_exactly_the_limit_is_read(self):
        line = json.dumps({"text": "x" * 100})
        limits = Limits(max_line_bytes=len(line))
        assert isinstance(rows_of(line + "\r\n", limits=limits)[0], Row)
        assert isinstance(rows_of(line + " \r\n", limits=limits)[0], LineError)

    def test_a_line_that_is_another_value_is_refused(self):
        values = rows_of('{"text": "a"}\n[1]\n"b"\n{"text": "c"}\n')
        assert [type(value) for value in values] == [Row, LineError, LineError, Row]
        assert values[1].message.startswith("A row must be a JSON object in braces.")


class TestRowErrors:
    def test_an_unknown_role_says_which_are_known_and_marks_it(self):
        error = error_of(
            chat(
                ("user", "Hi, it arrived broken, what can be done?"),
                ("bot", "I am sorry to hear that. Was it..."),
            )
        )
        assert error.message == "Role bot is not known. Use system, user, assistant or tool."
        assert marked(error) == '"bot"'
        assert error.excerpt.startswith("…")

    def test_an_empty_reply_is_marked(self):
        error = error_of(chat(("user", "thanks!"), ("assistant", "")))
        assert error.message == "The assistant reply is empty, so there is nothing to learn."
        assert marked(error) == '""'

    @pytest.mark.parametrize(
        ("value", "says", "mark"),
        [
            (
                chat(("user", "a")),
                "There is no assistant message",
                '[{"role": "user", "content": "a"}]',
            ),
            ({"messages": []}, "Messages is an empty list", "[]"),
            ({"messages": "a"}, "Messages must be a list", '"a"'),
            ({"messages": ["a"]}, "A message must be an object", '"a"'),
            ({"messages": [{"content": "a"}]}, "A message has no role", '{"content": "a"}'),
            (chat((3, "a")), "Role of this kind is not known", "3"),
            ({"messages": [{"role": "user"}]}, "A message has no content", '{"role": "user"}'),
            (chat(("user", None)), "The content of this message is null", "null"),
            (chat(("user", 4)), "The content of a message must be a text", "4"),
            (
                chat(("user", [{"type": "image_url"}])),
                "Only text can be learned from",
                '{"type": "image_url"}',
            ),
            (
                {"messages": [{"role": "assistant", "content": "a", "weight": 0.5}]},
                "A weight must be 0",
                "0.5",
            ),
            (
                {"messages": [{"role": "assistant", "content": "a", "weight": True}]},
                "A weight must be 0",
                "true",
            ),
            (
                {"messages": [{"role": "user", "content": "a", "weight": 1}]},
                "Only assistant messages are learned",
                "1",
            ),
            (
                {"messages": [{"role": "assistant", "content": "a", "weight": 0}]},
                "Every assistant message has weight 0",
                None,
            ),
            (
                {"messages": [{"role": "assistant", "content": "a", "wieght": 0}]},
                "Key wieght is not known in a message",
                "0",
            ),
            (
                {"messages": [{"from": "human", "value": "a"}]},
                "Keys from and value are not known in a message. Use role and content.",
                None,
            ),
            (
                {"conversations": []},
                "Messages is an empty list, so there is nothing to learn.",
                "[]",
            ),
            ({"mesages": []}, "Key mesages is not known", "[]"),
            ({"a": 1, "b": 2}, "Keys a, b are not known", "1"),
            ({}, "The row is empty", None),
            ({"prompt": "a"}, "Key completion is missing", None),
            ({"prompt": "a", "completion": "  "}, "The completion is empty", '"  "'),
            ({"prompt": None, "completion": "b"}, "The prompt must be a text", "null"),
            ({"instruction": "", "output": "b"}, "The instruction is empty", '""'),
            ({"instruction": "a", "output": []}, "The output must be a text", "[]"),
            ({"text": ""}, "The text is empty, so there is nothing to learn", '""'),
            ({"chosen": "a", "rejected": "a"}, "are the same", '"a"'),
            ({"chosen": "a", "rejected": 1}, "Key rejected must be a text or a list", "1"),
            (
                {"chosen": "a", "rejected": [{"role": "assistant", "content": "b"}]},
                "must all be texts",
                '"a"',
            ),
            (
                {"chosen": [{"role": "user", "content": "b"}], "rejected": "a"},
                "The last message of chosen must be the assistant's answer",
                None,
            ),
            (
                {"input": "Q", "preferred_output": [], "non_preferred_output": []},
                "Input must be an object with messages",
                '"Q"',
            ),
        ],
    )
    def test_a_wrong_value_is_named_and_marked(self, value, says, mark):
        error = error_of(value)
        assert says in error.message
        assert error.line == 1
        if mark is not None:
            assert marked(error) == mark

    def test_too_many_messages(self):
        value = chat(*[("user", "a"), ("assistant", "b")] * 3)
        assert error_of(value, limits=Limits(max_messages=5)).message == (
            "A row may have at most 5 messages."
        )

    def test_excerpts_are_short_and_safe_to_show(self):
        value = chat(("user", "x" * 5000 + "\u2028\x07"), ("bot", "y" * 5000))
        error = error_of(json.dumps(value, ensure_ascii=False).replace("\\u0007", "\x1b"))
        assert len(error.excerpt) <= 98
        assert not set(error.excerpt) & {"\u2028", "\x1b", "\x00", "\n"}

    def test_names_from_the_file_are_cut_and_cleaned_in_sentences(self):
        error = error_of(chat(("b\x1b[31m" + "o" * 500, "a")))
        assert error.message.startswith("Role b?[31mooo")
        assert len(error.message) < 120

    def test_a_csv_row_with_another_number_of_cells(self):
        row, error = rows_of("prompt,completion\na,b\na,b,c\n")
        assert isinstance(row, Row)
        assert error.line == 3
        assert error.message.startswith("This row has 3 cells, but the first line names 2 columns.")

    def test_a_csv_quote_that_never_closes_names_its_first_line(self):
        values = rows_of('prompt,completion\na,b\n"c,d\ne,f\n')
        assert [value.line for value in values] == [2, 3, 4]
        # The rows that the quote took in are read all the same.
        assert [isinstance(value, Row) for value in values] == [True, False, True]
        assert values[1].message.startswith("A quote opens in this row and is never closed")

    def test_a_csv_with_a_column_twice_is_refused(self):
        error = error_of("text,text\na,b\n")
        assert error.fatal
        assert error.message == "Column text stands twice in the first line. Rename one."

    def test_a_csv_line_that_is_not_utf8_is_one_error(self):
        values = rows_of(b"prompt,completion\na,\xff\nc,d\n")
        assert [(type(v), v.line) for v in values] == [(LineError, 2), (Row, 3)]
