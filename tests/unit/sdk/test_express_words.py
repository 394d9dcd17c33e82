"""What ``finetender express`` says of an answer that is no certificate."""

from __future__ import annotations

import pytest
from finetender.command_line import describe_refusal
from finetender.values import ExpressAnswer

NO = {
    "id": "express_1",
    "status": "refused",
    "certified_slo_s": None,
    "price": None,
    "job_id": None,
}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            {"status": "offered", "reason": "later", "certified_slo_s": 75.0, "price": "0.12"},
            "The lane does not promise 60 s, but 75 s for $0.12: ask for that.",
        ),
        (
            {"reason": "too short", "least_slo_s": 61.25},
            "The lane does not promise 60 s: the job takes up to 61.2 s.",
        ),
        ({"reason": "full"}, "The lane does not promise 60 s: its seats are taken."),
    ],
)
def test_a_no_says_what_else_there_is_or_why(answer, words):
    assert describe_refusal(ExpressAnswer.read(NO | answer), 60.0) == words
