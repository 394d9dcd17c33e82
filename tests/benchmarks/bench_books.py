"""What the operator's overview and pages of money and profits cost at 1,000 to 100,000 bids.

The bids are written by SQL, a thousand for each day before now, with the job, hold, entries and
earning that a settled one leaves. One JSON line for each size: of each page the milliseconds of
processor time, its own and the database's, the statements, and the rows and index entries that the
database reads for them (``tests.grown_house``); the same time of the check behind them, and of the
whole check of every posting and seal; and kilobytes of the database for each bid. The goal is pages
that cost the same at any size. Other work on the machine hardly changes processor time.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

from marketplace.embedded.servers import prepare_postgres, wait_for_postgres
from marketplace.embedded.stack import Stack

if TYPE_CHECKING:
    from marketplace.accounts.models import Organisation
    from marketplace.jobs.models import Job

SIZES = (1_000, 10_000, 100_000)
ROUNDS = 5
#: A page at the largest size costs no more than this many times that of the smallest.
GOAL = 1.5


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        postgres = prepare_postgres(data_dir=Path(name), durable=False)
        with Stack(data_dir=Path(name), programs=[postgres.program]) as stack:
            stack.start("postgres")
            wait_for_postgres(postgres)
            os.environ["DATABASE_URL"] = postgres.owner_url
            os.environ.setdefault("REDIS_URL", "redis://127.0.0.1:1/0")
            os.environ["DJANGO_SETTINGS_MODULE"] = "marketplace.config.settings.test"
            import django

            django.setup()
            from django.conf import settings
            from django.core.management import call_command

            memory = "django.core.cache.backends.locmem.LocMemCache"
            settings.CACHES = {"default": {"BACKEND": memory}}
            call_command("migrate", verbosity=0, interactive=False)
            return measure_sizes(SIZES)


def measure_sizes(sizes: Sequence[int]) -> int:
    """Print a line for each size; 1 where a page misses its goal."""
    from django.test import Client

    from marketplace.payments.ledger_checks import check_ledger, check_recent
    from marketplace.payments.seals import seal_ledger
    from marketplace.tiers.profits import sum_profits
    from tests import builders
    from tests.grown_house import count_reads

    buyer, earner = builders.organisation(usd="1000000"), builders.organisation()
    builders.hold_funds(organisation=buyer, amount_micros=1_000_000, reference="bid_open")
    client = Client()
    client.force_login(builders.operator())
    sold = _sell_one(buyer)
    paths = {
        "overview": "/operator",
        "money": "/operator/money",
        "profit": f"/operator/money/profit/{builders.NOW:%Y-%m}",
        "books": f"/operator/money/books/{builders.NOW:%Y-%m}",
    }
    made, first = 0, {}
    empty = _measure_bytes()
    took: dict[str, float] = {}
    read: dict[str, int] = {}
    sent: dict[str, int] = {}
    for size in sizes:
        _write_bids(buyer.pk, earner.pk, made, size)
        _copy_bids(sold, made, size)
        made = size
        started = time.perf_counter()
        seal_ledger(now=builders.NOW)
        while sum_profits():
            pass
        sealed_s = time.perf_counter() - started
        _look_again()
        check = check_recent()
        assert check.balanced, check
        for name, path in paths.items():
            assert client.get(path).status_code == 200
            took[name] = _take(lambda path=path: client.get(path))
            sent[name] = _count_statements(lambda path=path: client.get(path))
            read[name] = count_reads(lambda path=path: client.get(path)) - sent[name]
        first = first or dict(took)
        line = {
            "case": "operator's pages",
            "bids": size,
            "entries": check.entries,
            **{f"{name}_cpu_ms": round(found, 1) for name, found in took.items()},
            **{f"{name}_statements": found for name, found in sent.items()},
            **{f"{name}_rows": found for name, found in read.items()},
            "recent_check_cpu_ms": round(_take(check_recent), 1),
            "whole_check_cpu_ms": round(_take(check_ledger, rounds=1), 1),
            "sealed_s": round(sealed_s, 1),
            "kb_a_bid": round((_measure_bytes() - empty) / size / 1000, 1),
        }
        print(json.dumps(line), flush=True)
    share = max(took[name] / first[name] for name in paths)
    print(json.dumps({"case": "largest beside smallest", "share": round(share, 2), "goal": GOAL}))
    return 0 if share <= GOAL else 1


def _measure_bytes() -> int:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_database_size(current_database())")
        return cursor.fetchone()[0]


def _look_again() -> None:
    """Do what autovacuum does within a minute: plans must know that nothing waits for a seal."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE payments_unsealedentry, payments_sealedsum")


