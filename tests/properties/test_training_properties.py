"""What holds for any jobs and any rows, not only for the examples of the unit tests."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.protocol.part_memory import count_held_packs
from workers.protocol.row_order import shuffle_rows
from workers.training.optimizer import compute_learning_rate
from workers.training.pack_plan import PackRequest, plan_pack
from workers.training.packing import Example, PackShare, TokenSequence, build_pack
from workers.training.part_clock import PartClock
from workers.training.part_pass import PartPass

sizes = st.lists(st.integers(1, 60), min_size=1, max_size=12)
waiting_jobs = st.lists(
    st.tuples(sizes, st.integers(0, 5), st.none() | st.integers(1, 80)), min_size=1, max_size=8
).map(
    lambda jobs: [
        PackRequest(f"job-{index}", tuple(tokens), served, most)
        for index, (tokens, served, most) in enumerate(jobs)
    ]
)


@given(jobs=waiting_jobs, budget=st.integers(1, 300))
def test_a_pack_keeps_to_its_budget_and_everyones_limit(jobs, budget):
    takes = plan_pack(jobs, token_budget=budget)
    by_name = {job.job_id: job for job in jobs}
    used = {name: by_name[name].tokens[:count] for name, count in takes.items()}
    assert all(1 <= count <= len(by_name[name].tokens) for name, count in takes.items())
    total = sum(sum(tokens) for tokens in used.values())
    assert total <= budget or (len(takes) == 1 and list(takes.values()) == [1])
    for name, tokens in used.items():
        most = by_name[name].most_tokens
        assert most is None or sum(tokens) <= most or len(tokens) == 1


@given(jobs=waiting_jobs, budget=st.integers(1, 300))
def test_who_waited_longest_is_always_in_the_pack(jobs, budget):
    takes = plan_pack(jobs, token_budget=budget)
    assert min(jobs, key=lambda job: job.served).job_id in takes


@given(jobs=waiting_jobs, budget=st.integers(1, 300))
def test_nobody_waits_for_ever(jobs, budget):
    left = {job.job_id: job for job in jobs}
    for turn in range(10, 10 + sum(len(job.tokens) for job in jobs)):
        if not left:
            break
        for name, count in plan_pack(list(left.values()), token_budget=budget).items():
            job = left.pop(name)
            if count < len(job.tokens):
                left[name] = PackRequest(name, job.tokens[count:], turn, job.most_tokens)
    assert not left


@settings(deadline=None, max_examples=40)
@given(
    jobs=st.lists(st.tuples(sizes, st.integers(0, 3)), min_size=1, max_size=4),
    pad_to=st.sampled_from([1, 7, 64]),
)
def test_a_pack_is_its_sequences_in_order_and_nothing_is_lost(jobs, pad_to):
    shares, texts = [], []
    random = np.random.default_rng(1)
    for index, (lengths, virtual) in enumerate(jobs):
        examples = []
        for line, length in enumerate(lengths):
            weights = random.integers(0, 2, length).astype(np.float32)
            weights[0] = 0
            examples.append(
                Example(line, (TokenSequence(random.integers(5, 99, length), weights),))
            )
        shares.append(PackShare(str(index), tuple(examples), 0, 0, virtual_tokens=virtual))
        texts += [(example.sequences[0], virtual) for example in examples]
    pack = build_pack(shares, device=torch.device("cpu"), pad_to=pad_to)
    tokens, positions = pack.tokens_T.numpy(), pack.positions_T.numpy()
    assert pack.tokens % pad_to == 0
    predicted = []
    for number, (sequence, virtual) in enumerate(texts):
        start, end = pack.starts[number], pack.starts[number + 1]
        assert end - start == len(sequence) + virtual
        assert np.array_equal(tokens[start + virtual : end], sequence.tokens)
        assert np.array_equal(positions[start:end], np.arange(end - start))
        for place in np.flatnonzero(sequence.weights):
            # the hidden state one place earlier predicts the token
            predicted.append((start + virtual + place - 1, sequence.tokens[place], number))
    found = zip(
        pack.predict_M.tolist(), pack.targets_M.tolist(), pack.sequence_M.tolist(), strict=True
    )
    assert list(found) == [tuple(int(value) for value in row) for row in predicted]
    assert pack.segments[0].start == 0
    assert all(
        left.end == right.start
        for left, right in zip(pack.segments[:-1], pack.segments[1:], strict=True)
    )
    covered = sorted(
        place
        for bucket in pack.buckets
        for place in (range(pack.tokens) if bucket.stream is None else bucket.stream.tolist())
    )
    assert covered == list(range(pack.tokens))


@given(rows=st.integers(1, 200), seed=st.integers(-(2**40), 2**40), epoch=st.integers(0, 50))
def test_an_epoch_visits_every_row_once_and_is_the_same_each_time(rows, seed, epoch):
    order = shuffle_rows(rows, seed=seed, epoch=epoch)
    assert sorted(order.tolist()) == list(range(rows))
    assert np.array_equal(order, shuffle_rows(rows, seed=seed, epoch=epoch))


@given(
    schedule=st.sampled_from(["linear", "cosine", "constant"]),
    total=st.integers(1, 500),
    warmup_share=st.floats(0, 0.99),
)
def test_a_schedule_rises_to_its_rate_and_never_rises_again(schedule, total, warmup_share):
    warmup = int(np.ceil(warmup_share * total))
    rates = [
        compute_learning_rate(
            schedule=schedule, base_rate=1.0, step=step, total=total, warmup=warmup
        )
        for step in range(total)
    ]
    assert all(0 < rate <= 1 for rate in rates)
    rise, fall = rates[:warmup], rates[warmup:]
    assert rise == sorted(rise)
    assert fall == sorted(fall, reverse=True)
    if fall:
        assert fall[0] == 1.0


@dataclass
class Sent:
    """A pack of so many tokens that is sent through the parts, without its arithmetic."""

    tokens: int
    way: PartPass
    at: float = 0.0


@given(
    blocks=st.lists(st.integers(1, 9), min_size=2, max_size=8),
    packs=st.lists(st.integers(1, 4096), min_size=1, max_size=30),
    head=st.floats(0, 5),
)
def test_units_come_in_order_at_each_part_which_does_one_at_a_time(blocks, packs, head):
    model: Any = SimpleNamespace(parts=tuple(map(range, blocks)), blocks=())
    pack: Any = None
    clock, parts, flights = PartClock(blocks, head=head), len(blocks), list[Sent]()
    free_at = [0.0] * parts
    while packs or flights:
        if packs and len(flights) < clock.window:
            way = PartPass(model, pack, form="segments", compute_loss=lambda: torch.zeros(()))
            flights.append(Sent(packs.pop(), way))
            continue
        chosen = clock.choose(flights)
        way, began = chosen.way, chosen.at
        part, cost = way.part, (1 if way.is_forward else 2) * blocks[way.part]
        clock.note(chosen)
        cost = 3 * head if way.is_loss else cost
        start = chosen.at - chosen.tokens * cost
        assert start >= max(began, free_at[part]) - 1e-6
        free_at[part] = chosen.at
        way._next += 1
        held = sum(flight.way.holds(part) for flight in flights)
        assert held <= count_held_packs(parts, part)
        flights = [flight for flight in flights if not flight.way.is_through]
    assert 0 < clock.busy_share <= 1 + 1e-9
