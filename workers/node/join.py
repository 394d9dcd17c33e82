"""``python -m workers join``: measure this machine and list it with a market."""

from __future__ import annotations

import argparse
import logging
import os
import re
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

from workers.node.credentials import (
    Credentials,
    NodeSettingsError,
    StateDir,
    load_credentials,
    save_credentials,
)
from workers.node.devices import choose_device, read_driver_version
from workers.node.join_steps import JoinSteps
from workers.node.machine import find_neighbour, join_machine, load_machine
from workers.node.market_client import MarketClient, MarketError, MarketRefusal, Patience
from workers.node.neighbours import join_neighbours
from workers.node.process import add_run_arguments, lock_state_dir, quiet_library_logs
from workers.node.run import run
from workers.protocol.job_spec import BaseModelRef
from workers.protocol.joining import PROTOCOL_LEAST, JoinStep, list_names
from workers.protocol.messages import (
    PATH_JOIN,
    PATH_JOIN_MODELS,
    PROTOCOL_VERSION,
    JoinModelsReply,
    JoinModelsRequest,
    JoinReply,
    JoinRequest,
)
from workers.protocol.node_facts import NodeFacts
from workers.protocol.wire import ProtocolError, dumps, loads

#: Holds the join token where a command line would show it to every user of the machine.
TOKEN_VARIABLE = "FINETENDER_JOIN_TOKEN"  # noqa: S105
EXIT_OK = 0
EXIT_REFUSED = 1
_PATIENCE = Patience(total_s=30.0)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m workers join", description=__doc__)
    add_join_arguments(parser)
    return join(parser.parse_args(arguments))


def add_join_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", required=True, help="address of the market")
    parser.add_argument(
        "--token",
        default=os.environ.get(TOKEN_VARIABLE),
        help=f"one-time token from the provider console (default: ${TOKEN_VARIABLE})",
    )
    parser.add_argument("--name", default=None, help="the node's name (default: the host's)")
    parser.add_argument("--device", default=None, help="cpu, cuda or cuda:N (default: the best)")
    parser.add_argument(
        "--gpus",
        default=None,
        metavar="COUNT",
        help="join this number of GPUs, all of them, or those numbered as in 0-3,6; each as a node"
        " of its own",
    )
    parser.add_argument(
        "--group",
        type=int,
        default=1,
        metavar="SIZE",
        help="with --gpus: so many GPUs are one node, for a base model that is larger than a GPU",
    )
    parser.add_argument(
        "--also",
        action="store_true",
        help="join a further node on each GPU that has joined here, for another zone at other"
        " hours; stop the node first",
    )
    parser.add_argument(
        "--memory-gb", type=float, default=None, help="memory to offer (default: most there is)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="measure three cases instead of the whole table"
    )
    parser.add_argument(
        "--measured",
        type=Path,
        default=None,
        help="file with what was measured of this very machine before; written when it says"
        " nothing of these models, so that several nodes of a machine measure once",
    )
    parser.add_argument("--run", action="store_true", help="go on to run the node")
    parser.add_argument(
        "--if-new",
        action="store_true",
        help="run at once where this state directory has joined already, as after a restart",
    )
    add_run_arguments(parser)


def join(options: argparse.Namespace) -> int:
    """Self-test, registration, credentials; then the node itself with ``--run``."""
    logging.basicConfig(
        level=options.log_level.upper(), format="%(levelname)s %(name)s: %(message)s"
    )
    quiet_library_logs()
    if options.if_new and has_joined(StateDir(options.state_dir)):
        return run(options)
    try:
        if options.also:
            check_token(options)
            status = join_neighbours(options)
            return run(options) if options.run and status == EXIT_OK else status
        if options.group != 1 and options.gpus is None:
            raise NodeSettingsError("--group needs --gpus: which GPUs are to be grouped.")
        if options.gpus is not None:
            check_token(options)
            status = join_machine(options, name=options.name or build_default_name())
            return run(options) if options.run and status == EXIT_OK else status
        credentials = register(options)
    except (MarketError, NodeSettingsError) as error:
        print(error, file=sys.stderr)
        return EXIT_REFUSED
    print(f"Joined as {credentials.name} ({credentials.node_id}).", flush=True)
    return run(options) if options.run else EXIT_OK


