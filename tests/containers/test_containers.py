"""The images and the compose file, run by an engine: from nothing to a sale, and from a backup.

``make test-containers`` runs it where Docker is there. With ``STAND_INS=1`` the base images are
those of ``stand_ins.sh``, by their names; else the pinned ones.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from marketplace.embedded.demo.api_client import ENDED, place_patient_bid
from tests.integration.test_compose_processes import LIMITS, PEOPLE, SECRET, STATUS, ZONE
from tests.unit.docker.test_docker import EXAMPLE, ROOT
from tests.waiting import until

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(4 * 3600)]

HERE = Path(__file__).parent
URL = "https://localhost"
MANAGE = ("python", "manage.py")
PROJECT = "finetender-test"
NODE = f"{PROJECT}-node"
#: What a node needs no more of than any other service.
LOCKED = ["--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"]
LOCKED += ["--security-opt", "no-new-privileges"]
#: As the compose file asks its node.
CHECK = yaml.safe_load((ROOT / "docker" / "compose.yml").read_text())["services"]["node"]
CHECK = CHECK["healthcheck"]["test"][1]
#: What is wrong shows at once; a limit only ends a test that hangs, on however busy a machine.
WITHIN_S = 1800
RESTARTED = ("postgres", "redis", "web", "lane", "worker", "beat", "proxy")
#: Transactions that came by the pooler, and from how many addresses the market's sessions are.
POOLED = """
import os, psycopg
from django.db import connection
url = os.environ["DATABASE_URL"].replace("/finetender", "/pgbouncer")
with psycopg.connect(url, autocommit=True) as pooler:
    rows = pooler.cursor(row_factory=psycopg.rows.dict_row).execute("SHOW STATS").fetchall()
with connection.cursor() as cursor:
    cursor.execute("SELECT count(DISTINCT client_addr) FROM pg_stat_activity"
                   " WHERE usename = current_user")
    [[addresses]] = cursor.fetchall()
print(sum(row["total_xact_count"] for row in rows if row["database"] == "finetender"), addresses)
"""
#: Of what a backup holds: what is lost with a machine.
LOST = ("postgres", "data", "keys", "redis")


def run(*command: str, **more: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **more)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}{done.stderr[-6000:]}"
    return done.stdout


class Containers:
    """The services of one compose project."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = ["docker/compose.yml"]
        self.seconds: dict[str, float] = {}
        plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
        self._compose = ["docker-compose"] if plugin.returncode else ["docker", "compose"]

    def compose(self, *arguments: str) -> str:
        named = ("--project-name", PROJECT, "--env-file", str(self.folder / "docker/market.env"))
        files = [part for path in self.files for part in ("-f", str(self.folder / path))]
        return run(*self._compose, *named, *files, *arguments)

    def manage(self, *command: str) -> str:
        """As docs/guides/operate.md has it."""
        return self.compose("exec", "-T", "web", *MANAGE, *command)

    def keep(self, *command: str) -> str:
        return self.compose("run", "--rm", "-T", "backup", *command)

    def time(self, what: str, since: float) -> None:
        self.seconds[what] = round(time.monotonic() - since, 1)
        print(f"{what}: {self.seconds[what]} s", flush=True)

    def wait_until_healthy(self) -> None:
        """Every service runs, and those with a health check say that they work."""

        def is_healthy() -> bool:
            found = self.compose("ps", "--quiet").split()
            states = [each["State"] for each in json.loads(run("docker", "inspect", *found))]
            # What migrates and what compiles have ended well.
            assert not [each for each in states if each["ExitCode"] and not each["Running"]], states
            return all(
                each.get("Health", {}).get("Status", "healthy") == "healthy"
                for each in states
                if each["Running"]
            )

        until(is_healthy, what="every service is healthy", within_s=WITHIN_S, every_s=2)


