"""Discrete-event simulators of the tiers, the auction and the lane for prompt tuning."""
