"""A web process looks now and then whether the market works, and sends alerts.

The workers do so as well. Alerts must not need what they tell of: where workers or the clock are
away, a web process sends them.
"""

from __future__ import annotations

import logging
import threading

from django.db import connection

from marketplace.auction.alerts import watch_market
from marketplace.common import clock

log = logging.getLogger(__name__)

EVERY_S = 30.0


def start_watching() -> threading.Event:
    """Look every ``EVERY_S`` seconds, in a thread, until the event that this returns is set."""
    stopped = threading.Event()
    threading.Thread(target=_watch, args=(stopped,), name="alerts", daemon=True).start()
    return stopped


def _watch(stopped: threading.Event) -> None:
    while not stopped.wait(EVERY_S):
        try:
            watch_market(now=clock.now())
        except Exception:
            log.exception("the market could not be looked at for alerts")
        finally:
            connection.close()
