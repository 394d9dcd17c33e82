"""A whole market in one seeded loop: its own functions over a real PostgreSQL, on a virtual clock.

Owners, nodes, the lane, the beat and the broker take turns as a random generator says; processes
die at any statement, connections break, Redis vanishes, messages are lost and doubled, clocks jump.
After each step the invariants of ``tests.world.invariants`` hold. A seed that breaks one is the
report of a bug: ``python -m tests.world --seed N --steps S``.
"""
