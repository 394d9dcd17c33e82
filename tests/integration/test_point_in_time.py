"""A market goes on from a moment of its database between backups, out of PostgreSQL's own log."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from marketplace.config.backups import _find_program
from marketplace.embedded.demo.api_client import api_client
from marketplace.embedded.house import ENVIRONMENT, ROOT, House, house
from marketplace.embedded.servers import prepare_postgres, wait_for_postgres
from marketplace.embedded.stack import Stack
from tests.demo_market import open_market
from tests.faults.steps import build_slow_facts, buy_longest
from tests.integration.test_restore_drill import get_job, kill_all, wait_for_end
from tests.migrated_cluster import copy_migrated_cluster
from tests.servers_plugin import RUNS_DIR
from tests.waiting import until
from workers.node.join import save_facts

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(2400)]

#: What is earned leaves at once, whatever it is.
SETTINGS = {
    "PAYOUT_DELAY_DAYS": "0",
    "PAYOUT_THRESHOLD_USD": "0",
    "PAYOUT_RESERVE_PERCENT": "0",
    "PAYOUT_EVERY_DAYS": "1",
}
#: A card fills the buyer's wallet, and the provider's earnings go to its bank.
PAY = """
import json, time, urllib.request
from urllib.parse import urlencode
from django.conf import settings
from marketplace.common import clock
from marketplace.payments import stripe_gateway as gateway
from marketplace.payments.card_payments import refresh_payment
from marketplace.payments.maturity import mature_earnings
from marketplace.payments.models import CardPayment, Earning, Payout, PayoutAccount
from marketplace.payments.payouts import (
    open_payout_account, refresh_payout_account, start_due_payouts,
)
from marketplace.payments.top_ups import start_top_up
from marketplace.auction.models import Bid
now = clock.now()
def send(path, body, key):
    request = urllib.request.Request(settings.STRIPE_API_URL + path, data=body,
                                     headers={"Authorization": f"Bearer {key}"})
    urllib.request.urlopen(request, timeout=20).read()
def wait_until(true):
    ends_at = time.monotonic() + 300
    while not true():
        assert time.monotonic() < ends_at
        time.sleep(0.2)
buyer = Bid.objects.earliest("pk").organisation
def fill():
    return start_top_up(organisation=buyer, amount_micros=400_000_000, key="form-1", card_id=None,
                        asked_by=buyer.memberships.first().user, saves_card=False, now=now)
payment = fill()
wait_until(lambda: CardPayment.objects.get(pk=payment.pk).gateway_id)
payment = CardPayment.objects.get(pk=payment.pk)
intent = gateway.get_intent(payment.gateway_id)
given = {"client_secret": intent.client_secret, "payment_method": "pm_card_visa"}
if intent.status != "succeeded":
    send(f"/v1/payment_intents/{intent.gateway_id}/confirm",
         urlencode(given | {"return_url": "http://127.0.0.1/"}).encode(),
         settings.STRIPE_PUBLISHABLE_KEY)
wait_until(lambda: refresh_payment(payment=payment, now=now)[0].status == "paid")
seller = Earning.objects.earliest("pk").organisation
open_payout_account(organisation=seller, now=now, return_url="http://127.0.0.1/")
account = PayoutAccount.objects.get(organisation=seller)
send("/_test/onboard", json.dumps({"account": account.gateway_id}).encode(),
     settings.STRIPE_SECRET_KEY)
