"""Websockets: a snapshot, then ordered events."""
