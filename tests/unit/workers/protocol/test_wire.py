"""Messages survive the way to JSON and back, and nothing else passes for one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.protocol.job_spec import (
    AdapterSpec,
    BaseModelRef,
    BlobRef,
    DataFormat,
    JobSpec,
    TrainingSpec,
)
from workers.protocol.messages import SliceSpec, SlotPlan
from workers.protocol.reports import (
    SAMPLE_CHARS,
    SAMPLES_MAX,
    Fault,
    ProgressEvent,
    ProgressReport,
    SliceEnd,
    SliceResult,
    TextSample,
)
from workers.protocol.wire import ProtocolError, dumps, from_json, loads, to_json

JOB = JobSpec(
    job_id="ftjob-1",
    base_model=BaseModelRef(name="tiny", source="bundled:tiny"),
    data_format=DataFormat.CHAT,
    dataset=BlobRef(url="/d", sha256="ab", bytes=3),
    skip_lines=(4, 9),
    adapter=AdapterSpec(target_modules=("q_proj", "v_proj")),
    training=TrainingSpec(epochs=2, learning_rate=1e-3),
)
PLAN = SlotPlan(
    node_id="node_1",
    slot=7,
    starts_at=70.0,
    ends_at=80.0,
    slices=(SliceSpec(lease_token="t", lease_expires_at=85.5, job=JOB),),
)

numbers = st.floats(allow_nan=False, allow_infinity=False)
whole = st.integers(-(2**53), 2**53)
messages = st.one_of(
    st.builds(BlobRef, url=st.text(), sha256=st.text(), bytes=whole),
    st.builds(
        ProgressReport,
        lease_token=st.text(),
        events=st.lists(
            st.builds(
                ProgressEvent,
                seq=whole,
                at=numbers,
                step=whole,
                total_steps=whole,
                epoch=numbers,
                samples_done=whole,
                train_loss=st.none() | numbers,
                log=st.lists(st.text()).map(tuple),
            )
        ).map(tuple),
    ),
    st.builds(
        SliceResult,
        lease_token=st.text(),
        status=st.sampled_from(SliceEnd),
        step=whole,
        total_steps=whole,
        samples_done=whole,
        fault=st.none() | st.sampled_from(Fault),
    ),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(messages)
def test_a_message_comes_back_from_its_json_as_it_was(message: Any) -> None:
    text = dumps(message)
    assert loads(type(message), text) == message
    assert dumps(loads(type(message), text)) == text


def test_a_plan_with_everything_in_it_comes_back_as_it_was() -> None:
    assert from_json(SlotPlan, json.loads(json.dumps(to_json(PLAN)))) == PLAN


@given(json_values)
def test_any_other_value_is_refused_as_a_protocol_error_and_never_otherwise(value: Any) -> None:
    for kind in (SlotPlan, ProgressReport, SliceResult):
        with pytest.raises(ProtocolError):
            from_json(kind, value)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        loads(SlotPlan, data)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"slot": "7"}, "SlotPlan.slot must be int, not str"),
        ({"slot": True}, "SlotPlan.slot must be int, not bool"),
        ({"starts_at": float("nan")}, "SlotPlan.starts_at must be a finite number"),
        ({"starts_at": 10**400}, "SlotPlan.starts_at must be a finite number"),
        ({"ends_at": None}, "SlotPlan.ends_at must be float, not NoneType"),
        ({"slices": {}}, "SlotPlan.slices must be a list, not dict"),
        ({"slices": [3]}, "SlotPlan.slices[0] must be an object, not int"),
        ({"surprise": 1}, "SlotPlan has unknown keys: surprise"),
    ],
)
def test_the_refusal_names_the_value_that_is_wrong(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ProtocolError) as refusal:
        from_json(SlotPlan, to_json(PLAN) | change)
    assert str(refusal.value) == words


def test_a_message_of_a_later_release_is_read_without_what_it_adds() -> None:
    value = to_json(PLAN) | {"surprise": 1}
    value["slices"][0]["job"]["training"]["surprise"] = {"deep": [1]}
    assert loads(SlotPlan, json.dumps(value)) == PLAN
    assert from_json(SlotPlan, value, ignores_unknown=True) == PLAN


RESULT = SliceResult(
    lease_token="t",
    status=SliceEnd.FINISHED,
    step=12,
    total_steps=12,
    samples_done=96,
    samples=(TextSample(prompt="Where is it?", before="", after="é" * SAMPLE_CHARS),),
)


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (
            [{"prompt": "p", "before": "x" * (SAMPLE_CHARS + 1), "after": ""}],
            "SliceResult.samples[0]: a text of a sample has more than 600 characters",
        ),
        (
            [{"prompt": "p", "before": "", "after": "a\0b"}],
            "SliceResult.samples[0]: a text of a sample has characters that no database takes",
        ),
        (
            [{"prompt": "\ud800", "before": "", "after": ""}],
            "SliceResult.samples[0]: a text of a sample has characters that no database takes",
        ),
        (
            [{"prompt": "p", "before": "b", "after": "a"}] * (SAMPLES_MAX + 1),
            "SliceResult: there are more than 3 samples",
        ),
        ([{"prompt": "p", "before": "b"}], "SliceResult.samples[0].after is missing"),
        (["p"], "SliceResult.samples[0] must be an object, not str"),
    ],
)
def test_samples_are_few_short_and_storable(samples: Any, words: str) -> None:
    assert from_json(SliceResult, to_json(RESULT)) == RESULT
    with pytest.raises(ProtocolError) as refusal:
        from_json(SliceResult, to_json(RESULT) | {"samples": samples})
    assert str(refusal.value) == words


def test_a_missing_value_is_named() -> None:
    value = to_json(PLAN)
    del value["slices"][0]["job"]["dataset"]["sha256"]
    with pytest.raises(ProtocolError, match=r"SlotPlan\.slices\[0\]\.job\.dataset\.sha256 is miss"):
        from_json(SlotPlan, value)


def test_a_word_outside_a_closed_list_is_refused_with_the_list() -> None:
    value = to_json(JOB) | {"data_format": "pickle"}
    with pytest.raises(ProtocolError, match="must be one of chat, completion, instruction"):
        from_json(JobSpec, value)


def test_deeply_nested_text_is_refused_and_does_not_end_the_process() -> None:
    with pytest.raises(ProtocolError, match="not JSON"):
        loads(SlotPlan, "[" * 200_000)


def test_whole_numbers_may_stand_where_a_float_is_meant() -> None:
    value = to_json(PLAN) | {"starts_at": 70}
    assert from_json(SlotPlan, value) == PLAN
