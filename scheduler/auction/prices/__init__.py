"""The ``lagrangian`` policy: prices solved against a forecast of arrivals."""

from scheduler.auction.prices.bursts import has_burst, has_sold_much
from scheduler.auction.prices.counted_bids import EmptyZone, select_counted
from scheduler.auction.prices.forecast import Forecast, forecast_futures
from scheduler.auction.prices.solve import KnownBids, Settings, solve_prices

__all__ = [
    "EmptyZone",
    "Forecast",
    "KnownBids",
    "Settings",
    "forecast_futures",
    "has_burst",
    "has_sold_much",
    "select_counted",
    "solve_prices",
]
