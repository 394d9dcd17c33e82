"""``python -m workers COMMAND``: each command is a module that is imported when it is asked for."""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec

#: Command, the module whose ``main(arguments)`` it is, and what it does.
COMMANDS = {
    "join": ("workers.node.join", "test this machine and register it with a market"),
    "run": ("workers.node.run", "train what the market plans for this node"),
    "update": ("workers.node.update", "hand over, install the market's release, go on as that"),
    "unit": ("workers.node.unit", "print a systemd unit for this node"),
    "train": ("workers.runtime.train_command", "train jobs of a YAML file, without a market"),
    "shape": ("workers.runtime.shape_command", "print what a zone needs to know of a base model"),
    "prepare": ("workers.preparation.command", "clean a data set and report every change"),
    "calibrate": ("workers.node.calibrate", "measure this device's speed table"),
    "bench": ("workers.bench.__main__", "measure the fused engine against stock PEFT"),
}
#: Commands whose modules the package of a node leaves out.
FROM_SOURCE = frozenset({"bench"})


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in {"-h", "--help"}:
        print("usage: python -m workers COMMAND [OPTIONS]\n")
        for name, (_, words) in COMMANDS.items():
            print(f"  {name:10} {words}")
        return 0 if arguments else 2
    name, *rest = arguments
    if name not in COMMANDS:
        print(f"There is no command {name}; choose {', '.join(COMMANDS)}.", file=sys.stderr)
        return 2
    if name in FROM_SOURCE and not find_spec(COMMANDS[name][0].rpartition(".")[0]):
        print(f"{name} is in Finetender's source tree and not in this package.", file=sys.stderr)
        return 2
    return importlib.import_module(COMMANDS[name][0]).main(rest)


def run_command() -> int:
    """The installed ``finetender-node`` command."""
    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(run_command())
