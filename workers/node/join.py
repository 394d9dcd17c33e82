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
from importlib.metadata import version
from pathlib import Path

from workers.node.credentials import Credentials, NodeSettingsError, StateDir, save_credentials
from workers.node.devices import choose_device
from workers.node.market_client import MarketClient, MarketError, Patience
from workers.node.process import add_run_arguments, quiet_library_logs, run
from workers.protocol import (
    PATH_JOIN,
    PATH_JOIN_MODELS,
    PROTOCOL_VERSION,
    BaseModelRef,
    JoinModelsReply,
    JoinModelsRequest,
    JoinReply,
    JoinRequest,
    NodeFacts,
    ProtocolError,
    dumps,
    loads,
)

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
    add_run_arguments(parser)


def join(options: argparse.Namespace) -> int:
    """Self-test, registration, credentials; then the node itself with ``--run``."""
    logging.basicConfig(
        level=options.log_level.upper(), format="%(levelname)s %(name)s: %(message)s"
    )
    quiet_library_logs()
    try:
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
        Nothing was stored.
    """
    if not options.token:
        raise NodeSettingsError(f"Pass the join token with --token, or set {TOKEN_VARIABLE}.")
    state = StateDir(options.state_dir)
    # Before the token is used up: the credentials must have a place to go.
    state.prepare()
    if options.memory_gb is not None and not 0 < options.memory_gb < float("inf"):
        raise NodeSettingsError("--memory-gb must be above 0.")
    name = options.name or build_default_name()
    with MarketClient(options.url, patience=_PATIENCE) as client:
        models = client.post(
            PATH_JOIN_MODELS, JoinModelsRequest(options.token), JoinModelsReply
        ).base_models
        facts = load_known_facts(options.measured, device=options.device, base_models=models)
        if facts is None:
            facts = _measure(options, models)
            save_facts(options.measured, facts)
        elif options.memory_gb is not None:
            facts = replace(facts, memory_gb=round(options.memory_gb, 3))
        reply = client.post(PATH_JOIN, JoinRequest(options.token, name, facts), JoinReply)
    credentials = Credentials(
        market_url=options.url,
        name=name,
        node_id=reply.node_id,
        api_token=reply.api_token,
        heartbeat_every_s=reply.heartbeat_every_s,
        base_models=reply.base_models,
        device=options.device or facts.device,
        memory_gb=facts.memory_gb,
    )
    save_credentials(state, credentials)
    return credentials


def _measure(options: argparse.Namespace, models: Sequence[BaseModelRef]) -> NodeFacts:
    # Torch takes seconds to import; a machine that was measured before joins without it.
    from workers.node.self_test import (
        CASES,
        QUICK_CASES,
        WORK_CASES,
        measure_node,
    )
    from workers.training.faults import TrainingFault

    device = choose_device(options.device)
    print(f"Measuring this machine ({device}).", flush=True)
    try:
        return measure_node(
            device=device,
            base_models=models,
            memory_gb=options.memory_gb,
            cases=QUICK_CASES if options.quick else CASES,
            work_cases=() if options.quick else WORK_CASES,
            say=lambda line: print(f"  {line}", flush=True),
        )
    except TrainingFault as fault:
        raise NodeSettingsError(str(fault)) from fault


def load_known_facts(
    path: Path | None, *, device: str | None, base_models: Sequence[BaseModelRef]
) -> NodeFacts | None:
    """What a file says of this machine; ``None`` where it is of another, or says nothing.

    Parameters
    ----------
    device : str, optional
        ``None`` takes the one that was measured, which was the best.
    """
    if path is None or not path.exists():
        return None
    try:
        facts = loads(NodeFacts, path.read_bytes())
    except (OSError, ProtocolError):
        return None
    wanted = facts.device if device is None else device.partition(":")[0]
    # Of torch's version, the package knows the release only.
    release = facts.torch_version.partition("+")[0]
    there = (facts.hostname, facts.device, release, facts.protocol_version)
    here = (socket.gethostname(), wanted, _torch_release(), PROTOCOL_VERSION)
    measured = {speed.base_model for speed in facts.speeds}
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
