"""A process in the environment of a running market, for scripts and management commands of tests.

Django takes seconds to start: a test that looks at the market until something happens starts it
once and not for every look. What tests are about (commands that people type) still runs as a
process of its own, with ``House.manage``.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import traceback
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from marketplace.embedded.house import House

ROOT = Path(__file__).parents[1]


class MarketShell:
    """Runs scripts and management commands one after the other; says what they printed."""

    def __init__(self, house: House) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.market_shell"],
            cwd=ROOT,
            env=os.environ | house.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, script: str) -> str:
        """Run a script."""
        return self._ask(script=script)

    def manage(self, *command: str) -> str:
        """Run a management command."""
        return self._ask(command=command)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _ask(self, **request: Any) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert answer["error"] is None, f"{request}\n{answer['printed']}\n{answer['error']}"
        return answer["printed"].strip()


def main() -> None:
    """Answer each line of the standard input."""
    import django
    from django.db import connection

    answers = os.fdopen(os.dup(1), "w")
    # Nothing but answers goes there, whatever writes to the standard output.
    os.dup2(2, 1)
    django.setup()
    for line in sys.stdin:
        request, error = json.loads(line), None
        with redirect_stdout(io.StringIO()) as printed:
            try:
                _execute(request)
            except (Exception, SystemExit):
                error = traceback.format_exc()
        connection.close()
        print(json.dumps({"printed": printed.getvalue(), "error": error}), file=answers, flush=True)


def _execute(request: dict[str, Any]) -> None:
    from django.core.management import call_command

    if "script" in request:
        exec(request["script"], {})
    else:
        call_command(*request["command"])


if __name__ == "__main__":
    main()
