"""``make bench-ledger``: hold, charge and release beside a single-table update of a balance.

Both run in the same database, one after the other and in turns, on batches as the lane settles
them. The other side does what a market without a ledger would: it subtracts a hold from a row of
balances and writes its end. One JSON line; the command fails below half its speed.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from marketplace.embedded.servers import prepare_postgres, wait_for_postgres
from marketplace.embedded.stack import Stack

ROUNDS = 9
#: Bids that are held, and then settled, in one transaction.
BATCH = 100
OWNERS = 20
GOAL = 0.5


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        postgres = prepare_postgres(data_dir=Path(name), durable=True)
        with Stack(data_dir=Path(name), programs=[postgres.program]) as stack:
            stack.start("postgres")
            wait_for_postgres(postgres)
            os.environ["DATABASE_URL"] = postgres.owner_url
            os.environ.setdefault("REDIS_URL", "redis://127.0.0.1:1/0")
            os.environ["DJANGO_SETTINGS_MODULE"] = "marketplace.config.settings.test"
            import django

            django.setup()
            from django.core.management import call_command

            call_command("migrate", verbosity=0, interactive=False)
            return compare(rounds=ROUNDS, batch=BATCH)


def compare(*, rounds: int, batch: int) -> int:
    """Print the line; 1 where the ledger misses its goal."""
    ledger, single = _prepare_ledger(batch), _prepare_single(batch)
    rates: dict[str, list[float]] = {"ledger": [], "single": []}
    for number in range(rounds + 1):
        for name, run in (("ledger", ledger), ("single", single)):
            started = time.perf_counter()
            run(number)
            # The first round fills caches and prepares statements.
            if number:
                rates[name].append(batch / (time.perf_counter() - started))
    middle = {name: statistics.median(found) for name, found in rates.items()}
    share = middle["ledger"] / middle["single"]
    result = {
        "case": "hold, charge and release",
        "batch": batch,
        "per_second": {name: round(rate) for name, rate in middle.items()},
        "share_of_single_table": round(share, 3),
        "goal": GOAL,
    }
    print(json.dumps(result))
    return 0 if share >= GOAL else 1


def _prepare_ledger(batch: int) -> Callable[[int], None]:
    from marketplace.payments.holds import (
        HoldRequest,
        HoldSettlement,
        place_holds,
        settle_holds,
    )
    from tests import builders

    owners = [builders.organisation(usd="1000000").pk for _ in range(OWNERS)]

    def run(number: int) -> None:
        names = [f"bid_{number}_{item}" for item in range(batch)]
        place_holds(
            wanted=[
                HoldRequest(owners[item % OWNERS], 1_000_000, name)
                for item, name in enumerate(names)
            ],
            now=builders.NOW,
        )
        settle_holds(
            settlements=[HoldSettlement(name, 400_000) for name in names], now=builders.NOW
        )

    return run


def _prepare_single(batch: int) -> Callable[[int], None]:
    """One row per owner; a bid is one update to hold and one to settle, in one transaction each."""
    from django.db import connection, transaction

    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE single (owner int PRIMARY KEY, balance bigint, held bigint)")
        cursor.execute(
            "INSERT INTO single SELECT g, 1000000000000, 0 FROM generate_series(0, %s) AS g",
            [OWNERS - 1],
        )

    def run(_number: int) -> None:
        for change in (
            "UPDATE single SET balance = balance - 1000000, held = held + 1000000 WHERE owner = %s",
            "UPDATE single SET balance = balance + 600000, held = held - 1000000 WHERE owner = %s",
        ):
            with transaction.atomic(), connection.cursor() as cursor:
                for item in range(batch):
                    cursor.execute(change, [item % OWNERS])

    return run


if __name__ == "__main__":
    sys.exit(main())
