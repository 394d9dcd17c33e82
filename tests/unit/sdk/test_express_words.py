"""What ``finetender express`` says of an answer that is no certificate."""

from __future__ import annotations

import pytest
from finetender.calls import Answer, Pause
from finetender.commands import describe_express_prices, describe_lookup, describe_refusal
from finetender.operations.express import LOOKUP_LOOKS, await_lookup
from finetender.values import ExpressAnswer, ExpressQuote

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


@pytest.mark.parametrize(
    ("least_slo_s", "prices", "line"),
    [
        (50.0, [{"slo_s": 60.0, "price": "0.12"}], "within 60.0 s: $0.12"),
        (50.0, [], "No price: the lane's seats are taken. Place a bid instead."),
        (
            200.0,
            [],
            "No price: the job takes up to 200 s, and the lane promises 180 s at most. "
            "Place a bid instead.",
        ),
    ],
)
def test_prices_are_listed_or_it_is_said_why_there_is_none(least_slo_s, prices, line):
    raw = {"zone": "z", "least_slo_s": least_slo_s, "longest_slo_s": 180.0, "prices": prices}
    assert describe_express_prices(ExpressQuote.read(raw, dataset_id="ds_1")) == [line]


LOOKUP = {"candidates": 9, "seconds": 0.731, "own_loss": 2.5, "loss": 1.25, "is_from_bank": True}


def ended(looks_up, lookup=None):
    return Answer(
        200, {}, NO | {"reason": None, "adapter": {"looks_up": looks_up}, "lookup": lookup}
    )


def await_with(*came):
    """What the operation finds, and how often it waited."""
    operation, waits = await_lookup("express_1"), 0
    answers = iter(came)
    step = next(operation)
    while True:
        try:
            waits += isinstance(step, Pause)
            step = operation.send(None if isinstance(step, Pause) else next(answers))
        except StopIteration as end:
            assert next(answers, None) is None
            return end.value, waits


def test_a_lookup_is_waited_for_until_it_is_noted():
    found, waits = await_with(ended(True), ended(True), ended(True, LOOKUP))
    assert waits == 2
    assert describe_lookup(found) == "9 prompts compared in 0.73 s: loss 2.500 to 1.250"


def test_a_job_without_a_lookup_is_not_waited_for():
    found, waits = await_with(ended(False))
    assert waits == 0
    assert describe_lookup(found).startswith("No known prompt was compared")


def test_a_lookup_that_is_never_noted_is_given_up():
    found, waits = await_with(*[ended(True)] * (LOOKUP_LOOKS + 1))
    assert (found.raw["lookup"], waits) == (None, LOOKUP_LOOKS)
