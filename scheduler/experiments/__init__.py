"""Discrete-event simulators of the tiers and of the auction."""
