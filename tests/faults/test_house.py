"""Processes of a whole house are killed under load: no bid lost or doubled, books balance."""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from marketplace.embedded.demo.api_client import upload_dataset
from marketplace.embedded.house import wait_for_web
from tests.conftest import Market

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

BIDS = 24
WITHIN_S = 120.0
#: Above any price of the small market's first hours, and below the wallet by far.
PRICE = "0.50"
#: Below any price: the node's ask alone is more.
TOO_LOW = "0.000001"


@pytest.fixture(scope="module")
def dataset_id(market: Market) -> str:
    with market.api() as api:
        return upload_dataset(api, market.zone)["id"]


def body(market: Market, dataset_id: str, price: str) -> dict[str, Any]:
    return {
        "zone": market.zone,
        "dataset_id": dataset_id,
        "name": "under-fire",
        "training": {"epochs": 1},
        "deadline": (datetime.now(UTC) + timedelta(minutes=25)).isoformat(),
        "price": price,
    }


def place_until_answered(market: Market, request: dict[str, Any], key: str) -> str:
    """What a careful client does: the same request with the same key until there is an answer."""
    ends_at = time.monotonic() + WITHIN_S
    while True:
        try:
            with market.api() as api:
                answer = api.post("/api/bids", json=request, headers={"Idempotency-Key": key})
        except httpx.TransportError:
            answer = None
        if answer is not None and answer.status_code in {201, 202, 402}:
            shape = answer.json()
            return shape["bid"]["id"] if answer.status_code == 402 else shape["id"]
        assert answer is None or answer.status_code in {409, 429, 500, 503}, answer.text
        assert time.monotonic() < ends_at, "no answer to a bid"
        time.sleep(0.2)


def place_all(market: Market, dataset_id: str, disturb: threading.Thread) -> dict[str, str]:
    """Place bids from several threads while ``disturb`` does its worst; ids by key."""
    requests = {
        secrets.token_hex(16): body(market, dataset_id, TOO_LOW if n % 2 else PRICE)
        for n in range(BIDS)
    }
    with ThreadPoolExecutor(4) as threads:
        placed = {
            key: threads.submit(place_until_answered, market, request, key)
            for key, request in requests.items()
        }
        disturb.start()
        ids = {key: future.result() for key, future in placed.items()}
    disturb.join()
    return ids


def decided(market: Market, bid_id: str) -> dict[str, Any]:
    ends_at = time.monotonic() + WITHIN_S
    while True:
        try:
            with market.api() as api:
                bid = api.get(f"/api/bids/{bid_id}").raise_for_status().json()
        except httpx.TransportError:
            bid = {"status": "pending"}
        if bid["status"] != "pending":
            return bid
        assert time.monotonic() < ends_at, f"{bid_id} is still not decided"
        time.sleep(0.2)


def assert_whole(market: Market, ids: dict[str, str]) -> None:
    """Every bid decided once, in one place of the log; log and books say the same."""
    assert len(set(ids.values())) == BIDS, "one key, one bid"
    bids = [decided(market, bid_id) for bid_id in ids.values()]
    positions = [bid["decision"]["position"] for bid in bids]
    assert len(set(positions)) == BIDS
    assert {bid["status"] for bid in bids if bid["price"] == "0.000001"} == {"refused"}
    market.shell.manage("auction_verify")
    market.shell.manage("ledger_check", "--whole")
    for bid in bids:
        if bid["job_id"]:
            with market.api() as api:
                answer = api.post(f"/api/jobs/{bid['job_id']}/cancel")
            # A quick job may be over already, and then there is nothing to cancel.
            assert answer.status_code in {200, 409}, answer.text


def kill(market: Market, name: str) -> None:
    os.kill(market.house.stack.pid(name), signal.SIGKILL)


def test_no_process_of_the_house_listens_beyond_loopback(market: Market) -> None:
    listening = set()
    for process in psutil.Process().children(recursive=True):
        # Some live for a moment only.
        with suppress(psutil.NoSuchProcess):
            found = process.net_connections(kind="inet")
            listening |= {one.laddr for one in found if one.status == psutil.CONN_LISTEN}
    assert {address for address, _ in listening} == {"127.0.0.1"}
    ports = {port for _, port in listening}
    servers = (market.url, market.house.environment["REDIS_URL"])
    assert {urlsplit(url).port for url in servers} <= ports


def test_other_accounts_of_the_machine_read_none_of_its_files(market: Market) -> None:
    folders = [path for path in market.house.data_dir.iterdir() if path.is_dir()]
    assert {"media", "logs", "redis", "postgres"} <= {path.name for path in folders}
    assert [path.name for path in folders if path.stat().st_mode & 0o077] == []


@pytest.mark.parametrize("path", ["/nowhere", "/static/nowhere.css"])
def test_what_is_not_there_is_a_404_that_tells_nothing_of_the_house(
    market: Market, path: str
) -> None:
    answer = httpx.get(market.url + path)
    assert answer.status_code == 404
    for word in ("DEBUG", "URLconf", "Traceback"):
        assert word not in answer.text


def test_a_web_process_killed_in_the_middle_of_requests_loses_and_doubles_nothing(
    market: Market, dataset_id: str
) -> None:
    def disturb() -> None:
        for _ in range(2):
            time.sleep(0.5)
            before = market.house.stack.pid("web")
            os.kill(before, signal.SIGKILL)
            ends_at = time.monotonic() + WITHIN_S
            while market.house.stack.pid("web") in {0, before}:
                assert time.monotonic() < ends_at
                time.sleep(0.05)
            wait_for_web(market.house)

    assert_whole(market, place_all(market, dataset_id, threading.Thread(target=disturb)))


def test_a_lane_killed_under_load_decides_every_bid_once_when_it_is_back(
    market: Market, dataset_id: str
) -> None:
    def disturb() -> None:
        for _ in range(2):
            time.sleep(0.4)
            if market.house.stack.pid("lane"):
                kill(market, "lane")

    assert_whole(market, place_all(market, dataset_id, threading.Thread(target=disturb)))


def test_redis_restarted_under_load_loses_no_bid_and_no_money(
    market: Market, dataset_id: str
) -> None:
    def disturb() -> None:
        time.sleep(0.3)
        market.house.stack.restart("redis")

    assert_whole(market, place_all(market, dataset_id, threading.Thread(target=disturb)))


def test_a_bid_while_the_lane_is_down_is_answered_with_where_to_look_and_decided_later(
    market: Market, dataset_id: str
) -> None:
    market.house.stack.stop("lane")
    try:
        with market.api() as api:
            answer = api.post("/api/bids", json=body(market, dataset_id, TOO_LOW))
        assert answer.status_code == 202
        assert answer.json()["status"] == "pending"
        where = answer.headers["Location"]
    finally:
        market.house.stack.start("lane")
    assert where == f"/api/bids/{answer.json()['id']}"
    assert decided(market, answer.json()["id"])["status"] == "refused"
