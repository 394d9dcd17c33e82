"""The ``lagrangian`` policy: prices solved against a forecast of arrivals."""

from scheduler.auction.prices.bursts import is_burst
from scheduler.auction.prices.forecast import Forecast, forecast_futures
from scheduler.auction.prices.solve import Settings, solve_prices

__all__ = ["Forecast", "Settings", "forecast_futures", "is_burst", "solve_prices"]
