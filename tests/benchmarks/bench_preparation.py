"""``make bench-preparation``: the same messy data, as they are and prepared, for the same work.

Both jobs train on the same number of rows in all and are judged on the same clean rows, which
neither saw. As they are means what a node trains on without a vendor: the lines that are usable
rows. Then the time that it takes, by the number of rows. Two JSON lines; the command fails when
preparation did not help, or takes much more than in proportion.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.smallest import add_smallest
from tests.preparation_quality.duplicate_rows import write_shared_prompt_rows
from workers.models.pretraining.messy_data import CLEAN_ROWS, MESSY, SOURCE
from workers.preparation import PreparationSettings, prepare_dataset
from workers.protocol.records import Row, read_rows

#: Passes over the prepared rows; over the others so many that they get no less work.
EPOCHS = 6
#: Rows of the measurement of growth, and how much more than in proportion the last may take.
ROWS = (1_000, 10_000, 100_000)
GROWTH_MAX = 1.3
SEED = 11
TRAINING = {"batch_size": 8, "learning_rate": 2e-3, "sequence_length": 256, "validation_share": 0.0}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.bench_preparation")
    add_smallest(parser)
    smallest: bool = parser.parse_args(arguments).smallest
    if smallest:
        print(json.dumps(_measure_growth((10, 20, 40))))
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        clean = SOURCE.read_text("utf-8").splitlines(keepends=True)[-CLEAN_ROWS:]
        (folder / "clean.jsonl").write_text("".join(clean), encoding="utf-8")
        rows = {"as_they_are": _write_usable(folder / "raw.jsonl")}
        (folder / "out").mkdir()
        with MESSY.open("rb") as stream:
            rows["prepared"] = prepare_dataset(
                stream, folder / "out", PreparationSettings()
            ).summary.rows_out
        epochs = {
            "as_they_are": math.ceil(EPOCHS * rows["prepared"] / rows["as_they_are"]),
            "prepared": EPOCHS,
        }
        losses = _train(folder, epochs)
    result = {
        "case": "messy support tone",
        "rows": rows,
        "samples": {job: rows[job] * epochs[job] for job in rows},
        "valid_loss_before": losses["prepared"]["valid_loss_before"],
        "valid_loss_after": {job: loss["valid_loss_after"] for job, loss in losses.items()},
    }
    print(json.dumps(result))
    after = result["valid_loss_after"]
    growth = _measure_growth(ROWS)
    print(json.dumps(growth))
    is_linear = growth["times_linear"] <= GROWTH_MAX
    return 0 if after["prepared"] < after["as_they_are"] and is_linear else 1


def _measure_growth(sizes: Sequence[int]) -> dict[str, Any]:
    """Prepare rows of different words under one system prompt of 120 words, by their number."""
    seconds: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as name:
        for rows in sizes:
            data, out = Path(name) / f"{rows}.jsonl", Path(name) / str(rows)
            write_shared_prompt_rows(data, rows=rows, seed=SEED)
            out.mkdir()
            began = time.process_time()
            with data.open("rb") as stream:
                made = prepare_dataset(stream, out, PreparationSettings())
            seconds[rows] = time.process_time() - began
            if made.rows_kept != rows:
                raise SystemExit(f"{rows - made.rows_kept} of {rows} different rows were left out.")
    per_row = [seconds[rows] / rows for rows in sizes[1:]]
    return {
        "case": "rows under one system prompt of 120 words",
        "cpu_s": {str(rows): round(taken, 2) for rows, taken in seconds.items()},
        # The first, short run pays for what is loaded once.
        "times_linear": round(per_row[-1] / per_row[0], 2),
    }


def _write_usable(path: Path) -> int:
    """The messy file without the lines that are no rows, as a node leaves them out; its rows."""
    with MESSY.open("rb") as stream:
        lines = {row.line for row in read_rows(stream, name=MESSY.name) if isinstance(row, Row)}
    kept = [
        line
        for number, line in enumerate(MESSY.read_text("utf-8").splitlines(keepends=True), start=1)
        if number in lines
    ]
    path.write_text("".join(kept), encoding="utf-8")
    return len(kept)


def _train(folder: Path, epochs: dict[str, int]) -> dict[str, dict[str, Any]]:
    """Train one job after the other from the same seed; what the command says of each."""
    files = {"as_they_are": "raw.jsonl", "prepared": "out/train.jsonl"}
    results: dict[str, dict[str, Any]] = {}
    for job, file in files.items():
        config = folder / f"{job}.yaml"
        config.write_text(
            json.dumps(
                {
                    "base_model": "bundled:finetender-tiny",
                    "output": f"adapters-{job}",
                    "reproducible": True,
                    "adapter": {"rank": 16, "alpha": 32.0, "dropout": 0.0},
                    "training": TRAINING | {"epochs": epochs[job]},
                    "jobs": [{"name": job, "data": file, "validation": "clean.jsonl"}],
                }
            )
        )
        done = subprocess.run(
            (sys.executable, "-m", "workers", "train", str(config), "--quiet"),
            check=True,
            capture_output=True,
            text=True,
        )
        results[job] = json.loads(done.stdout.splitlines()[-1])
    return results


if __name__ == "__main__":
    sys.exit(main())