@pytest.fixture(scope="module")
def containers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containers]:
    """Both images built and every service up; all of it is gone at the end."""
    folder = tmp_path_factory.mktemp("checkout")
    names = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    for name in filter(lambda each: (ROOT / each).is_file(), names.splitlines()):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    if os.environ.get("STAND_INS"):
        for path in (*(folder / "docker").glob("*.Dockerfile"), folder / "docker" / "compose.yml"):
            path.write_text(re.sub("@sha256:[0-9a-f]{64}", "", path.read_text()))
    values = {"PUBLIC_HOST": "localhost", "EMAIL_VERIFICATION": "optional"}
    lines = re.sub(r"^(\w+)=$", rf"\1={SECRET}", EXAMPLE, flags=re.MULTILINE)
    lines = re.sub(r"^PUBLIC_HOST=.*$", "", lines, flags=re.MULTILINE)
    lines += "".join(f"\n{name}={value}" for name, value in values.items())
    (folder / "docker" / "market.env").write_text(lines + "\n")
    made = Containers(folder)
    for name in ("web", "worker"):
        began = time.monotonic()
        tag = "finetender-web" if name == "web" else "finetender-node"
        file = str(folder / "docker" / f"{name}.Dockerfile")
        run("docker", "build", "--file", file, "--tag", tag, str(folder))
        made.time(f"image of {name}", began)
    try:
        began = time.monotonic()
        made.compose("up", "--no-build", "--detach")
        made.wait_until_healthy()
        made.time("from nothing to healthy", began)
        yield made
    finally:
        if not os.environ.get("KEEP_LOGS"):
            subprocess.run(["docker", "rm", "--force", "--volumes", NODE], check=False)
            made.compose("down", "--volumes", "--remove-orphans")
            run("docker", "volume", "rm", "--force", f"{PROJECT}_node")


