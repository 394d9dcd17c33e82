"""Compiled arithmetic of the per-task search."""
