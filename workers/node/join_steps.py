"""Telling the market how far this machine is with joining, so that its provider can watch."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from workers.node.credentials import NodeSettingsError
from workers.node.market_client import MarketClient, MarketError, Patience
from workers.protocol.joining import PATH_JOIN_STEP, JoinStep, JoinStepReport, clean_detail

log = logging.getLogger(__name__)

#: Least seconds between two reports of one step: a bar needs no more.
EVERY_S = 3.0
_ONCE = Patience(total_s=0.0)


class JoinSteps:
    """What a machine does, one step after another; a report that is lost is not sent again."""

    def __init__(self, client: MarketClient, *, token: str, name: str) -> None:
        self._client = client
        self._token = token
        self._name = name
        self._step = JoinStep.CONNECTED
        self._told_at = float("-inf")

    @contextmanager
    def step(self, step: JoinStep) -> Iterator[list[str]]:
        """Do a step; words put into the list are what it found.

        What keeps it from being done is reported before it is raised.
        """
        found: list[str] = []
        self._step = step
        self._tell(None, "")
        try:
            yield found
        except NodeSettingsError as error:
            self._tell(None, str(error), failed=True)
            raise
        self._tell(1.0, ", ".join(found))

    def tell(self, share: float | None, detail: str = "") -> None:
        """How far the present step is; the market hears of it every few seconds."""
        if time.monotonic() - self._told_at >= EVERY_S:
            self._tell(share, detail)

    def _tell(self, share: float | None, detail: str, *, failed: bool = False) -> None:
        self._told_at = time.monotonic()
        report = JoinStepReport(
            token=self._token,
            name=self._name,
            step=self._step,
            share=share,
            detail=clean_detail(detail),
            failed=failed,
        )
        try:
            self._client.send(PATH_JOIN_STEP, report, patience=_ONCE)
        except MarketError as error:
            log.info("the market does not hear how far this machine is: %s", error)
