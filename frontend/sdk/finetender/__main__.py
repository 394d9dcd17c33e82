"""``finetender COMMAND …``; ``python -m finetender`` is the same.

Exit codes: 0 done, 1 failed, 2 wrong use, 3 key refused, 4 not found, 5 request refused, 6 market
not reached, 7 bid lost, 8 job failed, 9 too little money, 10 market busy, 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Any

from finetender.command_line import build_parser, split_arguments
from finetender.errors import FinetenderError, MarketError
from finetender.output import print_json
from finetender.progress import say

EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; gives its exit code."""
    ours, rest = split_arguments(list(sys.argv[1:] if arguments is None else arguments))
    try:
        chosen = build_parser().parse_args(ours)
        chosen.rest = rest
        return chosen.command(chosen) or 0
    except FinetenderError as error:
        # Also where the arguments themselves were wrong.
        if "--json" in ours:
            print_json(describe_error(error))
            return error.exit_code
        say(f"finetender: {error}", file=sys.stderr)
        if isinstance(error, MarketError) and error.request_id:
            say(f"({error.code}, request {error.request_id})", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("\nStopped watching; jobs go on.", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Who read the output has left.
        sys.stderr.close()
        return 0


def describe_error(error: FinetenderError) -> dict[str, Any]:
    """An error as ``--json`` prints it: the market's own answer where it gave one."""
    told = dict(error.body) if isinstance(error, MarketError) else {"detail": str(error)}
    return {"error": {"kind": type(error).__name__, "exit_code": error.exit_code} | told}


def run() -> None:
    """Run one command as a program."""
    for stream in (sys.stdout, sys.stderr):
        # Consoles of few letters, as Windows' older ones, get marks in place of the others.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    sys.exit(main())


if __name__ == "__main__":
    run()
