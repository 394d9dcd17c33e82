"""The ``lagrangian`` policy: prices solved against a forecast of arrivals."""

from scheduler.auction.prices.counted_bids import EmptyZone, select_counted
from scheduler.auction.prices.forecast import Forecast, forecast_futures
from scheduler.auction.prices.solve import KnownBids, Settings, solve_prices

__all__ = [
    "EmptyZone",
    "Forecast",
    "KnownBids",
    "Settings",
    "forecast_futures",
    "select_counted",
    "solve_prices",
]
