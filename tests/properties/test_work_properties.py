"""What the market counts is what the node executes: for any rows, settings and costs."""

from __future__ import annotations

import io
import json
import tempfile
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from marketplace.common.errors import UserError
from marketplace.fleet.base_models import find_bundled_directory, find_tokenizer_files
from marketplace.fleet.text_encoder import load_text_encoder
from marketplace.jobs.dataset_reader import read_dataset
from marketplace.jobs.token_runs import TokenRuns, TokenRunsBuilder
from marketplace.jobs.work import split_rows
from workers.models import BUNDLED_PREFIX, TINY
from workers.protocol.job_spec import (
    AdapterKind,
    AdapterSpec,
    BaseModelRef,
    BlobRef,
    JobSpec,
    TrainingSpec,
    WorkCosts,
)
from workers.protocol.work import (
    EVALUATIONS_DEFAULT,
    EVALUATIONS_MAX,
    PARTS,
    UNITS_MAX,
    RowLengths,
    TooMuchWorkError,
    WorkPlan,
    count_forward_units,
    count_row_units,
    find_evaluation_interval,
)
from workers.training.data import TokenizerEncoder, prepare_data
from workers.training.faults import UserFault
from workers.training.job import TrainingJob

SOURCE = f"{BUNDLED_PREFIX}{TINY}"

words = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1).filter(
    str.strip
)
texts = st.lists(words, min_size=1, max_size=12).map(" ".join)
chats = st.lists(st.tuples(texts, texts), min_size=1, max_size=3).map(
    lambda turns: {
        "messages": [
            message
            for question, answer in turns
            for message in (
                {"role": "user", "content": question},
                {"role": "assistant", "content": answer},
            )
        ]
    }
)


def _is_usable(row: dict[str, str]) -> bool:
    """Two answers that are the same teach nothing; the reader refuses them."""
    return "chosen" not in row or row["chosen"].strip() != row["rejected"].strip()


