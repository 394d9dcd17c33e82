"""Arithmetic of the market: the auction, the tiers and their simulator.

Frozen values in, frozen values out. Nothing here reads a clock, a database or
a network; time is always an argument.
"""
