"""Rows become token sequences with the loss on what is to be learnt, and nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.unit.workers.training_builders import byte_tokenizer, completion_rows, write_jsonl
from workers.protocol.job_spec import DataFormat
from workers.training.data import PreparedData, TokenizerEncoder, prepare_data
from workers.training.faults import UserFault

CHATML = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def prepare(
    path: Path, data_format: DataFormat, *, template: str | None = None, **changes
) -> PreparedData:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    settings = {
        "validation_path": None,
        "skip_lines": (),
        "sequence_length": 400,
        "validation_share": 0.0,
        "seed": 0,
    } | changes
    encoder = TokenizerEncoder(tokenizer)
    return prepare_data(encoder=encoder, data_path=path, data_format=data_format, **settings)


def text_of(data: PreparedData, index: int = 0, part: int = 0, *, learnt: bool = False) -> str:
    sequence = data.train[index].sequences[part]
    tokens = sequence.tokens[sequence.weights > 0] if learnt else sequence.tokens
    return byte_tokenizer().decode(tokens)


def test_a_chat_learns_weighted_assistant_messages_through_the_models_template(tmp_path):
    conversation = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello", "weight": 0},
        {"role": "user", "content": "Sky?"},
        {"role": "assistant", "content": "Blue"},
    ]
    path = write_jsonl(tmp_path / "a.jsonl", [{"messages": conversation}])
    data = prepare(path, DataFormat.CHAT, template=CHATML)
    whole = "<|system|>Be brief.\n<|user|>Hi\n<|assistant|>Hello\n<|user|>Sky?\n<|assistant|>Blue\n"
    # The template writes no end, so the tokenizer's is learnt.
    assert text_of(data) == f"{whole}</s>"
    assert text_of(data, learnt=True) == "Blue\n</s>"


def test_a_model_without_a_template_gets_a_plain_one_that_ends_answers(tmp_path):
    rows = [{"instruction": "Add.", "input": "1 1", "output": "2"}]
    data = prepare(write_jsonl(tmp_path / "a.jsonl", rows), DataFormat.INSTRUCTION)
    assert text_of(data) == "### User:\nAdd.\n\n1 1\n### Assistant:\n2\n</s>"
    assert text_of(data, learnt=True) == "2\n</s>"


def test_a_template_that_rewrites_what_was_said_gives_an_example_for_each_answer(tmp_path):
    rewriting = "{{ messages | length }}" + CHATML
    rows = [{"messages": [{"role": r, "content": "x"} for r in ("user", "assistant") * 2]}]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    data = prepare(path, DataFormat.CHAT, template=rewriting)
    assert [text_of(data, index, learnt=True) for index in (0, 1)] == ["x\n</s>", "x\n</s>"]
    assert text_of(data, 0) == "1<|user|>x\n<|assistant|>x\n</s>"
    with pytest.raises(UserFault, match="rewrites earlier messages"):
        prepare(path, DataFormat.CHAT, template="{{ messages | length }}")


def test_a_template_that_refuses_a_conversation_is_the_owners_matter(tmp_path):
    strict = "{% if messages[0]['role'] != 'system' %}{{ raise_exception('no system') }}{% endif %}"
    rows = [{"messages": [{"role": r, "content": "x"} for r in ("user", "assistant")]}]
    with pytest.raises(UserFault, match="refuses a conversation: no system"):
        prepare(write_jsonl(tmp_path / "a.jsonl", rows), DataFormat.CHAT, template=strict)


def test_a_completion_is_learnt_to_its_end_and_its_prompt_is_not(tmp_path):
    rows = [{"prompt": "Sky: ", "completion": "blue"}]
    data = prepare(write_jsonl(tmp_path / "a.jsonl", rows), DataFormat.COMPLETION)
    assert text_of(data) == "Sky: blue</s>"
    assert text_of(data, learnt=True) == "blue</s>"


def test_plain_text_and_csv_are_learnt_whole_but_for_the_first_token(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("One paragraph.\n\nAnother.\n")
    data = prepare(path, DataFormat.TEXT)
    assert [text_of(data, i, learnt=True) for i in (0, 1)] == ["ne paragraph.</s>", "nother.</s>"]
    table = tmp_path / "a.csv"
    table.write_text('prompt,completion\n"a, b",c\n')
    assert text_of(prepare(table, DataFormat.COMPLETION), learnt=True) == "c</s>"


def test_a_preference_is_two_sequences_with_the_same_prompt(tmp_path):
    rows = [{"prompt": "Sky: ", "chosen": "blue", "rejected": "red"}]
    data = prepare(write_jsonl(tmp_path / "a.jsonl", rows), DataFormat.PREFERENCE)
    assert data.kind == "pairs"
    assert [text_of(data, 0, part, learnt=True) for part in (0, 1)] == ["blue</s>", "red</s>"]


def test_long_rows_are_cut_and_reported_and_left_out_when_nothing_is_left(tmp_path):
    rows = [
        {"prompt": "p" * 10, "completion": "c" * 5},
        {"prompt": "p" * 10, "completion": "c" * 50},
        {"prompt": "p" * 30, "completion": "c"},
    ]
    data = prepare(
        write_jsonl(tmp_path / "a.jsonl", rows), DataFormat.COMPLETION, sequence_length=20
    )
    assert [example.line for example in data.train] == [1, 2]
    assert [len(example.sequences[0]) for example in data.train] == [16, 20]
    report = data.report
    assert (report.rows, report.train_rows) == (3, 2)
    assert (report.truncated_lines, report.dropped_lines) == ((2,), (3,))
    assert report.sentences()[1:] == (
        "1 row was cut at the sequence length: line 2.",
        "1 row was left out, because the cut left nothing to learn: line 3. "
        "Raise the sequence length.",
    )


def test_the_held_out_rows_are_the_same_each_time_and_never_trained(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", completion_rows(50))
    first = prepare(path, DataFormat.COMPLETION, validation_share=0.2, seed=3)
    again = prepare(path, DataFormat.COMPLETION, validation_share=0.2, seed=3)
    other = prepare(path, DataFormat.COMPLETION, validation_share=0.2, seed=4)
    lines = [{example.line for example in data.valid} for data in (first, again, other)]
    assert lines[0] == lines[1] != lines[2]
    assert len(lines[0]) == 10
    assert lines[0] | {example.line for example in first.train} == set(range(1, 51))
    assert lines[0].isdisjoint({example.line for example in first.train})


def test_a_validation_file_is_used_whole(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", completion_rows(9))
    held = write_jsonl(tmp_path / "b.jsonl", completion_rows(4))
    data = prepare(path, DataFormat.COMPLETION, validation_path=held, validation_share=0.5)
    assert (len(data.train), len(data.valid)) == (9, 4)


def test_classes_are_numbered_the_same_for_any_order_of_rows(tmp_path):
    rows = [{"text": "t", "label": label} for label in ("10", "2", "2", "1")]
    for order in (rows, rows[::-1]):
        data = prepare(write_jsonl(tmp_path / "a.jsonl", order), DataFormat.CLASSIFICATION)
        assert data.labels == ("1", "2", "10")
        assert [example.label for example in data.train] == [
            data.labels.index(row["label"]) for row in order
        ]
    same = write_jsonl(tmp_path / "b.jsonl", rows[1:3])
    with pytest.raises(UserFault, match="nothing to classify"):
        prepare(same, DataFormat.CLASSIFICATION)
    with pytest.raises(UserFault, match="which no training row has"):
        prepare(
            write_jsonl(tmp_path / "c.jsonl", rows[:3]),
            DataFormat.CLASSIFICATION,
            validation_path=tmp_path / "a.jsonl",
        )


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n" * 1_000_000,
        b"\xff\xfe\x00",
        b'{"messages": []}\n',
        b'{"prompt": 1, "completion": 2}\n',
    ],
)
def test_hostile_files_are_the_owners_matter(tmp_path, content):
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserFault, match="line 1"):
        prepare(path, DataFormat.COMPLETION)


def test_the_first_token_is_never_a_target(tmp_path):
    rows = [{"prompt": "", "completion": "abc"}]
    data = prepare(write_jsonl(tmp_path / "a.jsonl", rows), DataFormat.COMPLETION)
    assert data.train[0].sequences[0].weights.tolist() == [0, 1, 1, 1]
    assert data.train[0].sequences[0].tokens.dtype == np.int64
