"""GPU nodes: a resident base model, many adapters, one training path.

Nodes know nothing of the database. ``workers.protocol`` (standard library only)
is everything the market and its nodes have to agree on.
"""
