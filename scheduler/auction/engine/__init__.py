"""The engine of one zone: events in, decisions out."""
