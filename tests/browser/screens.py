"""Pictures of every page: ``python -m tests.browser.screens [URL]``.

Without a URL a house is started, a job is sold and its pages are taken while it trains. With one,
the house at that address is used; it needs ``--password`` and the demo's people.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from json import dumps
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, expect, sync_playwright

from marketplace.embedded.demo.api_client import DATASET, MESSY
from marketplace.embedded.house import ROOT, house
from tests.browser.dashboard import PROMETHEUS, draw_dashboard, run_prometheus
from tests.browser.visitor import CONTEXT, LAUNCH, PATIENCE_MS, Visitor
from tests.demo_market import open_market

FOLDER = ROOT / "docs" / "screens"
#: Larger pictures would weigh down every clone.
BYTES_MAX = 150_000
#: A longer page is cut here: a list goes on as it began.
HEIGHT_MAX = 2000
PHONE_HEIGHT_MAX = 3200
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1440, "height": 900}
#: Epochs of the pictured job: enough to be caught half-way.
EPOCHS = "12"


@dataclass(frozen=True, slots=True)
class Place:
    url: str
    password: str
    owner: str
    provider: str
    operator: str
    #: Address of the Prometheus that scrapes the house; empty where there is none.
    prometheus: str = ""


class Camera:
    """Takes pages as one person sees them, whole and without what is still loading."""

    def __init__(self, browser: Browser, place: Place, folder: Path) -> None:
        self.browser = browser
        self.place = place
        self.folder = folder
        self.taken: list[Path] = []

    @contextmanager
    def person(
        self, email: str | None, *, theme: str = "light", phone: bool = False
    ) -> Iterator[Visitor]:
        context = self.browser.new_context(
            **CONTEXT | {"color_scheme": theme, "viewport": PHONE if phone else DESK}
        )
        visitor = Visitor(context.new_page(), self.place.url)
        if email is not None:
            visitor.sign_in(email, self.place.password)
        yield visitor
        if visitor.complaints:
            raise AssertionError("; ".join(visitor.complaints))
        context.close()

    def take(self, visitor: Visitor, name: str, path: str | None = None) -> None:
        """One picture of the whole page; bars that stick to the window end up at its end."""
        page = visitor.page
        if path is not None:
            visitor.go(path)
        page.wait_for_load_state("networkidle")
        page.evaluate("document.fonts.ready")
        width = page.evaluate("innerWidth")
        limit = PHONE_HEIGHT_MAX if width == PHONE["width"] else HEIGHT_MAX
        height = page.evaluate("document.documentElement.scrollHeight")
        page.set_viewport_size({"width": width, "height": min(max(height, 600), limit)})
        page.wait_for_timeout(300)
        file = self.folder / f"{name}.png"
        page.screenshot(path=file)
        _shrink(file)
        page.set_viewport_size(PHONE if width == PHONE["width"] else DESK)
        if file.stat().st_size > BYTES_MAX:
            raise AssertionError(f"{file} has {file.stat().st_size} bytes, over {BYTES_MAX}")
        self.taken.append(file)


def _shrink(file: Path) -> None:
    """A third of the bytes: our pages have few colours."""
    with Image.open(file) as picture:
        few = picture.convert("RGB").quantize(
            256, method=Image.Quantize.MEDIANCUT, kmeans=3, dither=Image.Dither.NONE
        )
    few.save(file, optimize=True)


def take_screens(camera: Camera) -> None:
    place = camera.place
    with camera.person(place.owner) as owner:
        job = sell_job(owner)
        camera.take(owner, "job", job)
        camera.take(owner, "job-cancel", f"{job}/cancel")
        for theme, phone, suffix in (("dark", False, "dark"), ("light", True, "phone")):
            with camera.person(place.owner, theme=theme, phone=phone) as other:
                camera.take(other, f"job-{suffix}", job)
                _bid_filled(other)
                camera.take(other, f"bid-new-{suffix}")
        owner.go(f"{job}/receipt")
        owner.page.get_by_role("button", name="Check it here").click()
        expect(owner.page.locator(".verdict")).to_contain_text("Everything holds.")
        camera.take(owner, "job-receipt")
        camera.take(owner, "jobs", "/jobs")
        _take_stops(camera, owner, job)
        _bid_filled(owner)
        camera.take(owner, "bid-new")
        _bid_filled(owner, limit="0.000001")
        owner.place_too_low()
        expect(owner.page.locator("#decision")).to_contain_text("Not admitted")
        camera.take(owner, "bid-refused")
        plan = _plan_made(owner)
        camera.take(owner, "data-plan", plan)
        for theme, phone, suffix in (("dark", False, "dark"), ("light", True, "phone")):
            with camera.person(place.owner, theme=theme, phone=phone) as other:
                camera.take(other, f"data-plan-{suffix}", plan)
        owner.go("/jobs?find=support-tone")
        for name, path in (
            ("wallet", "/wallet?view=double"),
            ("wallet-month", "/wallet/months"),
            ("datasets", "/datasets"),
            ("api-keys", "/settings/api-keys"),
            ("not-found", "/jobs/ftjob-nowhere"),
        ):
            camera.take(owner, name, path)
            owner.complaints.clear()
    with camera.person(None) as stranger:
        camera.take(stranger, "market", "/")
        camera.take(stranger, "quote", "/quote")
        camera.take(stranger, "verify", "/verify")
        camera.take(stranger, "sign-in", "/accounts/login/")
    with camera.person(place.provider) as provider:
        camera.take(provider, "nodes", "/nodes")
        _take_provider(camera, provider)
        provider.go("/nodes/new")
        camera.take(provider, "node-new")
        camera.take(provider, "statement", f"/nodes/payouts/{datetime.now(UTC):%Y-%m}")
    with camera.person(place.operator) as operator:
        _take_console(camera, operator, job)
        camera.take(operator, "profit", "/operator/money/profit")
        camera.take(operator, "books", "/operator/money/books")


def _take_provider(camera: Camera, provider: Visitor) -> None:
    """A provider's home, the page of its first node, and what it earned."""
    provider.page.get_by_role("link", name="Cells, hours, reliability").first.click()
    node = provider.page.url.removeprefix(provider.url)
    camera.take(provider, "node")
    camera.take(provider, "provide", "/provide")
    camera.take(provider, "earnings", "/provide/earnings?by=job")
    for theme, phone, suffix in (("dark", False, "dark"), ("light", True, "phone")):
        with camera.person(camera.place.provider, theme=theme, phone=phone) as other:
            camera.take(other, f"provide-{suffix}", "/provide")
            camera.take(other, f"node-{suffix}", node)
            camera.take(other, f"earnings-{suffix}", "/provide/earnings?by=job")


