"""``python -m workers unit``: a systemd unit that runs this node, on standard output."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from workers.node.process import EXIT_OK, add_run_arguments, build_run_arguments


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m workers unit", description=__doc__)
    add_run_arguments(parser)
    options = parser.parse_args(arguments)
    words = [sys.executable, "-m", "workers", "run", "--state-dir", str(options.state_dir)]
    command = " ".join([*words, *build_run_arguments(options)])
    print(
        UNIT.format(
            command=command, user=os.environ.get("USER", "root"), stop_s=options.grace_s + 30
        ),
        end="",
    )
    return EXIT_OK


UNIT = """\
# finetender-node unit | sudo tee /etc/systemd/system/finetender-node.service
# sudo systemctl daemon-reload && sudo systemctl enable --now finetender-node
# A gated base model: `hf auth login` as the user below.
# systemctl reload finetender-node hands over, installs the market's release and goes on.
[Unit]
Description=Finetender node
Wants=network-online.target
After=network-online.target

[Service]
User={user}
ExecStart={command}
ExecReload=/bin/kill -HUP $MAINPID
# What it is asked to stop with: it hands over its jobs first.
KillMode=mixed
TimeoutStopSec={stop_s:.0f}
Restart=on-failure
# Wrong settings, and a market that does not know the node: starting again changes nothing.
RestartPreventExitStatus=2 3
RestartSec=5
NoNewPrivileges=true

[Install]
WantedBy=multi-user.target
"""


if __name__ == "__main__":
    sys.exit(main())
