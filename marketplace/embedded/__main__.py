"""``python -m marketplace.embedded up|demo``: a whole house on this machine."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from marketplace.embedded.demo.api_client import ENDED, DemoFailed, api_client, parse_answer
from marketplace.embedded.demo.books import check_books
from marketplace.embedded.demo.express import open_express_lane, run_express_sales
from marketplace.embedded.demo.first_sale import run_first_sale
from marketplace.embedded.demo.messy_sale import run_messy_sale
from marketplace.embedded.demo.moving_sale import run_moving_sale
from marketplace.embedded.demo.opening import NODES, bring_nodes, seed
from marketplace.embedded.demo.traffic import AT_FIRST, EVERY_S, Traffic
from marketplace.embedded.house import ACCESS, ROOT, House, house
from marketplace.embedded.servers import ServiceFailed, write_private
from marketplace.embedded.stack import exit_on_signals

PORT = 8000


def main() -> int:
    options = _build_parser().parse_args()
    exit_on_signals()
    # `make demo` began before this process did.
    started = time.monotonic() - max(0.0, time.time() - float(os.environ.get("STARTED_AT", "inf")))

    def say(words: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {words}", flush=True)

    try:
        folders = [node.folder for node in NODES]
        with house(
            data_dir=options.data_dir, port=options.port, node_names=folders, say=say
        ) as running:
            say("The site answers")
            seeded = seed(running, nodes=NODES, say=say)
            # What follows can be watched.
            _print_sign_ins(running, seeded)
            try:
                with access_file(running, seeded):
                    story = _run(running, seeded, options, say=say)
            finally:
                _end_machines(running)
    except (ServiceFailed, DemoFailed) as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    if story is not None:
        print(json.dumps(story), flush=True)
    return 0


def _run(
    running: House,
    seeded: dict[str, Any],
    options: argparse.Namespace,
    *,
    say: Callable[[str], None],
) -> dict[str, Any] | None:
    """Bring the nodes, run the sales, and stay up unless ``--once`` was asked for.

    Raises
    ------
    DemoFailed
        A sale failed, with ``--once``: otherwise the site stays up and says so.
    """
    bring_nodes(running, seeded, nodes=NODES, say=say)
    traffic = Traffic(running, seeded)
    _say_what_is_left(running, seeded, say=say)

    def sell() -> dict[str, Any] | None:
        if options.command != "demo":
            return None
        if options.data == "messy":
            return asdict(run_messy_sale(running, seeded, say=say))
        return _run_demo(running, seeded, traffic, say=say)

    if getattr(options, "once", False):
        return sell()
    attempt(running, sell, say=say)
    attempt(running, partial(open_express_lane, running, seeded, say=say), say=say)
    if options.command == "demo":
        attempt(running, partial(run_express_sales, running, seeded, say=say), say=say)
    _stay_up(running, seeded, traffic)
    return None


def attempt(running: House, work: Callable[[], object], *, say: Callable[[str], None]) -> None:
    """Do a part of the demo; say what failed, whatever it was: the site outlives its demo.

    Raises
    ------
    ServiceFailed
        A process of the house does not stay up, which is no fault of the demo.
    """
    try:
        work()
    except Exception as error:
        running.stack.check()
        say(f"This part of the demo failed, the site stays up: {str(error) or repr(error)}")


def _say_what_is_left(
    running: House, seeded: dict[str, Any], *, say: Callable[[str], None]
) -> None:
    """Name jobs of an earlier run, which go on beside this one's."""
    with api_client(running, seeded["api_key"]) as market:
        jobs = parse_answer(market.get("/api/jobs", params={"limit": 100}))["data"]
    left = [job for job in jobs if job["status"] not in ENDED]
    if left:
        names = ", ".join(sorted({str(job["name"]) for job in left})[:5])
        say(f"{len(left)} jobs of an earlier run go on: {names}")


def _run_demo(
    running: House, seeded: dict[str, Any], traffic: Traffic, *, say: Callable[[str], None]
) -> dict[str, Any]:
    """The demo's sales; what its last line holds."""

    def trade() -> None:
        admitted = sum(traffic.place() for _ in range(AT_FIRST))
        say(f"{admitted} small jobs of another customer are sold beside it")

    sale = run_first_sale(running, seeded, meanwhile=trade, say=say)
    say("The first adapter is trained and on this disk")
    move = run_moving_sale(running, seeded, sale, nodes=NODES, say=say)
    books = check_books(running, jobs=[sale.job_id, move.job_id], seeded=seeded, say=say)
    return asdict(sale) | {"move": asdict(move), "asks": books}


def _end_machines(running: House) -> None:
    """Give back what the market rents on this machine: these processes are not its children."""
    if any((running.data_dir / "machines").glob("*/process.json")):
        # No machine may be rented during the shutdown.
        try:
            running.stack.stop("beat")
            running.manage("machines_end")
        except (ServiceFailed, OSError) as error:
            # What ended the market may have ended its database; that is reported already.
            print(f"Rented machines may still run: {error}", file=sys.stderr)


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m marketplace.embedded")
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
            command.add_argument(
                "--data",
                choices=("clean", "messy"),
                default="clean",
                help="messy: one sale, of data that a vendor prepares first",
            )
    return parser


def _print_sign_ins(running: House, seeded: dict[str, Any]) -> None:
    words = {"owner": "job owner", "provider": "provider", "operator": "operator"}
    print(f"\n  Finetender is open at {running.url}\n")
    for role, email in seeded["people"].items():
        print(f"    {words.get(role, role):10} {email:22} {seeded['password']}")
    print(f"\n  Keys for programs: {running.data_dir / ACCESS}")
    print(f"  Logs: {running.stack.log_dir}\n", flush=True)


@contextmanager
def access_file(running: House, seeded: dict[str, Any]) -> Iterator[None]:
    """Keep ``access.json`` in the house's folder: there while its keys open something."""
    write_access(running, seeded)
    try:
        yield
    finally:
        (running.data_dir / ACCESS).unlink(missing_ok=True)


def write_access(running: House, seeded: dict[str, Any]) -> None:
    """Write what a client needs to use this market."""
    access = {
        "url": running.url,
        "openai_base_url": f"{running.url}/v1",
        "api_key": seeded["api_key"],
        "second_api_key": seeded["neighbour_api_key"],
        "zone": seeded["zone"],
        "model": seeded["zone"],
    }
    write_private(running.data_dir / ACCESS, json.dumps(access, indent=2) + "\n")


def _stay_up(running: House, seeded: dict[str, Any], traffic: Traffic) -> None:
    print("\n  README's lines over the API, filled in:\n")
    for line in build_readme_lines(running.url, seeded["api_key"]):
        print(f"    {line}")
    print(f"\n  The site stays up at {running.url} until Ctrl-C.\n", flush=True)
    next_at = time.monotonic() + EVERY_S
    while True:
        running.stack.check()
        time.sleep(1)
        if time.monotonic() >= next_at:
            traffic.place()
            next_at = time.monotonic() + EVERY_S


def build_readme_lines(url: str, api_key: str) -> list[str]:
    """The shell lines under "Over the API", with address and key."""
    section = (ROOT / "README.md").read_text().partition("**Over the API.**")[2]
    block = section.partition("```\n")[2].partition("\n```")[0]
    return block.replace("$URL", url).replace("$KEY", api_key).splitlines()


if __name__ == "__main__":
    sys.exit(main())
