"""A house whose machine is lost while it works goes on from its backup on another one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from marketplace.embedded.demo.api_client import ENDED, api_client
from marketplace.embedded.house import ROOT, House, house, note_tables
from marketplace.embedded.servers import prepare_postgres, wait_for_postgres
from marketplace.embedded.stack import Stack
from scheduler.auction.audit.command import EXIT_KNOWN_FAULTS
from tests.demo_market import open_market
from tests.faults.steps import build_slow_facts, buy_longest
from tests.migrated_cluster import copy_migrated_cluster
from tests.servers_plugin import RUNS_DIR
from tests.waiting import until
from workers.node.join import save_facts

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

#: Moments between checkpoints, so that the job has one before the backup.
CHECKPOINTS = "from marketplace.fleet.models import Zone; Zone.objects.update(checkpoint_every_s=3)"
SIGN = """
from marketplace.auction.witnesses.heads import publish_heads, sign_heads
from marketplace.common import clock
sign_heads(now=clock.now())
publish_heads(now=clock.now())
"""


def test_a_market_goes_on_from_its_backup_on_another_machine(tmp_path: Path) -> None:
    lost, other = (RUNS_DIR / f"{name}-{os.getpid()}" for name in ("lost", "other"))
    witness, backup = tmp_path / "witness.jsonl", tmp_path / "backup"
    settings = {"AUCTION_WITNESSES": f"file://{witness}"}
    took_s = {}
    copy_migrated_cluster(lost)
    try:
        with house(data_dir=lost, own_servers=True, extra_environment=settings) as running:
            save_facts(lost / "measured.json", build_slow_facts())
            seeded = open_market(running, say=print)
            zone = seeded["zone"]
            running.manage("shell", "--no-imports", "--command", CHECKPOINTS)
            with api_client(running, seeded["api_key"]) as api:
                bid = buy_longest(api, zone, name="runs during the backup", epochs=(8, 6, 4, 3, 2))
                job_id = bid["job_id"]
                until(lambda: get_job(api, job_id)["progress"]["step"] > 0, what="it trains")
                began = time.monotonic()
                running.manage("backup", str(backup))
                took_s["backup"] = time.monotonic() - began
                at_backup = get_job(api, job_id)["progress"]["step"]
                late = buy_longest(api, zone, name="sold after the backup", epochs=(1,))
            running.manage("shell", "--no-imports", "--command", SIGN)
            port = int(running.url.rpartition(":")[2])
            kill_all(lost)
        began = time.monotonic()
        said = restore(backup, into=other, secret_from=lost)
        took_s["restore"] = time.monotonic() - began
        assert "the books balance and every log verifies" in said
        # The machine of the node was another one: it knows what the backup does not.
        shutil.copytree(lost / "node", other / "node")
        with house(
            data_dir=other, own_servers=True, port=port, extra_environment=settings
        ) as running:
            took_s["answers"] = time.monotonic() - began
            running.stack.start("node")
            # What the gateway did since the backup is known to nobody yet.
            assert '"Gateway"' in httpx.get(f"{running.url}/healthz/money").text
            running.manage("gateway_resume")
            assert '"Gateway"' not in httpx.get(f"{running.url}/healthz/money").text
            with api_client(running, seeded["api_key"]) as api:
                assert get_job(api, job_id)["progress"]["step"] <= at_backup
                assert api.get(f"/api/jobs/{late['job_id']}").status_code == httpx.codes.NOT_FOUND
                wait_for_end(api, job_id)
                took_s["job done"] = time.monotonic() - began
                assert get_job(api, job_id)["status"] == "succeeded"
                again = buy_longest(api, zone, name="sold after the restore", epochs=(1,))
                wait_for_end(api, again["job_id"])
                assert get_job(api, again["job_id"])["status"] == "succeeded"
            running.manage("ledger_check", "--whole")
            running.manage("auction_verify")
            status, said = compare_with_witness(running, zone, witness)
            assert status == EXIT_KNOWN_FAULTS, said
            assert "signed heads or receipts are of entries that the market lost" in said
    finally:
        for folder in (lost, other):
            if not os.environ.get("KEEP_LOGS"):
                shutil.rmtree(folder, ignore_errors=True)
    print({name: round(value, 1) for name, value in took_s.items()})


def get_job(api: httpx.Client, job_id: str) -> dict[str, Any]:
    return api.get(f"/api/jobs/{job_id}").raise_for_status().json()


def wait_for_end(api: httpx.Client, job_id: str) -> None:
    until(
        lambda: get_job(api, job_id)["status"] in ENDED,
        what=f"{job_id} ends",
        within_s=600,
        every_s=0.5,
    )


def kill_all(data_dir: Path) -> None:
    """Kill every process of a house at once, the supervisor first: nothing is started again."""
    supervisor = psutil.Process(int((data_dir / "supervisord.pid").read_text()))
    everyone = [supervisor, *supervisor.children(recursive=True)]
    for process in everyone:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    psutil.wait_procs(everyone, timeout=30)


def restore(backup: Path, *, into: Path, secret_from: Path) -> str:
    """Put a backup into a new cluster and a new data folder; what the command says."""
    into.mkdir(parents=True)
    # The one thing that an operator keeps apart from the backups.
    shutil.copy2(secret_from / "secret_key", into / "secret_key")
    postgres = prepare_postgres(data_dir=into, durable=True)
    with Stack(data_dir=into, programs=[postgres.program]) as stack:
        stack.start("postgres")
        wait_for_postgres(postgres)
        environment = os.environ | {
            "DJANGO_SETTINGS_MODULE": "marketplace.config.settings.dev",
            "DATABASE_URL": postgres.url,
            "DATABASE_OWNER_URL": postgres.owner_url,
            "DATA_DIR": str(into),
            "SECRET_KEY": (into / "secret_key").read_text(),
        }
        done = subprocess.run(
            [sys.executable, str(ROOT / "manage.py"), "restore", str(backup)],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    note_tables(into)
    return done.stdout


def compare_with_witness(running: House, zone: str, witness: Path) -> tuple[int, str]:
    """What a verifier says who has the heads that the lost market signed."""
    transcript = running.data_dir / "transcript.jsonl"
    running.manage("auction_transcript", "--zone", zone, "--out", str(transcript))
    done = subprocess.run(
        [sys.executable, "-m", "scheduler", "verify", str(transcript), "--witness", str(witness)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr
