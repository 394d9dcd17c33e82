"""A release takes the place of the last one under load, and the last one that of it.

The filled database of the last release is migrated while its processes sell and its node trains.
They go on beside the new tables; then the new processes and the new node come, and go again.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from marketplace.embedded.demo.api_client import (
    ENDED,
    api_client,
    place_patient_bid,
    upload_dataset,
)
from marketplace.embedded.demo.first_sale import TRAINING
from marketplace.embedded.demo.moving_sale import DEADLINE_S
from marketplace.embedded.house import ENVIRONMENT, House, house
from marketplace.embedded.servers import find_free_port
from marketplace.embedded.stack import Stack
from tests.cut_relay import CutRelay, open_relay
from tests.demo_market import open_market
from tests.faults.steps import build_slow_facts, buy_longest
from tests.integration.releases import (
    NEXT_MIGRATIONS,
    build_programs,
    find_last_release,
    prepare_releases,
    run_from,
)
from tests.migrated_cluster import ROOT, copy_migrated_cluster
from tests.servers_plugin import RUNS_DIR
from tests.waiting import until
from workers.node.join import save_facts

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(2 * 3600)]

#: Bids beside those that are placed here: the tables are not empty.
FILLED = 50_000
#: Cancelled before it was decided, a bid stands in no log.
FILL = """
INSERT INTO auction_bid
SELECT made.* FROM (SELECT * FROM auction_bid WHERE status = 'refused' LIMIT 1) AS bid,
  generate_series(1, %s) AS n,
  jsonb_populate_record(NULL::auction_bid, to_jsonb(bid) || jsonb_build_object(
    'id', left(bid.id, 30) || '-' || n, 'arrival', nextval('auction_bid_arrival'),
    'idempotency_key', NULL, 'status', 'cancelled', 'position', NULL, 'decision_hash', '',
    'receipt', '', 'refusal', '')) AS made
"""
MARKET = ("beat", "worker", "lane", "web")
#: What a proxy answers, or a web process that ends, and what a client asks again after.
AGAIN = {httpx.codes.BAD_GATEWAY, httpx.codes.SERVICE_UNAVAILABLE, httpx.codes.TOO_MANY_REQUESTS}
WITHIN_S = 1800
EVERY_S = 0.3


class Clients:
    """Somebody who bids below every price all the time, each bid under a key of its own."""

    def __init__(self, url: str, api_key: str, zone: str, dataset_id: str) -> None:
        self.answers: Counter[int] = Counter()
        #: Keys that were answered, and the bids that the answers named.
        self.bids: dict[str, str] = {}
        self.refused_connections = 0
        #: The longest time from a bid's first request to its answer.
        self.longest_s = 0.0
        self._market = httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {api_key}"}, timeout=60
        )
        self._asked = {"zone": zone, "dataset_id": dataset_id, "training": {"epochs": 1}}
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._bid_on, daemon=True)

    def __enter__(self) -> Clients:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        self._market.close()

    def _bid_on(self) -> None:
        number = 0
        while not self._ends.wait(EVERY_S):
            number += 1
            self._bid(f"drill-{number}")

    def _bid(self, key: str) -> None:
        deadline = (datetime.now(UTC) + timedelta(minutes=20)).isoformat()
        body = self._asked | {"deadline": deadline, "price": "0.000001"}
        began = time.monotonic()
        while not self._ends.is_set():
            try:
                answer = self._market.post("/api/bids", json=body, headers={"Idempotency-Key": key})
            except httpx.TransportError:
                self.refused_connections += 1
                time.sleep(0.2)
                continue
            self.answers[answer.status_code] += 1
            if answer.status_code not in AGAIN:
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                found = answer.json()
                self.bids[key] = found.get("bid", found).get("id", answer.text)
                return
            time.sleep(0.2)


def test_a_release_takes_the_place_of_another_under_load_and_goes_back(tmp_path: Path) -> None:
    old, new = prepare_releases(tmp_path)
    data_dir = RUNS_DIR / f"upgrade-{os.getpid()}"
    port, next_port = find_free_port(), find_free_port()
    if old == ROOT:
        copy_migrated_cluster(data_dir)
    try:
        with ExitStack() as running:
            front = running.enter_context(open_relay("127.0.0.1", port))
            url = f"http://{front.at}"
            lasting = running.enter_context(
                house(
                    data_dir=data_dir,
                    port=port,
                    own_servers=True,
                    extra_environment=run_from(old) | {"PUBLIC_URL": url},
                )
            )
            lasting = replace(lasting, url=url)
            coming = running.enter_context(
                Stack(
                    data_dir=tmp_path / "next",
                    programs=build_programs(data_dir, next_port),
                    environment=lasting.environment | run_from(new),
                )
            )
            drill(lasting, coming, front, new, ports=(port, next_port))
    finally:
        if not os.environ.get("KEEP_LOGS"):
            shutil.rmtree(data_dir, ignore_errors=True)


def drill(
    lasting: House, coming: Stack, front: CutRelay, new: Path, *, ports: tuple[int, int]
) -> None:
    took_s: dict[str, float] = {}

    def note(what: str, began: float) -> None:
        took_s[what] = round(time.monotonic() - began, 1)
        print(f"{what}: {took_s[what]} s", flush=True)

    save_facts(lasting.data_dir / "measured.json", build_slow_facts())
    seeded = open_market(lasting, say=print)
    zone, api_key = seeded["zone"], seeded["api_key"]
    with api_client(lasting, api_key) as api:
        dataset_id = upload_dataset(api, zone)["id"]
        with Clients(lasting.url, api_key, zone, dataset_id) as clients:
            until(lambda: len(clients.bids) > 3, what="bids are refused", within_s=WITHIN_S)
            fill(lasting)
            job_id = buy_longest(api, zone, name="trains through all", epochs=(8, 6, 4, 3, 2))[
                "job_id"
            ]

            began = time.monotonic()
            migrate(lasting, new)
            note("tables of the next release, under load", began)
            sell(api, zone, "the last release beside the next one's tables")

            began = time.monotonic()
            coming.start("lane", "worker", "beat", "web")
            wait_for_port(ports[1])
            note("the next release's processes beside the last one's", began)
            # Both at once: the same job by either web server, and one of two lanes decides.
            assert get_job(api, job_id).keys() == get_job(api, job_id, port=ports[1]).keys()
            sell(api, zone, "by the last release's web server beside the next one's lane")
            began = time.monotonic()
            front.turn_to(ports[1])
            lasting.stack.stop(*MARKET)
            sell(api, zone, "by the next release, with the last one's node")
            note("changed over and sold", began)
            began = time.monotonic()
            lasting.stack.stop("node")
            coming.start("node")
            wait_for_end(api, job_id)
            note("the job done, on the next release's node", began)

            began = time.monotonic()
            lasting.stack.start("lane", "worker", "beat", "web")
            wait_for_port(ports[0])
            front.turn_to(ports[0])
            coming.stop("node", *MARKET)
            lasting.stack.start("node")
            sell(api, zone, "by the last release again, beside the next one's tables")
            note("changed back and sold", began)
            if find_last_release() is None:
                began = time.monotonic()
                migrate(lasting, new, "auction", "0001_initial")
                note("tables of the last release again, under load", began)
            last = sell(api, zone, "by the last release with its own tables")
            wait_for_end(api, last)
    compare(lasting, clients)
    print(took_s, clients.answers, f"longest {clients.longest_s:.1f} s", flush=True)


def fill(lasting: House) -> None:
    owner_url = json.loads((lasting.data_dir / ENVIRONMENT).read_text())["DATABASE_OWNER_URL"]
    with psycopg.connect(owner_url, autocommit=True) as owner:
        until(
            lambda: owner.execute(FILL, [FILLED]).rowcount == FILLED,
            what="there is a bid to copy",
            within_s=WITHIN_S,
            every_s=1,
        )


def migrate(lasting: House, release: Path, *words: str) -> None:
    """As the operator's guide has it: a migration that waits for a lock stops, and is run again."""
    environment = json.loads((lasting.data_dir / ENVIRONMENT).read_text()) | run_from(release)
    command = [sys.executable, str(release / "manage.py"), "migrate", "--no-input", *words]
    for _ in range(10):
        done = subprocess.run(
            command, env=os.environ | environment, capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            assert words or all(name in done.stdout for name in expected_migrations())
            return
        assert "lock timeout" in done.stderr, done.stderr
    raise AssertionError(done.stderr)


def expected_migrations() -> list[str]:
    return list(NEXT_MIGRATIONS) if find_last_release() is None else []


def wait_for_port(port: int) -> None:
    def answers() -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=10).status_code == 200
        except httpx.TransportError:
            return False

    until(answers, what=f"the web server on {port} answers", within_s=WITHIN_S, every_s=0.2)


