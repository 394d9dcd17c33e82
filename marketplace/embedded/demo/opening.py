"""The demo's small market: seeded, and its nodes brought online."""

from __future__ import annotations

import json
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marketplace.embedded.demo.api_client import api_client
from marketplace.embedded.house import House
from marketplace.embedded.servers import ServiceFailed, write_private

#: Seconds: a slot of the demo's zone, short enough to watch several pass.
SLOT_S = 5
#: For a machine that is full of other work; a node that dies is reported at once.
NODES_WITHIN_S = 600.0


@dataclass(frozen=True, slots=True)
class DemoNode:
    """A node of the demo's provider, which is a process on this machine."""

    name: str
    #: Folder of its credentials, and name of its program.
    folder: str
    #: Dollars a slot.
    ask: str


NODE = DemoNode(name="local-cpu", folder="node", ask="0.0015")
#: At different asks, so that the price of a nearer deadline has steps.
NODES = (
    NODE,
    DemoNode(name="local-cpu-2", folder="node-2", ask="0.0024"),
    DemoNode(name="local-cpu-3", folder="node-3", ask="0.0039"),
)


def seed(
    running: House, *, nodes: Sequence[DemoNode], say: Callable[[str], None]
) -> dict[str, Any]:
    """People, wallets, a zone, and tokens for the nodes that have not joined yet."""
    say("Seeding a small market")
    asks = [node.ask for node in nodes if not _has_joined(running, node)]
    return json.loads(
        running.manage(
            "seed_demo",
            # One word: a password may begin with a dash.
            f"--password={_ensure_password(running.data_dir / 'password')}",
            *("--slot-s", str(SLOT_S), "--join-asks", *asks, "--json"),
        )
    )


def bring_nodes(
    running: House,
    seeded: dict[str, Any],
    *,
    nodes: Sequence[DemoNode],
    say: Callable[[str], None],
) -> None:
    """Let nodes join that have not, start all of them, and wait until the first is on sale."""
    missing = [node for node in nodes if not _has_joined(running, node)]
    tokens = dict(zip((node.name for node in missing), seeded["join_tokens"], strict=True))
    if tokens:
        say("A node on this machine joins: self-test, a short training run, registration")
    first, *others = nodes
    if first in missing:
        _join(running, first, tokens[first.name])
    say(f"Starting {first.name}")
    running.stack.start(first.folder)
    # The first has measured the machine; the others are the same one and join while it loads.
    for node in others:
        if node in missing:
            _join(running, node, tokens[node.name])
    _wait_until_on_sale(running, seeded, {first.name})
    if others:
        say("Starting " + ", ".join(node.name for node in others) + " beside it")
        running.stack.start(*(node.folder for node in others))


def _join(running: House, node: DemoNode, token: str) -> None:
    credentials = running.data_dir / node.folder / "node.json"
    if credentials.exists():
        # The same market and the same node; only its port is another one this time.
        held = json.loads(credentials.read_text()) | {"market_url": running.url}
        write_private(credentials, json.dumps(held))
    running.run(
        *(sys.executable, "-m", "workers", "join", "--quick"),
        *("--url", running.url, "--name", node.name, "--token", token),
        *("--state-dir", str(running.data_dir / node.folder)),
        *("--measured", str(running.data_dir / "measured.json")),
    )
    write_private(_joined_to(running, node), running.url)


def _has_joined(running: House, node: DemoNode) -> bool:
    path = _joined_to(running, node)
    return path.exists() and path.read_text() == running.url


def _joined_to(running: House, node: DemoNode) -> Path:
    return running.data_dir / node.folder / "joined-to"


def _wait_until_on_sale(running: House, seeded: dict[str, Any], names: set[str]) -> None:
    deadline = time.monotonic() + NODES_WITHIN_S
    with api_client(running, seeded["api_key"]) as market:
        while True:
            running.stack.check()
            answer = market.get(f"/api/market/{seeded['zone']}")
            if answer.status_code == 200:
                sold = {node["name"] for node in answer.json()["nodes"] if any(node["on_sale"])}
                if names <= sold:
                    return
            if time.monotonic() > deadline:
                raise ServiceFailed(running.stack.failure("node"))
            time.sleep(0.2)


def _ensure_password(path: Path) -> str:
    """One password for the demo's people, made on the first start."""
    if not path.exists():
        write_private(path, secrets.token_urlsafe(9))
    return path.read_text()