def _take_console(camera: Camera, operator: Visitor, job: str) -> None:
    """What an operator opens: the overview, health, a job of somebody, its zone, and the status."""
    operator.go("/operator/zones")
    operator.page.locator("td a.nm").first.click()
    zone = operator.page.url.removeprefix(operator.url)
    pages = (
        ("operator", "/operator"),
        ("health", "/operator/health"),
        ("operator-jobs", "/operator/jobs?show=all"),
        ("operator-job", f"/operator{job}"),
        ("zone", zone),
        ("status", "/status"),
    )
    for name, path in pages:
        camera.take(operator, name, path)
    for theme, phone, suffix in (("dark", False, "dark"), ("light", True, "phone")):
        with camera.person(camera.place.operator, theme=theme, phone=phone) as other:
            for name, path in pages:
                camera.take(other, f"{name}-{suffix}", path)


def _take_stops(camera: Camera, owner: Visitor, first: str) -> None:
    """A job that is paused and resumed, beside the one that is done, and what that one made."""
    page = owner.page
    second = sell_job(owner, name="support-tone-v4")
    camera.take(owner, "job-pause", f"{second}/pause")
    owner.go(f"{second}/pause")
    page.get_by_role("button", name=re.compile("^Pause")).click()
    expect(page.get_by_role("link", name="Resume…")).to_be_visible()
    camera.take(owner, "job-resume", f"{second}/resume")
    owner.go(first)
    expect(page.get_by_role("link", name="Download adapter")).to_be_visible(
        timeout=20 * PATIENCE_MS
    )
    jobs = "&".join(f"job={path.rpartition('/')[2]}" for path in (first, second))
    adapter = first.replace("/jobs/", "/adapters/")
    places = {
        "job-compare": f"/jobs/compare?{jobs}",
        "adapters": "/adapters",
        "adapter": adapter,
        "notices": "/notices",
        "notice-settings": "/notices/settings",
        "train": "/train",
        "find": "/find?q=tone",
    }
    for name, path in places.items():
        camera.take(owner, name, path)
    for theme, phone, suffix in (("dark", False, "dark"), ("light", True, "phone")):
        with camera.person(camera.place.owner, theme=theme, phone=phone) as other:
            for name in ("job-compare", "adapter", "notices", "train"):
                camera.take(other, f"{name}-{suffix}", places[name])