data_sets = st.one_of(
    st.lists(chats, min_size=1, max_size=12),
    *(
        st.lists(
            st.fixed_dictionaries(dict.fromkeys(keys, texts)).filter(_is_usable),
            min_size=1,
            max_size=12,
        )
        for keys in (
            ("prompt", "completion"),
            ("instruction", "output"),
            ("text",),
            ("prompt", "chosen", "rejected"),
        )
    ),
)
trainings = st.builds(
    TrainingSpec,
    epochs=st.integers(1, 3),
    batch_size=st.integers(1, 5),
    sequence_length=st.integers(4, 80),
    seed=st.integers(0, 2**31 - 1),
    validation_share=st.floats(0, 0.5),
    eval_every_steps=st.integers(0, 6),
)
costs = st.builds(
    WorkCosts,
    token=st.integers(0, 3 * PARTS),
    trained_token=st.integers(0, PARTS),
    token_pair=st.integers(0, PARTS // 100),
    sequence=st.integers(0, 20 * PARTS),
    step=st.integers(0, 200 * PARTS),
    forward=st.integers(0, PARTS),
    even=st.integers(0, PARTS),
)


@lru_cache
def node_tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(find_bundled_directory(SOURCE))


def market_count(
    content: bytes, training: TrainingSpec, work_costs: WorkCosts, virtual_tokens: int
) -> WorkPlan:
    encoder = load_text_encoder(find_tokenizer_files(SOURCE))
    reading, found = read_dataset(io.BytesIO(content), name="rows.jsonl", encoder=encoder)
    assert reading.fatal is None
    runs = TokenRuns.from_bytes(found.to_bytes())
    assert reading.format is not None
    train, valid = split_rows(runs, data_format=reading.format, training=training)
    train, valid = train.lengthen(virtual_tokens), valid.lengthen(virtual_tokens)
    return WorkPlan(work_costs, training, train=train, valid=valid)


def node_job(
    content: bytes, training: TrainingSpec, work_costs: WorkCosts, virtual_tokens: int
) -> TrainingJob:
    reading, _ = read_dataset(io.BytesIO(content), name="rows.jsonl", encoder=None)
    data_format = reading.format
    assert data_format is not None
    spec = JobSpec(
        job_id="job",
        base_model=BaseModelRef(name=TINY, source=SOURCE),
        data_format=data_format,
        dataset=BlobRef(url="", sha256="", bytes=len(content)),
        adapter=(
            AdapterSpec(kind=AdapterKind.SOFT_PROMPT, virtual_tokens=virtual_tokens)
            if virtual_tokens
            else AdapterSpec()
        ),
        training=training,
        work_costs=work_costs,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        path.write_bytes(content)
        data = prepare_data(
            encoder=TokenizerEncoder(node_tokenizer()),
            data_path=path,
            validation_path=None,
            data_format=data_format,
            skip_lines=(),
            sequence_length=training.sequence_length,
            validation_share=training.validation_share,
            seed=training.seed,
        )
    return TrainingJob(spec, data)


def executed(job: TrainingJob, step: int) -> int:
    """Units of the very rows that the node trained and evaluated on, one by one."""
    spec, known = job.spec.work_costs, job.data
    even = len({len(sequence) for row in known.train for sequence in row.sequences}) == 1

    def units(row) -> int:
        lengths = RowLengths.of(
            [[(len(s) + job.virtual_tokens, int(s.weights.sum())) for s in row.sequences]]
        )
        return int(count_row_units(spec, lengths, even=even)[0])

    def forward(row) -> int:
        return int(count_forward_units(spec, np.array([units(row)]))[0])

    seen: set[int] = set()
    total = 0
    for done in range(1, step + 1):
        total += -(-spec.step // PARTS)
        for index in job.batch_rows(done - 1):
            row = known.train[index]
            total += units(row)
            if known.kind == "pairs" and index not in seen:
                total += forward(row)
            seen.add(index)
    evaluated = [at for at in range(step + 1) if job.work.is_evaluated_at(at)]
    once = sum(forward(row) for row in known.valid)
    passes = len(evaluated) + (known.kind == "pairs")
    written = write_samples(job) if step == job.total_steps else 0
    return total + once * passes + written if step else 0


def write_samples(job: TrainingJob) -> int:
    """Units of the passes in which three held-out rows' answers are written twice."""
    total = 0
    for row in job.data.valid[:3]:
        answer = int(row.sequences[0].weights.sum())
        length = len(row.sequences[0]) + job.virtual_tokens
        prompt = min(max(length - answer, min(16, length // 2), 1), 256)
        for written in range(min(answer, 48)):
            units = count_row_units(
                job.spec.work_costs, RowLengths.of([[(prompt + written, 1)]]), even=False
            )
            total += 2 * int(count_forward_units(job.spec.work_costs, units)[0])
    return total


@settings(deadline=None, max_examples=60)
@given(data_sets, trainings, costs, st.sampled_from([0, 3]))
def test_the_market_counts_what_the_node_executes_at_every_step(
    rows, training, work_costs, virtual_tokens
):
    content = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    try:
        plan = market_count(content, training, work_costs, virtual_tokens)
    except UserError:
        # Nothing to learn within the length: the node says so, too.
        with pytest.raises(UserFault, match="anything to learn"):
            node_job(content, training, work_costs, virtual_tokens)
        return
    job = node_job(content, training, work_costs, virtual_tokens)
    assert job.total_steps == plan.total_steps
    for step in range(plan.total_steps + 1):
        job.progress.step = step
        assert job.units_done == plan.count_until(step) == executed(job, step)
        if 0 < step < plan.total_steps:
            # A job that ends there is evaluated, and writes its samples as well.
            job.progress.stopped = True
            evaluation = 0 if plan.is_evaluated_at(step) else plan.evaluation_units
            ended = executed(job, step) + evaluation + write_samples(job)
            assert job.units_done == plan.count_ended_at(step) == ended
            job.progress.stopped = False
    assert plan.count_ended_at(plan.total_steps) == plan.total_units
    assert plan.total_units == plan.count_until(plan.total_steps)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=40), trainings, costs, st.data())
def test_parts_of_a_job_add_up_to_the_whole_wherever_it_is_cut(lengths, training, work_costs, data):
    rows = RowLengths.of([[(length, length - 1)] for length in lengths])
    none = RowLengths.of([])
    plan = WorkPlan(work_costs, training, train=rows, valid=none)
    cuts = data.draw(st.lists(st.integers(0, plan.total_steps), max_size=5).map(sorted))
    steps = [0, *cuts, plan.total_steps]
    parts = [plan.count_between(*pair) for pair in pairwise(steps)]
    assert all(part >= 0 for part in parts)
    assert sum(parts) == plan.total_units


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=6), max_size=12),
    st.integers(1, 40),
)
def test_truncation_of_stretches_is_truncation_of_tokens(sequences, length):
    builder = TokenRunsBuilder()
    for runs in sequences:
        builder.add_row([[(range(count), train) for count, train in runs]])
    cut = TokenRuns.from_bytes(builder.build().to_bytes()).cut(length)
    flat = [[train for count, train in runs for _ in range(count)] for runs in sequences]
    assert cut.tokens[:, 0].tolist() == [min(len(row), length) for row in flat]
    assert cut.trained[:, 0].tolist() == [sum(row[:length]) for row in flat]
    assert builder.token_count == sum(map(len, flat))
    assert builder.longest == max(map(len, flat), default=0)


@given(st.integers(1, 10**6), st.integers(0, 10**6))
def test_evaluations_are_about_ten_unless_asked_and_never_beyond_the_limit(total_steps, asked):
    every = find_evaluation_interval(total_steps=total_steps, asked=asked)
    count = len(range(0, total_steps, every)) + 1
    assert count <= (EVALUATIONS_MAX if asked else EVALUATIONS_DEFAULT)
    assert every >= max(1, asked)
    if not asked and total_steps >= 100:
        assert count >= EVALUATIONS_DEFAULT - 1


def test_a_job_beyond_what_floats_count_exactly_is_refused():
    rows = RowLengths.of([[(2**20, 2**20 - 1)]] * 2)
    dear = WorkCosts(token=2**36, token_pair=2**20)
    training = TrainingSpec(epochs=50, batch_size=1)
    assert WorkPlan(dear, training, train=rows, valid=RowLengths.of([])).total_units < UNITS_MAX
    with pytest.raises(TooMuchWorkError, match="more work than can be counted"):
        WorkPlan(
            dear,
            TrainingSpec(epochs=1000, batch_size=1, seed=1),
            train=RowLengths.of([[(2**20, 2**20 - 1)]] * 64),
            valid=RowLengths.of([]),
        )


def test_costs_that_could_overflow_are_refused():
    rows = RowLengths.of([[(4, 3)]])
    for wrong in (
        WorkCosts(token=2**40),
        WorkCosts(token_pair=2**30),
        WorkCosts(step=-1),
        WorkCosts(forward=PARTS + 1),
    ):
        with pytest.raises(ValueError, match="out of range"):
            WorkPlan(wrong, TrainingSpec(), train=rows, valid=RowLengths.of([]))
