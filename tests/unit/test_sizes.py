"""Files and functions stay small. What is still too large is listed here; the lists only shrink."""

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINES_MAX = 400
FUNCTION_LINES_MAX = 60
ARGUMENTS_MAX = 8
#: Numba compiles each of the kernels as one loop; the SDK has the fields of the API as arguments.
LONG_FUNCTIONS: set[str] = {
    "scheduler/auction/search/kernels/covers.py: cover_by_labels",
    "scheduler/auction/search/kernels/covers.py: cover_by_pairs",
    "scheduler/auction/search/kernels/deadlines.py: solve_deadline",
    "scheduler/experiments/auction/integer_program.py: _one_vendor",
    "scheduler/experiments/auction/max_form/boxes.py: search_window",
    "scheduler/experiments/auction/max_form/curves.py: _cover",
    "scheduler/experiments/auction/max_form/curves.py: trace_prices_by_deadline",
    "scheduler/experiments/auction/max_form/deadlines.py: solve_deadline",
    "scheduler/experiments/auction/max_form/fronts.py: _keep_fronts",
    "scheduler/experiments/auction/run.py: run_policy",
    "scheduler/experiments/merging/report.py: _paper",
    "scheduler/experiments/tiers/clairvoyant.py: rent_cheapest",
    "scheduler/experiments/tiers/starts.py: start_directly",
    "scheduler/experiments/tiers/traces.py: _rows",
}
MANY_ARGUMENTS: set[str] = {
    "scheduler/experiments/attack/decoys.py: compare",
    "scheduler/experiments/auction/baselines/placement_kernel.py: place_soonest",
    "scheduler/experiments/auction/max_form/boxes.py: cheapest_cover",
    "scheduler/experiments/auction/max_form/boxes.py: keep_cells",
    "scheduler/experiments/auction/max_form/boxes.py: search_window",
    "scheduler/experiments/auction/max_form/curves.py: _cover",
    "scheduler/experiments/auction/printed_search.py: printed_dp",
    "scheduler/experiments/auction/run.py: run_policy",
    "scheduler/experiments/merging/plots.py: draw_lines",
    "scheduler/experiments/prompts/outcome.py: summarize",
    "scheduler/experiments/tiers/policies.py: choice",
}


def list_product_files() -> list[Path]:
    tracked = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    return [
        ROOT / name
        for name in tracked
        if not name.startswith("tests/") and "/migrations/" not in name and (ROOT / name).exists()
    ]


def list_functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path in list_product_files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path.relative_to(ROOT).as_posix()}: {node.name}", node


def count_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """From the signature to the end, without the docstring."""
    lines = (function.end_lineno or 0) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None:
        lines -= (first.end_lineno or 0) - first.lineno + 1
    return lines


def count_arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Without ``self``, ``cls`` and autograd's ``ctx``."""
    of = function.args
    names = [each.arg for each in (*of.posonlyargs, *of.args)]
    implied = names[:1] in (["self"], ["cls"], ["ctx"])
    return len(names) + len(of.kwonlyargs) - implied


def test_no_other_function_is_long_or_has_many_arguments() -> None:
    functions = list(list_functions())
    assert len(functions) > 5000
    long = {name for name, each in functions if count_lines(each) > FUNCTION_LINES_MAX}
    assert long == LONG_FUNCTIONS
    many = {name for name, each in functions if count_arguments(each) > ARGUMENTS_MAX}
    assert many == MANY_ARGUMENTS


def test_no_file_is_long() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for path in list_product_files()
        if len(path.read_text().splitlines()) > LINES_MAX
    }
    assert found == set()
