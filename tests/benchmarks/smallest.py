"""The option by which the tests run each benchmark with its least work."""

from __future__ import annotations

import argparse


def add_smallest(parser: argparse.ArgumentParser) -> None:
    """Let a command be asked for its least work, whose figures mean nothing and miss no goal."""
    parser.add_argument("--smallest", action="store_true", help="only show that it runs")