def register(options: argparse.Namespace) -> Credentials:
    """Ask what to measure, measure it, join, and store what the market gave.

    Raises
    ------
    MarketError, NodeSettingsError
        Nothing was stored, and no credentials that were here before are changed.
    """
    check_token(options)
    state = StateDir(options.state_dir)
    if load_machine(state) is not None:
        raise NodeSettingsError(
            f"{state.path} is the state directory of a machine with nodes of its own. Join with "
            "--gpus or --also, or choose another --state-dir."
        )
    # Before the token is used up: the credentials must have a place to go.
    state.prepare()
    if options.memory_gb is not None and not 0 < options.memory_gb < float("inf"):
        raise NodeSettingsError("--memory-gb must be above 0.")
    # Held by a node that runs: its credentials are not ours to replace.
    with lock_state_dir(state), MarketClient(options.url, patience=_PATIENCE) as client:
        held = find_held_credentials(state, url=options.url, name=options.name)
        name = held.name if held is not None else options.name or build_default_name()
        asked = JoinModelsRequest(
            options.token, PROTOCOL_LEAST, PROTOCOL_VERSION, name, socket.gethostname()
        )
        models = client.post(PATH_JOIN_MODELS, asked, JoinModelsReply).base_models
        steps = JoinSteps(client, token=options.token, name=name)
        facts = load_known_facts(
            options.measured,
            device=options.device,
            base_models=models,
            memory_gb=options.memory_gb,
        )
        if facts is None:
            facts = _measure(options, models, state=state, steps=steps)
            save_facts(options.measured, facts)
        elif options.memory_gb is not None:
            facts = replace(facts, memory_gb=round(options.memory_gb, 3))
        held_token = "" if held is None else held.api_token
        neighbour = find_neighbour(state)
        neighbour_token = "" if neighbour is None else load_credentials(neighbour).api_token
        request = JoinRequest(options.token, name, facts, held_token, neighbour_token)
        request, reply = _send_join(client, request, may_rename=options.name is None)
        if request.neighbour_token and not reply.shares_device:
            raise NodeSettingsError(
                "This market is of an earlier release, which knows of no turns on a GPU. Take "
                f"the node {request.name} away there."
            )
        credentials = _build_credentials(options, request, reply, held=held)
        save_credentials(state, credentials)
    return credentials


def check_token(options: argparse.Namespace) -> None:
    if not options.token:
        raise NodeSettingsError(f"Pass the join token with --token, or set {TOKEN_VARIABLE}.")


def has_joined(state: StateDir) -> bool:
    """Whether all of the directory's nodes have credentials."""
    machine = load_machine(state)
    # Where a further node on a GPU did not join, the first one still runs.
    folders = (
        [""]
        if machine is None
        else [member.folder for member in machine.members if not member.turns_with]
    )
    return all(StateDir(state.path / folder).credentials.exists() for folder in folders)


def find_held_credentials(state: StateDir, *, url: str, name: str | None) -> Credentials | None:
    """Those that an earlier join stored here; ``None`` where there are none.

    Raises
    ------
    NodeSettingsError
        They are of another node than is to join, which would lose them.
    """
    if not state.credentials.exists():
        return None
    try:
        held = load_credentials(state)
    except NodeSettingsError:
        # Of no use to any node: the join replaces them.
        return None
    if held.market_url.rstrip("/") != url.rstrip("/") or name not in (None, held.name):
        raise NodeSettingsError(
            f"{state.path} holds the credentials of the node {held.name} at {held.market_url}. "
            "Choose another --state-dir, or join as that node."
        )
    return held


def _send_join(
    client: MarketClient, request: JoinRequest, *, may_rename: bool
) -> tuple[JoinRequest, JoinReply]:
    """Join; a machine whose name was not chosen takes the next one that is free."""
    names = list_names(request.name) if may_rename and not request.held_token else (request.name,)
    for name in names:
        try:
            request = replace(request, name=name)
            return request, client.post(PATH_JOIN, request, JoinReply)
        except MarketRefusal as refusal:
            if refusal.code != "node_name_taken" or name == names[-1]:
                raise
    raise AssertionError("the last try either returned or raised")


