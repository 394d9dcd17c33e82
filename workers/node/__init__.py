"""A node of the market: receives plans, applies them to the runtime, reports and uploads."""
