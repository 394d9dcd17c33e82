"""``python -m workers.bench check``: whether the engine is right here, a line per check.

Each check stands alone and compares with the plain way or with the CPU. Bases are small, with
random weights, so that no network is needed. ``--only`` names checks, ``families.llama`` one family
of theirs; the exit status is 1 where one fails. On a machine without a GPU the same checks run on
the CPU, but for those of its kernels.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from workers.bench.device_checks import (
    check_attach,
    check_device_error,
    check_long_row,
    check_memory,
    check_out_of_memory,
)
from workers.bench.product_checks import (
    FAMILIES,
    Check,
    check_attention,
    check_families,
    check_family,
    check_four_bit,
    check_grouped,
)
from workers.bench.training_checks import (
    check_answers,
    check_group,
    check_resume,
    check_training,
)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m workers.bench check", description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", default=",".join(CHECKS), help="names, with commas between them")
    chosen = parser.parse_args(arguments)
    known = CHECKS | FAMILY_CHECKS
    unknown = [name for name in chosen.only.split(",") if name not in known]
    if unknown:
        print(f"There is no check {unknown[0]}; choose {', '.join(known)}.", file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    device = torch.device(chosen.device)
    is_good = True
    for name in chosen.only.split(","):
        for row in run_check(name, device):
            is_good = is_good and row["ok"]
            print(json.dumps(row), flush=True)
    return 0 if is_good else 1


def run_check(name: str, device: torch.device) -> Iterator[dict[str, Any]]:
    """A check's lines; one that raises is one line more, with its error."""
    began = time.monotonic()
    try:
        for row in (CHECKS | FAMILY_CHECKS)[name](device):
            yield {"check": name, **row, "seconds": round(time.monotonic() - began, 1)}
            began = time.monotonic()
    # the other checks must still run
    except Exception as error:
        logging.exception("check %s", name)
        yield {"check": name, "ok": False, "error": f"{type(error).__name__}: {error}"}


CHECKS: dict[str, Check] = {
    "attention": check_attention,
    "grouped": check_grouped,
    "families": check_families,
    "four_bit": check_four_bit,
    "training": check_training,
    "answers": check_answers,
    "group": check_group,
    "memory": check_memory,
    "attach": check_attach,
    "out_of_memory": check_out_of_memory,
    "device_error": check_device_error,
    "long_row": check_long_row,
    "resume": check_resume,
}
#: Each family of ``families`` alone.
FAMILY_CHECKS: dict[str, Check] = {
    f"families.{family}": partial(check_family, family) for family in FAMILIES
}
