"""Admitted work, from dispatch to the adapter."""
