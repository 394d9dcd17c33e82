"""A process in the environment of a running market that management commands are sent to.

Django takes seconds to start: the demo and the tests of a whole house start it once and not for
every command.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import TracebackType
from typing import Self

from marketplace.embedded.servers import ServiceFailed

ROOT = Path(__file__).parents[2]


class CommandShell:
    """Runs management commands one after the other; ends with the block that made it.

    Parameters
    ----------
    environment
        The market's, on top of this process's own.
    log
        File for what the process says beside its answers.
    """

    def __init__(self, *, environment: Mapping[str, str], log: Path) -> None:
        self._one_at_a_time = threading.Lock()
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", "marketplace.embedded.command_shell"],
                cwd=ROOT,
                env=os.environ | environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                # Ctrl-C belongs to the person at the terminal; the last commands come after it.
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate()

    def manage(self, *command: str) -> str:
        """Run a management command and return what it printed.

        Raises
        ------
        ServiceFailed
            With the command's own words when it fails.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._one_at_a_time:
            try:
                self._process.stdin.write(json.dumps(command) + "\n")
                self._process.stdin.flush()
            except OSError:
                answer = ""
            else:
                answer = self._process.stdout.readline()
        words = f"This failed: manage.py {' '.join(command)}"
        if not answer:
            raise ServiceFailed(f"{words}\nThe process for commands has ended.")
        reply = json.loads(answer)
        if reply["error"] is not None:
            raise ServiceFailed(f"{words}\n{reply['printed']}{reply['error']}")
        return reply["printed"]


def main() -> None:
    """Answer each line of the standard input, a command as a JSON list, with a line of JSON."""
    import django
    from django.core.management import CommandError, call_command, get_commands
    from django.db import connection

    answers = os.fdopen(os.dup(1), "w")
    # Only answers go there; what commands print to the standard output is caught.
    os.dup2(2, 1)
    django.setup()
    from marketplace.embedded.seed_command import SeedDemo

    for line in sys.stdin:
        error, printed = None, io.StringIO()
        with redirect_stdout(printed), redirect_stderr(printed):
            # No installed app has it: a market that is run for others makes no demo. It prints to
            # where the standard output was when it was made.
            get_commands()["seed_demo"] = SeedDemo()  # type: ignore[assignment]
            try:
                call_command(*json.loads(line))
            except CommandError as refused:
                error = f"CommandError: {refused}"
            except (Exception, SystemExit):
                error = traceback.format_exc()
        connection.close()
        reply = {"printed": printed.getvalue(), "error": error}
        print(json.dumps(reply), file=answers, flush=True)


if __name__ == "__main__":
    main()
