"""``python -m workers run``: train what the market plans for this node, or for all of a machine."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Sequence

from workers.node.credentials import NodeSettingsError, StateDir, load_credentials
from workers.node.machine import Supervisor, load_machine
from workers.node.neighbours import adopt_single_node
from workers.node.process import (
    EXIT_SETTINGS,
    add_run_arguments,
    build_run_arguments,
    lock_state_dir,
    quiet_library_logs,
)
from workers.node.update import find_joined, install_release, start_again


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m workers run", description=__doc__)
    add_run_arguments(parser)
    return run(parser.parse_args(arguments))


def run(options: argparse.Namespace) -> int:
    """Run until stopped; the exit status says why it ended.

    Where the state directory is a whole machine's, all of its nodes are run. Asked for an update
    (SIGHUP), it hands over its jobs, installs the market's release and starts as that.
    """
    began_s = time.monotonic()
    logging.basicConfig(
        level=options.log_level.upper(), format="%(levelname)s %(name)s: %(message)s"
    )
    quiet_library_logs()
    state = StateDir(options.state_dir)
    try:
        machine = load_machine(state)
        credentials = None if machine else load_credentials(state)
        state.prepare()
        with lock_state_dir(state):
            if machine is not None:
                adopt_single_node(state, machine)
                process = Supervisor(
                    machine,
                    root=state.path,
                    arguments=build_run_arguments(options),
                    grace_s=options.grace_s,
                )
            else:
                assert credentials is not None
                # Importing torch takes seconds; wrong settings must be reported without it.
                from workers.node.node_process import NodeProcess

                process = NodeProcess(
                    credentials,
                    state,
                    grace_s=options.grace_s,
                    cache_days=options.cache_days,
                    began_s=began_s,
                    gang_devices=[name for name in options.gang.split(",") if name],
                )
            status = process.run()
            if not process.update_asked:
                return status
            install_release(find_joined(state))
    except NodeSettingsError as error:
        print(error, file=sys.stderr)
        return EXIT_SETTINGS
    start_again(options)
    raise AssertionError("the new release has taken this process's place")


if __name__ == "__main__":
    sys.exit(main())
