"""Replays of a log that check every decision and price in it."""
