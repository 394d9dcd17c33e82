"""Adapters for outside vendors who work in Label Studio or Argilla, with these tools' own SDKs.

The SDKs are installed at night only (``pip install label-studio-sdk argilla``).
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "vendors"))

argilla_rows: Any = import_module("argilla_rows")
label_studio: Any = import_module("label_studio")
work_link: Any = import_module("work_link")
Answer: Any = work_link.Answer


def say(asked: str, told: str) -> dict[str, Any]:
    said = [{"role": "user", "content": asked}, {"role": "assistant", "content": told}]
    return {"messages": said}


ROWS: list[dict[str, Any]] = [
    {"row_id": 1} | say("Where?", "Hear."),
    {"row_id": 2, "context": "A shop.", "question": "When?", "answer": "At nine."},
    {"row_id": 3, "raw": '{"prompt": "What'},
]


def test_only_the_answer_of_a_row_changes() -> None:
    assert work_link.write_row(ROWS[0], "Here.") == {"row_id": 1} | say("Where?", "Here.")
    assert work_link.write_row(ROWS[1], "At ten.") == ROWS[1] | {"answer": "At ten."}
    broken = say('{"prompt": "What', "Nothing.")
    assert work_link.write_row(ROWS[2], "Nothing.") == {"row_id": 3} | broken
    assert [work_link.read_item(row).told for row in ROWS] == ["Hear.", "At nine.", ""]
    asks_last = {"row_id": 4, "messages": ROWS[0]["messages"][:1]}
    assert work_link.write_row(asks_last, "Here.") == {"row_id": 4} | say("Where?", "Here.")


def test_what_most_people_say_is_delivered_and_their_agreement_is_told() -> None:
    same, other, gone = Answer("Here."), Answer("There."), Answer(None)
    answers = {1: [other, same, same], 2: [gone, gone], 3: [gone]}
    assert list(work_link.iter_delivered(ROWS, answers)) == [work_link.write_row(ROWS[0], "Here.")]
    assert work_link.measure_agreement(answers.values()) == 0.5
    assert work_link.measure_agreement([[same]]) is None
    with pytest.raises(LookupError, match="row 2"):
        list(work_link.iter_delivered(ROWS, {1: [same]}))


def test_a_delivery_is_signed_as_the_market_checks_it() -> None:
    from marketplace.vendors.signatures import begin_check, create_secret, end_check
    from tests.builders import NOW

    secret, body = create_secret(), b'{"row_id": 1}\n'
    headers = work_link.sign(body, message_id="prep_1", secret=secret, now=int(NOW.timestamp()))
    signer = begin_check(secret, headers, message_id="prep_1", now=NOW)
    signer.update(body)
    end_check(signer, headers)


@pytest.mark.nightly
def test_label_studio_takes_the_tasks_and_its_annotations_are_read() -> None:
    interface = pytest.importorskip("label_studio_sdk.label_interface")
    studio = interface.LabelInterface(label_studio.CONFIG)
    studio.validate()
    tasks = [label_studio.build_task(work_link.read_item(row)) for row in ROWS]
    exported = []
    for number, task in enumerate(tasks):
        assert studio.validate_task({"data": task["data"]})
        assert studio.validate_prediction(task["predictions"][0])
        told = {"from_name": "told", "to_name": "asked", "type": "textarea"}
        fit = {"from_name": "fit", "to_name": "asked", "type": "choices"}
        kept = {"result": [{**told, "value": {"text": [f"Answer {number}."]}}]}
        left_out = {"result": [{**fit, "value": {"choices": [label_studio.LEAVE_OUT]}}]}
        untouched: dict[str, Any] = {"result": []}
        for annotation in (kept, left_out, untouched):
            assert studio.validate_annotation(annotation)
        exported.append(task | {"annotations": [kept, left_out, untouched]})
    answers = label_studio.read_answers(json.loads(json.dumps(exported)))
    assert answers[1] == [Answer("Answer 0."), Answer(None), Answer("Hear.")]


@pytest.mark.nightly
def test_argilla_takes_the_records_and_its_responses_are_read() -> None:
    rg = pytest.importorskip("argilla")
    # A client of the SDK looks for its server at once.
    client = Mock()
    settings = argilla_rows.build_settings(rg, client, guidelines="Be kind.", people=2)
    assert settings.distribution.min_submitted == 2
    assert {question.name for question in settings.questions} == {"told", "fit"}
    records = []
    one, two = uuid4(), uuid4()
    for row in ROWS:
        record = argilla_rows.build_record(rg, work_link.read_item(row))
        made = record.to_dict()
        made["responses"] = {
            "told": [
                {"value": "Here.", "user_id": str(one), "status": "submitted"},
                {"value": " Here.", "user_id": str(two), "status": "submitted"},
            ],
            "fit": [
                {"value": "keep", "user_id": str(one), "status": "submitted"},
                {"value": "leave_out", "user_id": str(two), "status": "submitted"},
            ],
        }
        records.append(rg.Record.from_dict(made))
    answers = argilla_rows.read_answers(records)
    assert answers[1] == [Answer("Here."), Answer(None)]
    assert sorted(answers) == [1, 2, 3]
