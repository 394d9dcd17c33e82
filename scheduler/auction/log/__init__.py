"""The decision log: events, outcomes, their canonical text and the hash chain."""