def _take(act: Callable[[], object], *, rounds: int = ROUNDS) -> float:
    """Milliseconds of processor time, here and in the database's process; the median."""
    times = []
    backend = _find_backend()
    for _ in range(rounds):
        started = time.process_time_ns() + _read_cpu_ns(backend)
        act()
        times.append((time.process_time_ns() + _read_cpu_ns(backend) - started) / 1_000_000)
    assert _find_backend() == backend
    return statistics.median(times)


def _find_backend() -> int:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return cursor.fetchone()[0]


def _read_cpu_ns(pid: int) -> int:
    """Nanoseconds for which a process was on a processor."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def _count_statements(act: Callable[[], object]) -> int:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    with CaptureQueriesContext(connection) as statements:
        act()
    return len(statements)


def _sell_one(buyer: Organisation) -> Job:
    """Sell a job and settle it, to be copied."""
    from django.db import transaction

    from marketplace.auction.lane.decide import decide_pending_bids
    from marketplace.auction.settlement import settle_finished
    from marketplace.jobs.models import Job
    from marketplace.jobs.services import cancel_job
    from tests import builders, market_builders

    # Nobody listens to what is told after a commit. In a transaction of ours the lane has no limit
    # of time, which it may need for compiling.
    with patch.object(transaction, "on_commit"), transaction.atomic():
        zone = market_builders.zone()
        market_builders.node(zone)
        market_builders.bid(buyer, zone)
        decide_pending_bids(zone=zone, now=builders.NOW)
        job = Job.objects.get()
        cancel_job(job=job, cancelled_by=None, now=builders.NOW)
        settle_finished(now=builders.NOW)
    return Job.objects.get(settled_at__isnull=False)


def _copy_bids(sold: Job, first: int, last: int) -> None:
    """Write the bids and jobs of the holds, the latest first."""
    from django.db import connection, transaction

    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        for table, source_id, changes in (
            ("auction_bid", sold.bid_id, _BID_CHANGES),
            ("jobs_job", sold.pk, _JOB_CHANGES),
        ):
            cursor.execute(
                f"INSERT INTO {table} SELECT made.* FROM {table} AS source,"
                " generate_series(%s, %s) AS n, LATERAL jsonb_populate_record(source,"
                f" jsonb_build_object({changes})) AS made WHERE source.id = %s",
                [first + 1, last, source_id],
            )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def _write_bids(buyer_id: str, earner_id: str, first: int, last: int) -> None:
    """Write holds that were charged 40 cents and shared out, as a settled job leaves them."""
    from django.db import connection, transaction

    from marketplace.common.ids import to_uuid
    from marketplace.payments.ledger import ensure_house_accounts
    from marketplace.payments.locks import lock_accounts

    with transaction.atomic(), connection.cursor() as cursor:
        house = ensure_house_accounts(["clearing", "revenue"])
        owned = lock_accounts(
            [(buyer_id, kind) for kind in ("wallet_available", "wallet_held")]
            + [(earner_id, "earnings_pending")]
        )
        accounts = {kind: row.pk for (_, kind), row in owned.items()} | house
        # Constraints that look at each row would take most of the time.
        cursor.execute("SET LOCAL session_replication_role = replica")
        for kind, moves in _MOVES.items():
            cursor.execute(
                "INSERT INTO payments_entry (id, kind, reference, hold_reference, booked_at, memo)"
                " SELECT md5(%s || n)::uuid, %s, 'bid:bid_' || n, 'bid:bid_' || n, %s, %s"
                " FROM generate_series(%s, %s) AS n",
                [
                    *(kind, kind, "2026-03-02T09:00:00Z"),
                    *(_SHARED if kind == "distribution" else "", first + 1, last),
                ],
            )
            for account, amount in moves.items():
                cursor.execute(
                    "INSERT INTO payments_posting (entry_id, account_id, amount_micros)"
                    " SELECT md5(%s || n)::uuid, %s, %s FROM generate_series(%s, %s) AS n",
                    [kind, to_uuid(accounts[account]), amount, first + 1, last],
                )
        cursor.execute(
            "INSERT INTO payments_unsealedentry (entry_id) SELECT id FROM payments_entry"
            " WHERE reference ~ '^bid:bid_[0-9]+$' AND substr(reference, 9)::bigint > %s",
            [first],
        )
        for statement in _ROWS:
            cursor.execute(
                statement,
                {"buyer": buyer_id, "earner": earner_id, "first": first + 1, "last": last},
            )
        cursor.execute(
            "UPDATE payments_ledgeraccount AS account SET balance_micros = ("
            " SELECT sum(amount_micros) FROM payments_posting WHERE account_id = account.id)"
            " WHERE balance_micros IS NOT NULL AND id = ANY(%s)",
            [[to_uuid(row.pk) for row in owned.values()]],
        )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


#: A thousand bids a day, the latest now.
_AT = "now() - n * interval '86.4 seconds'"
_BID_CHANGES = (
    "'id', 'bid_' || n, 'arrival', 1000000 + n, 'position', 1000000 + n,"
    f" 'payment_micros', 400000, 'created_at', {_AT}, 'decided_at', {_AT}"
)
_JOB_CHANGES = (
    "'id', 'ftjob-' || n, 'bid_id', 'bid_' || n,"
    f" 'created_at', {_AT}, 'finished_at', {_AT}, 'settled_at', {_AT}"
)
#: As ``Distribution.described``.
_SHARED = "asks 380000"
#: What each entry of a bid adds to which account.
_MOVES = {
    "hold": {"wallet_available": -1_000_000, "wallet_held": 1_000_000},
    "charge": {"wallet_held": -1_000_000, "wallet_available": 600_000, "clearing": 400_000},
    "distribution": {"clearing": -400_000, "earnings_pending": 380_000, "revenue": 20_000},
}
_ROWS = (
    "INSERT INTO payments_hold (id, organisation_id, reference, amount_micros, status,"
    " charged_micros, refunded_micros, vendor_micros, held_at, ended_at, distributed_at)"
    " SELECT 'hold_' || n, %(buyer)s, 'bid:bid_' || n, 1000000, 'charged', 400000, 0, 0, now(),"
    " now(), now() FROM generate_series(%(first)s::int, %(last)s::int) AS n",
    "INSERT INTO payments_distribution (hold_id, asks_micros, asks_returned_micros,"
    " borne_pay_micros, borne_credit_micros, made_at)"
    " SELECT 'hold_' || n, 380000, 0, 0, 0, now()"
    " FROM generate_series(%(first)s::int, %(last)s::int) AS n",
    "INSERT INTO payments_earning (id, organisation_id, kind, reference, amount_micros, accrued_at,"
    " payable_at) SELECT 'earn_' || n, %(earner)s, 'provider', 'bid:bid_' || n, 380000, now(),"
    " now() FROM generate_series(%(first)s::int, %(last)s::int) AS n",
    # The trigger that does this is off.
    "INSERT INTO payments_earningsum AS stored (organisation_id, starts_at, amount_micros, lines)"
    " SELECT %(earner)s, date_bin('15 minutes', now(), TIMESTAMPTZ '2000-01-01 00:00+00'),"
    " 380000::bigint * made, made FROM (SELECT %(last)s::int - %(first)s::int + 1 AS made) AS added"
    " ON CONFLICT (organisation_id, starts_at) DO UPDATE SET"
    " amount_micros = stored.amount_micros + excluded.amount_micros,"
    " lines = stored.lines + excluded.lines",
)


if __name__ == "__main__":
    sys.exit(main())
