"""``python -m workers join --also``: a further node on each GPU, for another zone at other hours.

The nodes of a GPU have credentials and a state directory each; the supervisor runs the one whose
turn it is. A single node's state directory becomes a machine's first.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from workers.node.credentials import NodeSettingsError, StateDir, load_credentials
from workers.node.machine import MachineNodes, Member, join_members, load_machine, save_machine
from workers.node.process import lock_state_dir

#: Of the node that was alone in its state directory.
_FIRST = "node0"


def join_neighbours(options: argparse.Namespace) -> int:
    """Join a node beside those of every GPU; the same command again joins what is missing.

    Raises
    ------
    NodeSettingsError
        Nothing has joined here yet, or the nodes run.
    """
    state = StateDir(options.state_dir)
    state.prepare()
    with lock_state_dir(state):
        machine = load_machine(state) or _plan_adoption(state)
        adopt_single_node(state, machine)
        added = [one for one in machine.members if one.turns_with and not _has_joined(state, one)]
        if not added:
            added = _plan_neighbours(state, machine, name=options.name)
            machine = MachineNodes((*machine.members, *added))
            save_machine(state, machine)
        return join_members(options, state, added)


def adopt_single_node(state: StateDir, machine: MachineNodes) -> None:
    """Move the files of a node that was alone into its own folder; done before, nothing changes.

    Call while holding the state directory.
    """
    if not state.credentials.exists():
        return
    if _has_joined(state, machine.members[0]):
        raise NodeSettingsError(
            f"{state.credentials} is of no node of this machine. Move it elsewhere."
        )
    folder = state.path / machine.members[0].folder
    folder.mkdir(mode=0o700, exist_ok=True)
    # The credentials last: as long as they are here, this is not done.
    for path in (state.cache, state.work, state.outbox, state.credentials):
        if path.exists():
            target = folder / path.name
            if target.is_dir():
                continue
            path.rename(target)


def _plan_adoption(state: StateDir) -> MachineNodes:
    held = load_credentials(state)
    machine = MachineNodes((Member(held.name, _FIRST, held.device),))
    save_machine(state, machine)
    return machine


def _plan_neighbours(state: StateDir, machine: MachineNodes, *, name: str | None) -> list[Member]:
    """One more node for each GPU whose first one has joined."""
    firsts = [one for one in machine.members if not one.turns_with and _has_joined(state, one)]
    if not firsts:
        raise NodeSettingsError(
            f"No node of {state.path} has joined. Join the first one without --also."
        )
    if name is not None and len(firsts) > 1:
        raise NodeSettingsError("--name names one node; this machine has several GPUs.")
    added = []
    for first in firsts:
        number = 2 + sum(one.turns_with == first.folder for one in machine.members)
        added.append(
            replace(
                first,
                name=name or f"{first.name[:60]}-{number}",
                folder=f"{first.folder}-{number}",
                turns_with=first.folder,
            )
        )
    return added


def _has_joined(state: StateDir, member: Member) -> bool:
    return StateDir(state.path / member.folder).credentials.exists()
