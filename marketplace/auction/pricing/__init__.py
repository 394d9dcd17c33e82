"""Solving a zone's prices on a worker, from past bids."""
