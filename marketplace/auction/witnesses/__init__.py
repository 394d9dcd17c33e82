"""Signed heads of the log: the market's key, the heads it signs, and who gets them."""
