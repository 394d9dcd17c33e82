"""Random grids and tasks for the properties of the auction."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from scheduler.auction.search.grid import Grid
from scheduler.auction.search.task_search import Search
from scheduler.experiments.auction.max_form.search import MaxFormSearch, PrintedSearch
from scheduler.types import Horizon, LaborVendor, NodeSpec, Task

#: Prices and costs with many ties, zeros among them, and some without any.
AMOUNTS = st.one_of(
    st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    st.floats(0.0, 4.0, allow_subnormal=False).map(lambda x: round(x, 6)),
)
#: Whole rates, which tie in sums, and rates that no small fraction describes.
RATES = st.one_of(
    st.integers(1, 9).map(float), st.sampled_from([0.1, 1 / 3, 2.7182818, 6.02214076])
)


def lay_out(grid: Grid, task: Task, *, additive: bool, residual: bool = True) -> Search:
    """Give the search of a task in either form of prices; the additive one minds the room."""
    assert residual or not additive
    kind = Search if additive else MaxFormSearch if residual else PrintedSearch
    return kind(grid=grid, task=task, from_slot=grid.first_slot)


@st.composite
def grids(draw: st.DrawFn, *, most_nodes: int = 3, most_slots: int = 5) -> Grid:
    """Draw a grid with prices and with some room taken."""
    slots = draw(st.integers(1, most_slots))
    first = draw(st.integers(-3, 7))
    grid = Grid(horizon=Horizon(first_slot=first, slots=slots), base_memory=1.0)
    for k in range(draw(st.integers(1, most_nodes))):
        grid.add_node(
            NodeSpec(
                id=f"node-{k}",
                gpu_type=draw(st.sampled_from(["a", "b", "c"])),
                compute_capacity=10.0,
                memory_capacity=9.0,
                ask=draw(AMOUNTS),
            )
        )
    shape = (slots, len(grid.nodes))
    cells = shape[0] * shape[1]

    def matrix(amounts: st.SearchStrategy[float]) -> np.ndarray:
        return np.array(draw(st.lists(amounts, min_size=cells, max_size=cells))).reshape(shape)

    grid.compute_price[:] = matrix(AMOUNTS)
    grid.memory_price[:] = matrix(AMOUNTS)
    taken = matrix(st.sampled_from([0.0, 0.0, 0.0, 3.0, 8.0]))
    grid.compute_free -= taken
    grid.memory_free -= taken * 0.75
    return grid


@st.composite
def tasks(draw: st.DrawFn, grid: Grid) -> Task:
    """Draw a task that arrives around the grid's first slots."""
    arrival = grid.first_slot + draw(st.integers(-1, 1))
    last = grid.first_slot + grid.slots - 1
    types = draw(st.sets(st.sampled_from(["a", "b", "c"]), min_size=1))
    costs = None
    if draw(st.booleans()):
        span = max(last - arrival + 1, 1)
        costs = {
            node.id: tuple(draw(st.lists(AMOUNTS, min_size=span, max_size=span)))
            for node in grid.nodes
        }
    vendors = tuple(
        LaborVendor(id=f"vendor-{n}", price=draw(AMOUNTS), delay_slots=draw(st.integers(0, 3)))
        for n in range(draw(st.integers(0, 3)))
    )
    return Task(
        id="task",
        arrival_slot=arrival,
        deadline_slot=draw(st.integers(arrival, last + 1)),
        compute_demand=draw(st.one_of(st.integers(1, 30).map(float), st.floats(0.5, 30.0))),
        memory_demand=draw(st.sampled_from([0.5, 2.0, 5.0])),
        bid=draw(st.floats(0.0, 200.0)),
        rates={name: draw(RATES) for name in sorted(types)},
        vendors=vendors,
        operational_costs=costs,
    )


@st.composite
def grids_with_tasks(
    draw: st.DrawFn, *, most_nodes: int = 3, most_slots: int = 5
) -> tuple[Grid, Task]:
    """Draw a grid and a task for it."""
    grid = draw(grids(most_nodes=most_nodes, most_slots=most_slots))
    return grid, draw(tasks(grid))


def thirds_of_the_work() -> tuple[Grid, Task]:
    """Give a task that takes three slots at a third of its work, as floats have thirds."""
    grid = Grid(horizon=Horizon(first_slot=0, slots=3), base_memory=1.0)
    grid.add_node(
        NodeSpec(id="node", gpu_type="a", compute_capacity=1.0, memory_capacity=8.0, ask=1.0)
    )
    task = Task(
        id="task",
        arrival_slot=0,
        deadline_slot=2,
        compute_demand=1.0,
        memory_demand=1.0,
        bid=10.0,
        rates={"a": 1 / 3},
    )
    return grid, task


def medium_case(*, seed: int, nodes: int, slots: int, types: int) -> tuple[Grid, Task]:
    """Give a larger random grid and task, without ties."""
    rng = np.random.default_rng(seed)
    grid = Grid(horizon=Horizon(first_slot=0, slots=slots), base_memory=1.0)
    for k in range(nodes):
        grid.add_node(
            NodeSpec(
                id=f"node-{k}",
                gpu_type=f"type-{k % types}",
                compute_capacity=20.0,
                memory_capacity=40.0,
                ask=float(rng.uniform(0.1, 2.0)),
            )
        )
    grid.compute_price[:] = rng.uniform(0.0, 0.5, grid.compute_price.shape)
    grid.memory_price[:] = rng.uniform(0.0, 0.5, grid.memory_price.shape)
    grid.compute_free[rng.random(grid.compute_free.shape) < 0.2] = 0.0
    task = Task(
        id="task",
        arrival_slot=0,
        deadline_slot=slots - 1,
        compute_demand=float(rng.uniform(0.2, 0.5) * slots * 6.0),
        memory_demand=float(rng.uniform(1.0, 6.0)),
        bid=100.0,
        rates={f"type-{g}": float(rng.uniform(3.0, 9.0)) for g in range(types)},
        vendors=tuple(
            LaborVendor(id=str(n), price=float(rng.uniform(0.1, 3.0)), delay_slots=n)
            for n in range(int(rng.integers(0, 3)))
        ),
    )
    return grid, task