@pytest.fixture(scope="module")
def market(
    containers: Containers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    """A buyer with money, in a zone that a node in a container has joined."""
    authority = tmp_path_factory.mktemp("authority") / "authority.pem"
    proxy = containers.compose("ps", "--quiet", "proxy").strip()
    inside = "/data/caddy/pki/authorities/local/root.crt"
    run("docker", "cp", f"{proxy}:{inside}", str(authority))
    authority.chmod(0o644)
    trusted = ssl.create_default_context(cafile=authority)
    page = httpx.get(URL, verify=trusted)
    assert page.status_code == 200
    assert "max-age=" in page.headers["strict-transport-security"]

    operator = "operator@example.org"
    containers.manage("createsuperuser", "--no-input", "--email", operator)
    zone = ("zone_create", ZONE, "--base-model", "bundled:finetender-tiny")
    containers.manage(*zone, "--slot-s", "5", "--horizon-slots", "400")
    said = containers.manage("shell", "-c", PEOPLE)
    found = re.search(r"made (\S+) (\S+) (\S+)", said)
    assert found is not None
    buyer, api_key, token = found.groups()
    grant = ("wallet_grant", buyer, "1000", "--operator", operator, "--reference", "first")
    containers.manage(*grant)
    join = ("join", "--url", URL, "--run", "--quick", "--device", "cpu", "--name", "first")
    run(
        *("docker", "run", "--detach", "--name", NODE, "--network", "host", *LOCKED),
        *("--health-cmd", CHECK, "--health-interval", "5s"),
        *("--volume", f"{PROJECT}_node:/state", "--volume", f"{authority}:/authority.pem:ro"),
        *("--env", "SSL_CERT_FILE=/authority.pem", "--env", f"FINETENDER_JOIN_TOKEN={token}"),
        *("finetender-node", *join, "--state-dir", "/state"),
    )
    headers = {"Authorization": f"Bearer {api_key}"}
    with httpx.Client(base_url=URL, verify=trusted, headers=headers, timeout=60) as client:
        yield client
    print(containers.seconds)


def test_containers_sell_train_restart_and_come_back_from_a_backup(
    containers: Containers, market: httpx.Client
) -> None:
    """A sale, a restart of each service, and the loss of all volumes but that of backups."""
    wait_until_on_sale(containers)
    asked = ("docker", "inspect", "--format", "{{.State.Health.Status}}", NODE)
    until(lambda: run(*asked).strip() == "healthy", what="the node is healthy", within_s=WITHIN_S)
    began = time.monotonic()
    job_id, adapter = sell_and_train(market)
    containers.time("a job sold, trained and fetched", began)
    for name in RESTARTED:
        began = time.monotonic()
        containers.compose("restart", name)
        wait_for_answer(market)
        containers.time(f"{name} restarted", began)
    containers.wait_until_healthy()

    began = time.monotonic()
    containers.keep("backup", "/backups/first")
    containers.time("backup", began)
    containers.compose("down")
    run("docker", "volume", "rm", *(f"{PROJECT}_{name}" for name in LOST))
    began = time.monotonic()
    containers.compose("up", "--no-build", "--detach", "postgres", "redis")
    said = containers.keep("restore", "/backups/first")
    assert "the books balance and every log verifies" in said
    containers.time("restore", began)
    containers.compose("up", "--no-build", "--detach")
    wait_for_answer(market)
    containers.time("restored, up and deciding", began)
    assert market.get(f"/api/jobs/{job_id}").json()["status"] == "succeeded"
    again = market.get(f"/api/jobs/{job_id}/adapter", follow_redirects=True)
    assert again.content == adapter
    # The node did not notice more than that nobody answered for a while.
    wait_until_on_sale(containers)
    sell_and_train(market)


def test_every_process_works_over_a_pooler_of_sessions(
    containers: Containers, market: httpx.Client
) -> None:
    """PgBouncer comes between the running house and its database, and is restarted under it."""
    file = str(HERE / "pooler.Dockerfile")
    run("docker", "build", "--file", file, "--tag", "finetender-pooler", str(HERE))
    wait_until_on_sale(containers)
    sell_and_train(market)
    containers.files.append("tests/containers/pooler.yml")
    began = time.monotonic()
    containers.compose("up", "--no-build", "--detach")
    containers.wait_until_healthy()
    wait_for_answer(market)
    containers.time("over a pooler, and deciding", began)
    wait_until_on_sale(containers)
    began = time.monotonic()
    sell_and_train(market)
    containers.time("a job sold, trained and fetched over a pooler", began)
    # What a pooler does not pass on, each session sets by itself.
    assert "15s 0 2min 1.1" in containers.manage("shell", "-c", LIMITS)
    transactions, addresses = containers.manage("shell", "-c", POOLED).split()[-2:]
    assert int(transactions) > 1000
    # No process has gone past it.
    assert int(addresses) == 1
    for name in ("pgbouncer", "postgres"):
        began = time.monotonic()
        containers.compose("restart", name)
        wait_for_answer(market)
        containers.time(f"{name} restarted under the rest", began)
    sell_and_train(market)
    assert "The books balance." in containers.manage("ledger_check", "--whole")
    # The key is not the web server's.
    assert "verified" in containers.compose("exec", "-T", "worker", *MANAGE, "auction_verify")


def wait_until_on_sale(containers: Containers) -> None:
    def is_on_sale() -> bool:
        return "online" in containers.manage("shell", "-c", STATUS)

    until(is_on_sale, what="the node is on sale", within_s=WITHIN_S, every_s=2)


def sell_and_train(market: httpx.Client) -> tuple[str, bytes]:
    """A job and its adapter.

    After a restore the node that a backup says is on sale goes off it until it is heard again.
    """
    bid = place_patient_bid(
        market, ZONE, name="one", training={"epochs": 1}, within_s=1500, say=print
    )
    job_id = bid["job_id"]

    def get_status() -> str:
        return market.get(f"/api/jobs/{job_id}").json()["status"]

    until(lambda: get_status() in ENDED, what="the job ends", within_s=WITHIN_S, every_s=1)
    assert get_status() == "succeeded"
    return job_id, market.get(f"/api/jobs/{job_id}/adapter", follow_redirects=True).content


def wait_for_answer(market: httpx.Client) -> None:
    """A bid below every price is decided, which needs all services but beat and worker."""

    def is_decided() -> bool:
        try:
            datasets = market.get("/api/datasets").json()["data"]
            asked = {"zone": ZONE, "dataset_id": datasets[0]["id"], "training": {"epochs": 1}}
            deadline = (datetime.now(UTC) + timedelta(minutes=25)).isoformat()
            bid = market.post("/api/bids", json=asked | {"deadline": deadline, "price": "0.000001"})
        except (httpx.TransportError, ValueError, KeyError):
            return False
        return bid.status_code == httpx.codes.PAYMENT_REQUIRED

    until(is_decided, what="a bid is decided", within_s=WITHIN_S, every_s=0.5)
