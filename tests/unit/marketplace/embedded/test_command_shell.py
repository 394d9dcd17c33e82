"""One process answers one management command after the other, whatever the last one did."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from marketplace.embedded.command_shell import CommandShell
from marketplace.embedded.servers import ServiceFailed


def test_commands_are_answered_in_turn_also_after_one_that_failed(tmp_path: Path) -> None:
    with CommandShell(environment={}, log=tmp_path / "log") as commands:
        assert commands.manage("shell", "--no-imports", "--command", "print(7 * 6)") == "42\n"
        with pytest.raises(ServiceFailed, match=r"(?s)manage.py nonsense --hard.*Unknown command"):
            commands.manage("nonsense", "--hard")
        with pytest.raises(ServiceFailed, match="shell"):
            commands.manage("shell", "--no-imports", "--command", "print(1); raise SystemExit(3)")
        script = "import sys; print('out'); print('err', file=sys.stderr)"
        assert commands.manage("shell", "--no-imports", "--command", script) == "out\nerr\n"


def test_a_process_that_was_killed_is_told_and_not_waited_for(tmp_path: Path) -> None:
    with CommandShell(environment={}, log=tmp_path / "log") as commands:
        script = "import os; print(os.getpid())"
        pid = int(commands.manage("shell", "--no-imports", "--command", script))
        os.kill(pid, signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(ServiceFailed, match="The process for commands has ended"):
                commands.manage("check")
