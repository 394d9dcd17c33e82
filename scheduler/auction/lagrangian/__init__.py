"""The ``lagrangian`` policy: prices solved against a forecast of arrivals."""

from scheduler.auction.lagrangian.forecast import Forecast, forecast_arrivals
from scheduler.auction.lagrangian.solve import Settings, solve_prices

__all__ = ["Forecast", "Settings", "forecast_arrivals", "solve_prices"]
