"""What tests of the SDK and of its commands have in common, beside the fixtures."""

from __future__ import annotations

from typing import Any

from finetender.__main__ import main

TRAINING = {"epochs": 1, "batch_size": 8}


def run(captured: Any, *arguments: str) -> tuple[int, str]:
    """Exit code and output of a command, through the command line's own parser."""
    code = main(arguments)
    return code, captured.readouterr().out
