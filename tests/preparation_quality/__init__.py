"""How well preparations find what they look for, over labelled sets made by a script.

``python -m tests.preparation_quality`` prints the tables of ``docs/algorithms/preparation.md``.
"""
