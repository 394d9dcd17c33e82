"""A person at a browser: what they do, in their words."""

from __future__ import annotations

import os
import shutil
from typing import Any

from playwright.sync_api import Locator, Page, expect

#: Chromium without what would reach for the network or a graphics card.
LAUNCH: dict[str, Any] = {
    "executable_path": os.environ.get("CHROMIUM") or shutil.which("chromium"),
    "args": [
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--no-first-run",
    ],
}
CONTEXT: dict[str, Any] = {
    "viewport": {"width": 1440, "height": 900},
    "timezone_id": "Europe/Amsterdam",
    "locale": "en-GB",
    "color_scheme": "light",
    "reduced_motion": "reduce",
}
#: Milliseconds a step may take on a busy machine with two cores.
PATIENCE_MS = 30_000


class Visitor:
    """One page, and everything the browser complained about while it was used."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.complaints: list[str] = []
        page.set_default_timeout(PATIENCE_MS)
        expect.set_options(timeout=PATIENCE_MS)
        page.on("pageerror", lambda error: self.complaints.append(f"script: {error}"))
        page.on(
            "console",
            lambda message: (
                self.complaints.append(f"{message.type}: {message.text}")
                if message.type == "error"
                else None
            ),
        )

    def go(self, path: str) -> None:
        self.page.goto(self.url + path)

    def sign_in(self, email: str, password: str) -> None:
        self.go("/accounts/login/")
        self.page.get_by_label("Email").fill(email)
        self.page.get_by_label("Password").fill(password)
        self.page.get_by_role("button", name="Sign in").click()
        expect(self.page).not_to_have_url(f"{self.url}/accounts/login/")

    def confirm(self, password: str, *, before: Locator | None = None) -> None:
        """Say once more who one is, before keys, members or payouts change.

        With ``before``, which comes next, it may be that this was asked a moment ago.
        """
        asked = self.page.get_by_role("heading", name="Confirm access")
        expect(asked if before is None else asked.or_(before)).to_be_visible()
        if not asked.is_visible():
            return
        self.page.get_by_label("Password").fill(password)
        self.page.get_by_role("button", name="Confirm").click()

    def main(self) -> Locator:
        return self.page.locator("#main")

    def upload(self, name: str, content: bytes) -> None:
        """Choose a file on the bid page; the page sends and checks it by itself."""
        self.page.locator("#id_file").set_input_files(
            {"name": name, "mimeType": "application/jsonl", "buffer": content}
        )

    def tell_limit(self) -> None:
        """Let the market know the limit, so that it decides by it."""
        self.page.get_by_label("Keep it in this browser").uncheck()

    def place_too_low(self, *, clicks: int = 1) -> None:
        """Place a bid that cannot win, as when the price rose in the moment of the click."""
        expect(self.page.locator("#place")).to_be_disabled()
        self.page.locator("#place").evaluate(
            "(button, clicks) => { button.disabled = false; while (clicks--) button.click(); }",
            clicks,
        )
