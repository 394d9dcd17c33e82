"""Bytes and requests of an open tab: first load, a minute seen, a minute hidden.

``python -m tests.benchmarks.bench_pages`` starts a house, sells a job that runs meanwhile, and
prints a JSON line a page. Bytes are those on the wire, frames of sockets among them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, CDPSession, Page, sync_playwright

from marketplace.embedded.house import house
from tests.browser import screens
from tests.browser.visitor import CONTEXT, LAUNCH, Visitor
from tests.demo_market import open_market

#: What a page asks before it does something, as a browser answers of a tab that nobody sees.
HIDE = """
Object.defineProperty(document, "visibilityState", { value: "hidden", configurable: true });
Object.defineProperty(document, "hidden", { value: true, configurable: true });
document.dispatchEvent(new Event("visibilitychange"));
"""
_COUNTED = ("Network.webSocketFrameReceived", "Network.webSocketFrameSent")


@dataclass
class Traffic:
    """What a tab moved since it was last asked."""

    bytes: int = 0
    requests: int = 0
    #: Answers that are whole pages: each made the server draw one.
    pages: int = 0

    def take(self) -> dict[str, int]:
        """Give what there was, and begin again."""
        found = {"bytes": self.bytes, "requests": self.requests, "pages": self.pages}
        self.bytes = self.requests = self.pages = 0
        return found


def watch(page: Page) -> Traffic:
    """Count what a tab receives from now on."""
    traffic, session = Traffic(), page.context.new_cdp_session(page)
    session.send("Network.enable")
    session.send("Network.setCacheDisabled", {"cacheDisabled": True})

    def finish(event: dict[str, Any]) -> None:
        traffic.bytes += round(event["encodedDataLength"])
        traffic.requests += 1

    def answer(event: dict[str, Any]) -> None:
        traffic.pages += event["response"]["mimeType"] == "text/html"

    session.on("Network.loadingFinished", finish)
    session.on("Network.responseReceived", answer)
    _count_frames(session, traffic)
    return traffic


def _count_frames(session: CDPSession, traffic: Traffic) -> None:
    def count(event: dict[str, Any]) -> None:
        traffic.bytes += len(event["response"]["payloadData"].encode())

    for name in _COUNTED:
        session.on(name, count)


def measure(
    browser: Browser, place: screens.Place, email: str | None, path: str, *, seconds: int
) -> dict[str, Any]:
    """Open a page in a new browser: its first load, and what it moves while seen and hidden."""
    context = browser.new_context(**CONTEXT)
    visitor = Visitor(context.new_page(), place.url)
    if email is not None:
        visitor.sign_in(email, place.password)
    # The first visit sets the zone of times, and loads again.
    visitor.go(path)
    visitor.page.wait_for_load_state("networkidle")
    traffic = watch(visitor.page)
    visitor.go(path)
    visitor.page.wait_for_load_state("networkidle")
    first = traffic.take()
    visitor.page.wait_for_timeout(1000 * seconds)
    seen = traffic.take()
    visitor.page.evaluate(HIDE)
    visitor.page.wait_for_timeout(1000)
    traffic.take()
    visitor.page.wait_for_timeout(1000 * seconds)
    hidden = traffic.take()
    context.close()
    return {"first_load": first, "visible": seen, "hidden": hidden}


@contextmanager
def open_place(arguments: argparse.Namespace) -> Iterator[screens.Place]:
    """The house at an address, or one of its own."""
    people = ("owner@example.com", "provider@example.com", "operator@example.com")
    if arguments.url:
        yield screens.Place(arguments.url.rstrip("/"), arguments.password, *people)
        return
    with (
        tempfile.TemporaryDirectory() as data,
        house(data_dir=Path(data), durable=False, own_servers=True) as running,
    ):
        seeded = open_market(running, say=lambda _: None)
        yield screens.Place(running.url, seeded["password"], *people)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", nargs="?", help="a running house; one is started when left out")
    parser.add_argument("--password", default="", help="of the demo's people")
    parser.add_argument("--seconds", type=int, default=60, help="how long each tab is watched")
    arguments = parser.parse_args()
    with open_place(arguments) as place, sync_playwright() as playwright:
        browser = playwright.chromium.launch(**LAUNCH)
        context = browser.new_context(**CONTEXT)
        owner = Visitor(context.new_page(), place.url)
        owner.sign_in(place.owner, place.password)
        job = screens.sell_job(owner)
        pages = (
            ("market", None, "/"),
            ("job", place.owner, job),
            ("nodes", place.provider, "/nodes"),
            ("operator", place.operator, "/operator"),
        )
        for name, email, path in pages:
            print(
                json.dumps(
                    {
                        "page": name,
                        **measure(browser, place, email, path, seconds=arguments.seconds),
                    }
                ),
                flush=True,
            )
        browser.close()


if __name__ == "__main__":
    main()
