"""Fused training against N runs of stock PEFT one after the other, on one machine.

Needs torch, transformers and peft only; weights are random, nothing is downloaded.
"""