refresh_payout_account(seller.pk)
mature_earnings(now=now)
start_due_payouts(now=now)
wait_until(lambda: Payout.objects.filter(status="paid").exists())
print("paid", Payout.objects.get().amount_cents)
"""
#: What is at the gateway, what was earned and is not paid out, and the wallet's top-ups.
LOOK = """
from datetime import timedelta
from marketplace.common import clock
from marketplace.payments.maturity import mature_earnings
from marketplace.payments.models import Earning, PayoutAccount, Payout
from marketplace.payments.payouts import start_due_payouts
from marketplace.payments.stripe_client import get_client
later = clock.now() + timedelta(days=3)
mature_earnings(now=later)
there = get_client().v1
[account] = PayoutAccount.objects.values_list("gateway_id", flat=True)
print(
    start_due_payouts(now=later) if {is_asked} else "",
    "intents", len(there.payment_intents.list({{"limit": 100}}).data),
    "transfers", len(there.transfers.list({{"limit": 100}}).data),
    "payouts", len(there.payouts.list({{"limit": 100}}, {{"stripe_account": account}}).data),
    "cents", Payout.objects.get().amount_cents, Payout.objects.get().status,
)
"""


def test_a_market_goes_on_from_a_moment_between_backups_and_pays_nothing_twice() -> None:
    lost, other, archive = (
        RUNS_DIR / f"{name}-{os.getpid()}" for name in ("at-work", "at-a-moment", "archive")
    )
    took_s: dict[str, float] = {}
    copy_migrated_cluster(lost)
    try:
        archive_log(lost / "postgres", into=archive)
        with house(data_dir=lost, own_servers=True, extra_environment=SETTINGS) as running:
            save_facts(lost / "measured.json", build_slow_facts())
            seeded = open_market(running, say=print)
            zone = seeded["zone"]
            with api_client(running, seeded["api_key"]) as api:
                sold = [sell(api, zone, "before the base backup")]
                began = time.monotonic()
                back_up_base(running, into=other / "postgres")
                took_s["base backup"] = time.monotonic() - began
                sold.append(sell(api, zone, "after the base backup"))
                # A job has succeeded some time before its provider is paid.
                earned = "SELECT count(*) = 2 FROM payments_earning"
                until(lambda: execute(running, earned), what="both are settled", every_s=0.2)
                moment = read_moment(running)
                paid = running.manage("shell", "--no-imports", "--command", PAY)
                late = buy_longest(api, zone, name="after the moment", epochs=(1,))
            finish_archive(running)
            port = int(running.url.rpartition(":")[2])
            kill_all(lost)
        # What is no part of the database: files, keys, the node's machine, and the gateway.
        for name in ("media", "keys", "node", "secret_key", "tables"):
            copy(lost / name, other / name)
        for name in ("gateway.json", "gateway_key"):
            copy(lost / name, other / name)
        began = time.monotonic()
        said = go_back(other, archive=archive, moment=moment)
        took_s["to the moment and verified"] = time.monotonic() - began
        assert "the books balance and every log verifies" in said
        assert "Heads of the ledger: Those named $ledger" in said
        with house(
            data_dir=other, own_servers=True, port=port, extra_environment=SETTINGS
        ) as running:
            took_s["answers"] = time.monotonic() - began
            running.stack.start("node")
            with api_client(running, seeded["api_key"]) as api:
                assert [get_job(api, each)["status"] for each in sold] == ["succeeded"] * 2
                assert api.get(f"/api/jobs/{late['job_id']}").status_code == 404
                resumed = running.manage("gateway_resume")
                booked = "1 payments by card, 0 refunds and 1 payouts."
                assert f"Booked what the lost market moved: {booked}" in resumed
                cents = int(paid.rsplit("paid ", 1)[1])
                at_gateway = f"intents 1 transfers 2 payouts 1 cents {cents} paid"
                until(
                    lambda: at_gateway in look(running, is_asked=False),
                    what="the payout is known to have arrived",
                    within_s=300,
                    every_s=2,
                )
                assert look(running, is_asked=True).strip() == f"0 {at_gateway}"
                # The same form is the same payment.
                assert "paid" in running.manage("shell", "--no-imports", "--command", PAY)
                assert look(running, is_asked=True).strip() == f"0 {at_gateway}"
                sell(api, zone, "after the restore")
            running.manage("ledger_check", "--whole")
            running.manage("auction_verify")
            running.manage("reconcile_stripe")
    finally:
        if not os.environ.get("KEEP_LOGS"):
            for folder in (lost, other, archive):
                shutil.rmtree(folder, ignore_errors=True)
    print({name: round(value, 1) for name, value in took_s.items()})


def sell(api: Any, zone: str, name: str) -> str:
    """Sell a job and see it through; its id."""
    job_id = buy_longest(api, zone, name=name, epochs=(1,))["job_id"]
    wait_for_end(api, job_id)
    assert get_job(api, job_id)["status"] == "succeeded"
    return job_id


def look(running: House, *, is_asked: bool) -> str:
    return running.manage("shell", "--no-imports", "--command", LOOK.format(is_asked=is_asked))


def copy(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)


def set_up(cluster: Path, **settings: str) -> None:
    """Add settings to a cluster that is not running."""
    with (cluster / "postgresql.auto.conf").open("a") as file:
        file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())


def archive_log(cluster: Path, *, into: Path) -> None:
    """Archive PostgreSQL's log, as docs/guides/operate.md has it."""
    into.mkdir()
    shutil.chown(into, cluster.owner(), cluster.group())
    command = f"test ! -f {into}/%f && cp %p {into}/%f"
    set_up(cluster, archive_mode="on", archive_command=command)


