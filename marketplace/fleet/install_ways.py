"""The lines that list a machine: by Python's package, or by a container image."""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings

from marketplace.fleet.models import JoinToken
from marketplace.fleet.releases import IMAGE_CONTEXT, WHEEL, build_pip_command, find_install_file

_IMAGE = "finetender-node"


@dataclass(frozen=True, slots=True)
class InstallWay:
    title: str
    #: Shell commands.
    lines: str


def list_install_ways(
    token: JoinToken, secret: str, *, is_shared: bool = False
) -> list[InstallWay]:
    """Those that this market has files for; the join secret is in them.

    ``is_shared``: on GPUs that have a node already, which must be stopped meanwhile.
    """
    if is_shared:
        return _list_ways_beside(secret)
    nodes = token.uses_left
    gpus = f" --gpus {nodes}" if nodes > 1 else ""
    join = f"join --url {settings.PUBLIC_URL}{gpus} --run"
    is_served = find_install_file(WHEEL) is not None
    pip = "~/finetender/bin/pip"
    install = build_pip_command(pip) if is_served else f"{pip} install ./workers"
    ways = [
        InstallWay(
            "With Python 3.11 or newer"
            if is_served
            else "With Python 3.11 or newer, in a copy of this market's source",
            f"python3 -m venv ~/finetender && {install}\n"
            f"FINETENDER_JOIN_TOKEN={secret} ~/finetender/bin/finetender-node {join}",
        )
    ]
    if settings.NODE_IMAGE or find_install_file(IMAGE_CONTEXT) is not None:
        image = settings.NODE_IMAGE or _IMAGE
        get = (
            f"docker pull {image}"
            if settings.NODE_IMAGE
            else f"docker build -t {image} {settings.PUBLIC_URL}/install/{IMAGE_CONTEXT}"
        )
        ways.append(
            InstallWay(
                "With Docker and NVIDIA's container toolkit",
                f"{get}\n"
                "docker run -d --name finetender --restart unless-stopped --gpus all "
                f"-e FINETENDER_JOIN_TOKEN={secret} -v finetender:/state "
                f"{image} {join} --if-new --state-dir /state",
            )
        )
    return ways


def _list_ways_beside(secret: str) -> list[InstallWay]:
    join = f"join --url {settings.PUBLIC_URL} --also"
    image = settings.NODE_IMAGE or _IMAGE
    return [
        InstallWay(
            "Where the node runs as a service",
            "sudo systemctl stop finetender-node\n"
            f"FINETENDER_JOIN_TOKEN={secret} ~/finetender/bin/finetender-node {join}\n"
            "sudo systemctl start finetender-node",
        ),
        InstallWay(
            "Where it runs in Docker",
            "docker stop finetender\n"
            f"docker run --rm --gpus all -e FINETENDER_JOIN_TOKEN={secret} "
            f"-v finetender:/state {image} {join} --state-dir /state\n"
            "docker start finetender",
        ),
    ]
