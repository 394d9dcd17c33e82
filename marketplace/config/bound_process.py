"""Run a command that cannot outlive its parent.

``python bound.py [--user NAME] [--signal TERM] -- COMMAND ...`` asks the kernel
to end the process when the one that started it dies, for any reason. Then it
becomes the command. Run by path, so that it needs no package and starts in
milliseconds. On systems without ``prctl`` the command runs unbound and the
supervisor's own clean-up is all there is.
"""

import argparse
import ctypes
import os
import pwd
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    split = arguments.index("--")
    parser = argparse.ArgumentParser()
    parser.add_argument("--user")
    parser.add_argument("--signal", default="TERM")
    options, command = parser.parse_args(arguments[:split]), arguments[split + 1 :]
    parent = os.getppid()
    if options.user:
        _become(options.user)
    # After the change of user: changing credentials clears the setting.
    die_with_parent(signal.Signals[f"SIG{options.signal}"])
    if os.getppid() != parent:
        sys.exit("the parent process is already gone")
    os.execvp(command[0], command)  # noqa: S606


def _become(user: str) -> None:
    account = pwd.getpwnam(user)
    os.setgroups([account.pw_gid])
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)


def die_with_parent(death_signal: signal.Signals) -> None:
    """Ask the kernel to send this process a signal when the one that started it dies."""
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0) != 0:
        sys.exit(f"prctl failed: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main(sys.argv[1:])
