"""The auction: truthful, exact, replayable. See ``docs/algorithms/auction.md``."""

from scheduler.auction.audit.verify import Verification, verify
from scheduler.auction.engine.cell_prices import Prices
from scheduler.auction.engine.decide import DeadlineHint
from scheduler.auction.engine.engine import Engine
from scheduler.auction.log import events
from scheduler.auction.log.chain import ChainEntry, entry_from_json, entry_to_json
from scheduler.auction.log.codec import rules_from_json, rules_to_json
from scheduler.auction.log.outcomes import DroppedCells, GridChange, Outcome, ReleasedCells, Replan
from scheduler.auction.log.rules import ZoneRules
from scheduler.auction.search.holdings import CellReservation

__all__ = [
    "CellReservation",
    "ChainEntry",
    "DeadlineHint",
    "DroppedCells",
    "Engine",
    "GridChange",
    "Outcome",
    "Prices",
    "ReleasedCells",
    "Replan",
    "Verification",
    "ZoneRules",
    "entry_from_json",
    "entry_to_json",
    "events",
    "rules_from_json",
    "rules_to_json",
    "verify",
]
