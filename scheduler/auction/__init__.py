"""The auction: truthful, exact, replayable. See ``docs/algorithms/auction.md``."""

from scheduler.auction import events
from scheduler.auction.deciding import Claim
from scheduler.auction.engine import Engine, Prices
from scheduler.auction.grid import Reservation
from scheduler.auction.log import Entry, entry_from_json, entry_to_json
from scheduler.auction.outcomes import Changed, Dropped, Outcome, Released, Replan
from scheduler.auction.rules import ZoneRules, rules_from_json, rules_to_json
from scheduler.auction.verify import Verification, verify

__all__ = [
    "Changed",
    "Claim",
    "Dropped",
    "Engine",
    "Entry",
    "Outcome",
    "Prices",
    "Released",
    "Replan",
    "Reservation",
    "Verification",
    "ZoneRules",
    "entry_from_json",
    "entry_to_json",
    "events",
    "rules_from_json",
    "rules_to_json",
    "verify",
]
