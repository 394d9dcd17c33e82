"""Keys that no format has: counted, asked about when they look like a slip of the pen."""

import json

import pytest

from tests.unit.workers.protocol.test_records import chat, error_of, rows_of
from workers.protocol.records import IgnoredKey, IgnoredKeys, Row, describe_ignored_keys


def ignored_of(*values: dict) -> tuple[IgnoredKey, ...]:
    counted = IgnoredKeys()
    for row in rows_of("".join(json.dumps(value) + "\n" for value in values)):
        assert isinstance(row, Row), row
        counted.note(row)
    return counted.found()


class TestIgnoredKeys:
    def test_keys_that_nothing_reads_are_counted_with_their_first_line(self):
        plain = {"text": "a"}
        found = ignored_of(plain, plain | {"id": 1}, plain | {"id": 2, "source": "web"})
        assert found == (IgnoredKey("id", 2, 2), IgnoredKey("source", 1, 3))
        assert describe_ignored_keys(found) == (
            "Keys that are not trained on: id (2 rows), source (1 row).",
        )

    def test_rows_without_any_say_nothing(self):
        assert ignored_of({"text": "a"}) == ()
        assert describe_ignored_keys(()) == ()

    @pytest.mark.parametrize(
        ("value", "hint"),
        [
            ({"instruction": "a", "inputs": "b", "output": "c"}, "Did you mean input?"),
            ({"instruction": "a", "Input": "b", "output": "c"}, "Did you mean input?"),
            ({"instruction": "a", "context": "b", "output": "c"}, "Did you mean input?"),
            ({"text": "a", "lable": "b"}, "Did you mean label?"),
            ({"text": "a", "labels": "b"}, "Did you mean label?"),
            ({"chosen": "a", "rejected": "b", "promt": "c"}, "Did you mean prompt?"),
            (chat(("assistant", "a"), weight=0), "A weight belongs into a message"),
            (chat(("assistant", "a"), wieght=0), "A weight belongs into a message"),
            (chat(("assistant", "a"), system="b"), "first message with the role system"),
            ({"prompt": "a", "completion": "b", "label": False}, "use prompt, chosen and rejected"),
            ({"prompt": "a", "completion": "b", "weight": 2}, "Rows cannot be weighted"),
            ({"text": "a", "weight": 2}, "Rows cannot be weighted"),
        ],
    )
    def test_a_key_that_was_meant_to_count_is_asked_about(self, value, hint):
        (found,) = ignored_of(value)
        assert hint in found.hint
        (sentence,) = describe_ignored_keys((found,))
        assert sentence == (
            f"Key {found.key} (1 row, first in line 1) is not trained on. {found.hint}"
        )

    @pytest.mark.parametrize(
        "value",
        [
            {"instruction": "a", "output": "c", "imprint": "b"},
            {"text": "a", "lab": "b"},
            {"text": "a", "label_id": 3},
            {"prompt": "a", "completion": "b", "prompt_id": 3},
            chat(("assistant", "a"), rules="b"),
        ],
    )
    def test_a_key_that_only_resembles_one_is_a_plain_extra(self, value):
        (found,) = ignored_of(value)
        assert found.hint == ""

    def test_keys_with_a_hint_come_first_however_few_rows_have_them(self):
        extra = {"text": "a", "id": 1}
        assert [f.key for f in ignored_of(extra, extra, {"text": "a", "lable": 2})] == [
            "lable",
            "id",
        ]

    def test_a_suspicious_key_is_not_lost_among_a_hundred_others(self):
        many = {f"a{i:02}": i for i in range(100)}
        assert ignored_of({"text": "a", "lable": 1} | many)[0].key == "lable"

    def test_different_keys_in_every_row_are_told_together_in_bounded_memory(self):
        found = ignored_of(*({"text": "a", f"k{i}": 1} for i in range(100)))
        assert len(found) == 33
        assert found[-1] == IgnoredKey("", 68, 33)
        assert describe_ignored_keys(found)[0].endswith("k31 (1 row), further keys (68 rows).")

    def test_a_column_without_a_name_can_be_told_too(self):
        counted = IgnoredKeys()
        for row in rows_of(",text\n0,a\n1,b\n"):
            counted.note(row)
        assert counted.found() == (IgnoredKey("(no name)", 2, 2),)

    @pytest.mark.parametrize(
        ("value", "says"),
        [
            ({"prompt": "a", "completions": "b"}, "Did you mean completion by completions?"),
            ({"mesages": []}, "Did you mean messages by mesages?"),
            ({"Text": "a"}, "Did you mean text by Text?"),
            ({"messages": [{"rol": "user", "content": "a"}]}, "Did you mean role by rol?"),
            (
                {"messages": [{"role": "assistant", "content": "a", "wieght": 0}]},
                "Key wieght is not known in a message. Did you mean weight by wieght? Use role,",
            ),
            (chat(("assistent", "a")), "Role assistent is not known. Did you mean assistant? Use"),
            (chat(("User", "a")), "Did you mean user?"),
        ],
    )
    def test_a_misspelt_key_or_role_that_is_refused_names_the_right_one(self, value, says):
        assert says in error_of(value).message

    def test_a_table_with_a_misspelt_column_names_the_right_one(self):
        error = error_of("promt;completion\na;b\n", name="faq.csv")
        assert error.message.endswith("Did you mean prompt by promt?")
