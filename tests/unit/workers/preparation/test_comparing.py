"""What a comparison says of a delivery: each row is held against the one that its id names."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from workers.preparation.comparing import Comparison, compare_datasets
from workers.preparation.personal_data import Masker
from workers.preparation.tracing import iter_traced_lines

ENGLISH = [("How are you?", "Fine."), ("Where is it?", "There."), ("What is it?", "A book.")]
GERMAN = [("Wie geht es?", "Gut."), ("Wo ist es?", "Dort."), ("Was ist es?", "Ein Buch.")]


def row(asked: str, told: str, **more: Any) -> str:
    said = [{"role": "user", "content": asked}, {"role": "assistant", "content": told}]
    return json.dumps({"messages": said} | more)


def write(*lines: str) -> io.BytesIO:
    return io.BytesIO("\n".join(lines).encode())


def compare(delivered: list[str], *, original: tuple[str, ...] = (), **options: Any) -> Comparison:
    lines = original or tuple(row(*each) for each in ENGLISH)
    return compare_datasets(write(*lines), write(*delivered), **options)


def counts(found: Comparison) -> tuple[int, ...]:
    return found.kept, found.changed, found.added, found.dropped, found.covered


def test_rows_with_known_answers_count_once_each_and_only_as_they_should_be() -> None:
    known = write(row("Where is it?", "Here.", row_id=2), row("What is it?", "A book.", row_id=3))
    found = compare(
        [
            row("Where is it?", "here.", row_id=2),
            row("Where is it?", "Here.", row_id=2),
            row("What is it?", "A pen.", row_id=3),
        ],
        gold=known,
    )
    assert (found.gold, found.gold_right) == (2, 1)
    assert compare([row("What is it?", "A pen.", row_id=3)]).gold == 0
    # It is said as another would say it, but for labels; what is not in the file does not count.
    said = row("How are you?", "I am very well today, thank you.", row_id=1)
    known = row("How are you?", "I am very well today, thanks you.", row_id=1)
    nowhere = row("How are you?", "Fine.", row_id=99)
    for is_exact, right in ((False, 1), (True, 0)):
        found = compare([said], gold=write(known, nowhere), gold_is_exact=is_exact)
        assert (found.gold, found.gold_right) == (1, right)
    # What was hidden in the delivery is hidden in the answers too.
    hidden = compare(
        [row("How are you?", "Ask [EMAIL_1].", row_id=1)],
        gold=write(row("How are you?", "Ask jo@example.com.", row_id=1)),
        build_masker=Masker,
    )
    assert hidden.gold_right == 1


def test_rows_are_kept_changed_and_left_out_by_their_ids() -> None:
    found = compare(
        [row("Where is it?", "Here.", row_id=2), row("How are  you?", "fine.", row_id=1)]
    )
    assert counts(found) == (1, 1, 0, 1, 2)
    assert [("There" in before, "Here" in after) for before, after in found.samples["changed"]] == [
        (True, True)
    ]


def test_a_key_row_id_of_the_files_own_changes_no_row() -> None:
    own = tuple(row(*each, row_id=f"{each[1]} {each[0]}") for each in ENGLISH)
    lines = list(iter_traced_lines(write(*own)))
    assert counts(compare(lines, original=own)) == (3, 0, 0, 0, 3)


def test_a_row_is_kept_only_if_the_same_answers_are_learnt() -> None:
    before = {"prompt": "And now?", "completion": "Yes.", "history": [["Was it?", "No."]]}
    turns = json.loads(row("Was it?", "No."))["messages"]
    turns += json.loads(row("And now?", "Yes."))["messages"]
    # A row of which nothing is learnt is no row.
    wanted = {(0, 1): (1, 0, 0, 0, 1), (1, 1): (0, 1, 0, 0, 1), (0, 0): (0, 0, 1, 1, 0)}
    for weights, found_so in wanted.items():
        turns[1]["weight"], turns[3]["weight"] = weights
        found = compare(
            [json.dumps({"messages": turns, "row_id": 1})], original=(json.dumps(before),)
        )
        assert counts(found) == found_so, weights
    planned = json.dumps(before | {"row_id": 1})
    assert counts(compare([planned], original=(json.dumps(before),))) == (1, 0, 0, 0, 1)


def test_a_text_may_become_the_system_message_and_no_part_of_an_answer_the_question() -> None:
    before = {"context": "A shop.", "question": "Where is it?", "answer": "Here. Not there."}
    turns = json.loads(row("Where is it?", before["answer"]))["messages"]
    turns.insert(0, {"role": "system", "content": "A shop."})
    moved = row("A shop. Where is it? Here.", "Not there.", row_id=1)
    for line, found in (
        (json.dumps({"messages": turns, "row_id": 1}), (1, 0, 0, 0, 1)),
        (moved, (0, 1, 0, 0, 1)),
    ):
        assert counts(compare([line], original=(json.dumps(before),))) == found


@pytest.mark.parametrize(
    "line",
    [
        row(*ENGLISH[0]),
        row(*ENGLISH[0], row_id=4),
        row(*ENGLISH[0], row_id="1"),
        row(*ENGLISH[0], row_id=True),
        row("Buy our gold.", "Now.", row_id=1),
        "not a row",
    ],
    ids=["no id", "an unknown id", "a text as id", "a flag as id", "another row", "no row"],
)
def test_what_cannot_be_traced_to_a_row_of_the_original_is_added(line: str) -> None:
    assert counts(compare([line])) == (0, 0, 1, 3, 0)


def test_an_id_counts_once() -> None:
    assert counts(compare([row(*ENGLISH[0], row_id=1)] * 3)) == (1, 0, 2, 2, 1)


def test_a_translation_is_traced_by_ids_in_any_order() -> None:
    lines = [row(*each, row_id=n) for n, each in enumerate(GERMAN, start=1)][::-1]
    assert counts(compare(lines, translates=True)) == (0, 3, 0, 0, 3)
    assert counts(compare(lines)) == (0, 0, 3, 3, 0)


def test_a_row_that_no_program_can_read_may_be_written_again_with_its_own_words() -> None:
    broken = '{"messages": [{"role": "user", "content": "What does the red bicycle cost today'
    mended = row("What does the red bicycle cost today", "It costs nothing.", row_id=1)
    assert counts(compare([mended], original=(broken,))) == (0, 1, 0, 0, 0)
    assert (
        counts(compare([row("Buy gold now, it is cheap.", "Yes.", row_id=1)], original=(broken,)))[
            2
        ]
        == 1
    )


def test_rows_leave_with_ids_that_count_the_rows_of_any_file_and_hide_what_is_masked() -> None:
    text = 'question,answer\n"Who, and\nwhere?",me@example.org\nWhat?,That\n'
    lines = list(iter_traced_lines(io.BytesIO(text.encode()), build_masker=Masker))
    assert [json.loads(line) for line in lines] == [
        {"row_id": 1, "question": "Who, and\nwhere?", "answer": "[EMAIL_1]"},
        {"row_id": 2, "question": "What?", "answer": "That"},
    ]
    broken = list(iter_traced_lines(write('{"a": "b"', row(*ENGLISH[0]))))
    assert json.loads(broken[0]) == {"row_id": 1, "raw": '{"a": "b"'}
    assert json.loads(broken[1])["row_id"] == 2
