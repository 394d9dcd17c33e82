"""The one writer of a zone: decides bids, re-plans jobs, wakes those who wait."""
