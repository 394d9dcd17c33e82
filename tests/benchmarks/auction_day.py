"""The paper's day: 144 slots, 80 bids a slot, A100 and A40 nodes (section 5.1).

What the paper leaves open is chosen here: samples per slot of GPT-2 by batch
size, asks by GPU type, worth per sample uniform in [0.5, 4], windows of 6 to 48
slots, data cleaning for one bid in three.
"""

from __future__ import annotations

from random import Random

from scheduler.types import LaborVendor, NodeSpec, Task

SLOTS = 144
#: Samples per slot on an A100 by batch size.
RATES = {4: 1900.0, 8: 2900.0, 16: 3700.0}
#: Speed of an A40 as a share of an A100's.
A40 = 0.46


def nodes(count: int, *, seed: int = 0, asks: str = "by type") -> list[NodeSpec]:
    """Give half A100 (80 GB), half A40 (48 GB); asks by type or also by node."""
    rng = Random(seed)
    made: list[NodeSpec] = []
    for k in range(count):
        fast = k % 2 == 0
        ask = 9000.0 if fast else 5000.0
        made.append(
            NodeSpec(
                id=f"node-{k}",
                gpu_type="a100" if fast else "a40",
                compute_capacity=16000.0 if fast else 8000.0,
                memory_capacity=80.0 if fast else 48.0,
                ask=ask if asks == "by type" else ask * rng.uniform(0.7, 1.3),
            )
        )
    return made


def tasks(bids_per_slot: int, *, seed: int = 0) -> list[Task]:
    """Give a day's tasks in order of arrival."""
    rng = Random(seed)
    made: list[Task] = []
    for slot in range(SLOTS):
        for j in range(bids_per_slot):
            batch = rng.choice(list(RATES))
            demand = float(rng.randint(5000, 20000) * rng.randint(1, 5))
            worth = demand * rng.uniform(0.5, 4.0)
            made.append(
                Task(
                    id=f"task-{slot}-{j}",
                    arrival_slot=slot,
                    deadline_slot=min(SLOTS - 1, slot + rng.randint(6, 48)),
                    compute_demand=demand,
                    memory_demand=1.5 + 0.4 * batch,
                    bid=worth,
                    rates={"a100": RATES[batch], "a40": RATES[batch] * A40},
                    vendors=tuple(
                        LaborVendor(
                            id=f"vendor-{n}",
                            price=worth * rng.uniform(0.05, 0.2),
                            delay_slots=rng.randint(0, 5),
                        )
                        for n in range(rng.choice([0, 0, 3]))
                    ),
                )
            )
    return made