def back_up_base(running: House, *, into: Path) -> None:
    into.parent.mkdir(parents=True)
    cluster = running.data_dir / "postgres"
    database = ("--dbname", find_address(running), "--checkpoint", "fast")
    program = _find_program("pg_basebackup")
    subprocess.run([program, *database, "--pgdata", str(into)], check=True)
    subprocess.run(["chown", "--recursive", f"--reference={cluster}", str(into)], check=True)


def find_address(running: House) -> str:
    """Of the house's database, as its owner."""
    return json.loads((running.data_dir / ENVIRONMENT).read_text())["DATABASE_OWNER_URL"]


def execute(running: House, statement: str) -> Any:
    with psycopg.connect(find_address(running), autocommit=True) as server:
        row = server.execute(statement).fetchone()  # type: ignore[arg-type]
        assert row is not None
        return row[0]


def read_moment(running: House) -> str:
    return execute(running, "SELECT clock_timestamp()").isoformat()


def finish_archive(running: House) -> None:
    """Have all that is written until now in the archive: a machine may be lost after this."""
    segment = execute(running, "SELECT pg_walfile_name(pg_switch_wal())")
    archived = f"SELECT coalesce(last_archived_wal, '') >= '{segment}' FROM pg_stat_archiver"
    until(lambda: execute(running, archived), what="the log is archived", every_s=0.2)


def go_back(data_dir: Path, *, archive: Path, moment: str) -> str:
    """Bring a base backup to a moment of the archived log; what ``restored`` says."""
    set_up(
        data_dir / "postgres",
        restore_command=f"cp {archive}/%f %p",
        recovery_target_time=moment,
        recovery_target_action="promote",
    )
    (data_dir / "postgres" / "recovery.signal").touch()
    postgres = prepare_postgres(data_dir=data_dir, durable=True)
    with Stack(data_dir=data_dir, programs=[postgres.program]) as stack:
        stack.start("postgres")
        wait_for_postgres(postgres)

        def is_there() -> bool:
            with psycopg.connect(postgres.maintenance_url) as server:
                return server.execute("SELECT NOT pg_is_in_recovery()").fetchone() == (True,)

        until(is_there, what="the log is replayed", within_s=300, every_s=0.2)
        environment = os.environ | {
            "DJANGO_SETTINGS_MODULE": "marketplace.config.settings.dev",
            "DATABASE_URL": postgres.url,
            "DATABASE_OWNER_URL": postgres.owner_url,
            "DATA_DIR": str(data_dir),
            "SECRET_KEY": (data_dir / "secret_key").read_text(),
        }
        done = subprocess.run(
            [sys.executable, str(ROOT / "manage.py"), "restored", f"--as-of={moment}"],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