def _build_credentials(
    options: argparse.Namespace,
    request: JoinRequest,
    reply: JoinReply,
    *,
    held: Credentials | None,
) -> Credentials:
    # Releases of one key go forward, whatever the market says of it now.
    known = held is not None and held.market_key == reply.market_key
    return Credentials(
        market_url=options.url,
        name=request.name,
        node_id=reply.node_id,
        api_token=reply.api_token,
        heartbeat_every_s=reply.heartbeat_every_s,
        base_models=reply.base_models,
        device=options.device or request.facts.device,
        memory_gb=request.facts.memory_gb,
        market_key=reply.market_key,
        release_serial=max(reply.release_serial, held.release_serial if held and known else 0),
    )


def _measure(
    options: argparse.Namespace,
    models: Sequence[BaseModelRef],
    *,
    state: StateDir,
    steps: JoinSteps,
) -> NodeFacts:
    # Torch takes seconds to import; a machine that was measured before joins without it.
    from workers.node.base_files import check_disk, fetch, find_missing_files
    from workers.node.self_test import CASES, QUICK_CASES, WORK_CASES, measure_node
    from workers.training.faults import TrainingFault

    with steps.step(JoinStep.DRIVER) as found:
        device = choose_device(options.device)
        driver = read_driver_version()
        found += [device, *([f"driver {driver}"] if driver else [])]
    with steps.step(JoinStep.DISK) as found:
        missing = [one for one in map(find_missing_files, models) if one is not None]
        free_gb = check_disk(state.path, missing)
        found.append(f"{free_gb:.0f} GB free")
    with steps.step(JoinStep.BASE) as found:
        for one in missing:
            size = f"{one.bytes / 1e9:.1f} GB"
            print(f"Fetching {one.ref.name}, {size}.", flush=True)
            fetch(one, tell=partial(steps.tell, detail=size))
            found.append(size)
        found += [] if missing else ["here already"]
    print(f"Measuring this machine ({device}).", flush=True)

    def say(line: str) -> None:
        print(f"  {line}", flush=True)
        steps.tell(None, line)

    with steps.step(JoinStep.SELF_TEST):
        try:
            facts = measure_node(
                device=device,
                base_models=models,
                memory_gb=options.memory_gb,
                cases=QUICK_CASES if options.quick else CASES,
                work_cases=() if options.quick else WORK_CASES,
                say=say,
            )
        except TrainingFault as fault:
            raise NodeSettingsError(str(fault)) from fault
    return replace(facts, driver=driver, disk_free_gb=round(free_gb, 1))


def load_known_facts(
    path: Path | None,
    *,
    device: str | None,
    base_models: Sequence[BaseModelRef],
    memory_gb: float | None = None,
) -> NodeFacts | None:
    """What a file says of this machine; ``None`` where it is of another, or says nothing.

    Parameters
    ----------
    device : str, optional
        ``None`` takes the one that was measured, which was the best.
    memory_gb : float, optional
        What is offered. A group that has another limit is cut in another way.
    """
    if path is None or not path.exists():
        return None
    try:
        facts = loads(NodeFacts, path.read_bytes())
    except (OSError, ProtocolError):
        return None
    wanted = facts.device if device is None else device.partition(":")[0].partition(",")[0]
    group = 1 if device is None else len(device.split(","))
    # Of torch's version, the package knows the release only.
    release = facts.torch_version.partition("+")[0]
    there = (facts.hostname, facts.device, release, facts.protocol_version)
    here = (socket.gethostname(), wanted, _torch_release(), PROTOCOL_VERSION)
    measured = {speed.base_model for speed in facts.speeds}
    if any(max(1, len(speed.parts)) != group for speed in facts.speeds):
        return None
    if group > 1 and memory_gb is not None and round(memory_gb, 3) != facts.memory_gb:
        return None
    return facts if here == there and {ref.name for ref in base_models} <= measured else None


def _torch_release() -> str:
    return version("torch").partition("+")[0]


def save_facts(path: Path | None, facts: NodeFacts) -> None:
    """Keep what was measured for the machine's other nodes; whole or not at all."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(dumps(facts))
    partial.replace(path)


def build_default_name() -> str:
    """The host's name, in the letters a node's name may have."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", socket.gethostname()).strip("-._")[:64]
    return name or "node"


if __name__ == "__main__":
    sys.exit(main())
