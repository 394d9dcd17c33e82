"""``python -m workers calibrate``: this device's rows of the speed table, as JSON."""

from __future__ import annotations

import argparse
import json
import sys

from workers.node.credentials import NodeSettingsError
from workers.node.devices import choose_device
from workers.node.self_test import CASES, QUICK_CASES, WORK_CASES, measure_node
from workers.protocol.job_spec import BaseModelRef
from workers.protocol.wire import to_json
from workers.training.faults import TrainingFault


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m workers calibrate", description=__doc__)
    parser.add_argument(
        "--base",
        action="append",
        help="bundled:<name>, a directory or a hub id; may be given more than once",
    )
    parser.add_argument("--device", default=None, help="default: the best")
    parser.add_argument("--memory-gb", type=float, default=None, help="what the node may use")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each case is timed")
    parser.add_argument("--quick", action="store_true", help="three cases only")
    parser.add_argument("--four-bit", action="store_true", help="keep its projections in 4 bits")
    chosen = parser.parse_args(arguments)
    bases = [
        BaseModelRef(name=source, source=source, four_bit=chosen.four_bit)
        for source in chosen.base or ["bundled:finetender-tiny"]
    ]
    try:
        facts = measure_node(
            device=choose_device(chosen.device),
            base_models=bases,
            memory_gb=chosen.memory_gb,
            cases=QUICK_CASES if chosen.quick else CASES,
            work_cases=() if chosen.quick else WORK_CASES,
            seconds_each=chosen.seconds,
            say=lambda line: print(line, file=sys.stderr),
        )
    except (NodeSettingsError, TrainingFault) as fault:
        print(fault, file=sys.stderr)
        return 2
    print(json.dumps(to_json(facts), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