def _bid_filled(
    visitor: Visitor, *, limit: str | None = None, name: str = "support-tone-v3"
) -> None:
    """The form as somebody leaves it before the click; without a limit, twice the price."""
    page = visitor.page
    visitor.go("/bids/new?fresh")
    visitor.upload(DATASET.name, DATASET.read_bytes())
    expect(page.locator("#part-data .pill")).to_contain_text("rows ready")
    page.get_by_role("textbox", name="Name").fill(name)
    page.locator("#advanced > summary").click()
    page.get_by_label("Epochs", exact=True).fill(EPOCHS)
    with page.expect_response(lambda reply: reply.request.method == "POST"):
        page.get_by_label("Learning rate", exact=True).fill("0.002")
        page.get_by_label("Learning rate", exact=True).blur()
    page.locator("#advanced > summary").click()
    if limit is None:
        expect(page.locator("#q-price")).to_have_text(re.compile(r"^\$\d"))
        price = float(page.locator("#q-price").inner_text().removeprefix("$"))
        limit = f"{2 * price:.2f}" if price > 0.01 else f"{2 * price:.4f}"
    page.locator("#id_price").fill(limit)
    page.locator("#id_price").blur()


def _plan_made(owner: Visitor) -> str:
    """What a preparation would do to the messy rows; the path of its page."""
    page = owner.page
    owner.go("/datasets")
    rows = [
        *MESSY.read_text("utf-8").splitlines(),
        *(dumps({"frage": f"What is {n}?", "antwort": f"It is {n + n}."}) for n in range(9)),
    ]
    owner.upload(MESSY.name, "\n".join(rows).encode())
    page.locator("#upload-form button").click()
    page.get_by_label("Leave them out").check()
    page.get_by_role("button", name="Go on").click()
    page.get_by_role("link", name="Data report").click()
    page.get_by_role("link", name="See what a preparation would do").click()
    if page.get_by_role("button", name="Make the plan").is_visible():
        page.get_by_role("button", name="Make the plan").click()
    expect(page.locator("#h-steps")).to_be_visible(timeout=4 * PATIENCE_MS)
    page.locator("details.adv > summary").first.click()
    return page.url.removeprefix(owner.url)


def sell_job(owner: Visitor, *, name: str = "support-tone-v3") -> str:
    """Place a bid and wait until its job is well under way; the path of its page."""
    page = owner.page
    _bid_filled(owner, name=name)
    page.locator("#place").click()
    link = page.get_by_role("link", name="Follow the job")
    expect(link).to_be_visible(timeout=2 * PATIENCE_MS)
    path = link.get_attribute("href") or ""
    owner.go(path)
    page.wait_for_function(
        "() => parseInt(document.querySelector('#j-share').textContent) >= 35",
        timeout=10 * PATIENCE_MS,
    )
    return path


@contextmanager
def place_of(arguments: argparse.Namespace) -> Iterator[Place]:
    people = ("owner@example.com", "provider@example.com", "operator@example.com")
    if arguments.url:
        yield Place(arguments.url.rstrip("/"), arguments.password, *people)
        return
    with (
        tempfile.TemporaryDirectory() as data,
        house(data_dir=Path(data), durable=False, own_servers=True, say=print) as running,
    ):
        seeded = open_market(running, say=print)
        people = tuple(seeded["people"][role] for role in ("owner", "provider", "operator"))
        with ExitStack() as watching:
            prometheus = ""
            if PROMETHEUS is not None:
                prometheus = watching.enter_context(run_prometheus(running, Path(data)))
            yield Place(running.url, seeded["password"], *people, prometheus=prometheus)


def main(say: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", nargs="?", help="a running house; one is started when left out")
    parser.add_argument("--password", default="", help="of the demo's people")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with place_of(arguments) as place, sync_playwright() as playwright:
        browser = playwright.chromium.launch(**LAUNCH)
        camera = Camera(browser, place, arguments.folder)
        take_screens(camera)
        browser.close()
        if place.prometheus:
            camera.taken.append(draw_dashboard(place.prometheus, arguments.folder / "metrics.png"))
    for file in camera.taken:
        say(f"{file.relative_to(ROOT) if file.is_relative_to(ROOT) else file}")


if __name__ == "__main__":
    main()
