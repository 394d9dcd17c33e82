"""``python -m marketplace.config.embedded up|demo``: a whole house on this machine."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from marketplace.config.embedded.demo import DemoFailed, market_open, sell
from marketplace.config.embedded.demo_move import sell_moving
from marketplace.config.embedded.house import ROOT, House, house
from marketplace.config.embedded.services import ServiceFailed
from marketplace.config.embedded.stack import signals_end_the_program

PORT = 8000


def main() -> int:
    options = _parser().parse_args()
    signals_end_the_program()
    started = time.monotonic()

    def say(words: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {words}", flush=True)

    try:
        with house(data_dir=options.data_dir, port=options.port, say=say) as running:
            seeded = market_open(running, say=say)
            _sign_ins_print(running, seeded)
            try:
                story = _story(running, seeded, say=say) if options.command == "demo" else None
                if not getattr(options, "once", False):
                    _stay_up(running)
            finally:
                _machines_end(running)
    except (ServiceFailed, DemoFailed) as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    if story is not None:
        print(json.dumps(story), flush=True)
    return 0


def _story(running: House, seeded: dict[str, Any], *, say: Callable[[str], None]) -> dict[str, Any]:
    """The demo's sales; what its last line holds."""
    sale = sell(running, seeded, say=say)
    return asdict(sale) | {"move": asdict(sell_moving(running, seeded, sale, say=say))}


def _machines_end(running: House) -> None:
    """Give back what the house rents on this machine: these processes are not its children."""
    if any((running.data_dir / "machines").glob("*/process.json")):
        # Nothing must be rented anew meanwhile.
        try:
            running.stack.stop("beat")
            running.manage("machines_end")
        except (ServiceFailed, OSError) as error:
            # What ended the house may have ended its database; that is told already.
            print(f"Rented machines may still run: {error}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m marketplace.config.embedded")
    commands = parser.add_subparsers(dest="command", required=True)
    default_dir = Path(os.environ.get("DATA_DIR", ROOT / ".data" / "demo"))
    for name, words in (
        ("demo", "sell and run two real jobs, then stay up"),
        ("up", "the house with its small market, no sale"),
    ):
        command = commands.add_parser(name, help=words, description=words)
        command.add_argument("--data-dir", type=Path, default=default_dir)
        command.add_argument("--port", type=int, default=int(os.environ.get("PORT", PORT)))
        if name == "demo":
            command.add_argument("--once", action="store_true", help="stop when the jobs are done")
    return parser


def _sign_ins_print(running: House, seeded: dict[str, Any]) -> None:
    words = {"owner": "job owner", "provider": "provider", "operator": "operator"}
    print(f"\n  Finetender is open at {running.url}\n")
    for role, email in seeded["people"].items():
        print(f"    {words.get(role, role):10} {email:22} {seeded['password']}")
    print(f"\n  Logs: {running.stack.log_dir}\n", flush=True)


def _stay_up(running: House) -> None:
    print(f"\n  The site stays up at {running.url} until Ctrl-C.\n", flush=True)
    while True:
        running.stack.check()
        time.sleep(1)


if __name__ == "__main__":
    sys.exit(main())