def get_job(api: httpx.Client, job_id: str, *, port: int | None = None) -> dict[str, Any]:
    at = "" if port is None else f"http://127.0.0.1:{port}"
    return api.get(f"{at}/api/jobs/{job_id}").raise_for_status().json()


def sell(api: httpx.Client, zone: str, name: str) -> str:
    """Sell a short job once a node is on sale, however long it takes to start; its id."""

    def is_on_sale() -> bool:
        answer = api.get(f"/api/market/{zone}")
        return answer.is_success and any(any(node["on_sale"]) for node in answer.json()["nodes"])

    until(is_on_sale, what="a node is on sale", within_s=WITHIN_S, every_s=1)
    training = TRAINING | {"epochs": 1}
    bid = place_patient_bid(
        api, zone, name=name[:60], training=training, within_s=DEADLINE_S, say=print
    )
    return bid["job_id"]


def wait_for_end(api: httpx.Client, job_id: str) -> None:
    def has_ended() -> bool:
        try:
            return get_job(api, job_id)["status"] in ENDED
        except (httpx.TransportError, httpx.HTTPStatusError):
            return False

    until(has_ended, what=f"{job_id} ends", within_s=WITHIN_S, every_s=0.5)
    assert get_job(api, job_id)["status"] == "succeeded"


def compare(lasting: House, clients: Clients) -> None:
    """No bid was lost or doubled, none was answered with an error, and the books hold."""
    owner_url = json.loads((lasting.data_dir / ENVIRONMENT).read_text())["DATABASE_OWNER_URL"]
    with psycopg.connect(owner_url) as owner:
        rows = owner.execute(
            "SELECT idempotency_key, id FROM auction_bid WHERE idempotency_key LIKE 'drill-%'"
        ).fetchall()
        [found] = owner.execute("SELECT count(*) FROM auction_bid").fetchall()
    assert {key: bid for key, bid in rows if key in clients.bids} == clients.bids
    # One more may have been on its way at the end.
    assert len(rows) - len(clients.bids) in (0, 1)
    assert found[0] > FILLED
    assert set(clients.answers) <= {402, 202, 200, 201} | AGAIN, clients.answers
    assert "The books balance." in lasting.manage("ledger_check", "--whole")
    assert "verified" in lasting.manage("auction_verify")
