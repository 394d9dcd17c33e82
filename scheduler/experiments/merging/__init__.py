"""Ymir reproduced: its program as printed, an elastic cluster, and the experiments on them."""
