"""Spot checks: a few steps of a job, trained again on another provider's node and compared."""
