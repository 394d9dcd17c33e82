"""Attacks on the auction, run as experiments: what they gain, and what they cost others."""
