"""What machines rented elsewhere have in common: their tag, their image, how they join."""

from __future__ import annotations

import ipaddress
import re
from importlib import import_module
from types import ModuleType
from urllib.parse import urlsplit

from django.conf import settings

from marketplace.tiers.provisioning import BackendFault

#: The node's one-time join token, in its environment.
TOKEN_VARIABLE = "FINETENDER_JOIN_TOKEN"  # noqa: S105
#: Where ``docker/worker.Dockerfile`` puts the node's code.
WORKDIR = "/app"


def import_client(name: str) -> ModuleType:
    """A cloud's client library, imported only where it is used: importing one takes seconds.

    Raises
    ------
    BackendFault
        It is not installed; the message says how to install it.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise BackendFault(
            f"{name.split('.', maxsplit=1)[0]!r} is not installed ({error}); "
            "run: pip install '.[cloud]'."
        ) from error


def get_market_tag() -> str:
    """Tells this market's machines from those of others in the same cloud account."""
    named = settings.TIERS_TAG or urlsplit(settings.PUBLIC_URL).netloc
    return re.sub(r"[^a-z0-9]+", "-", named.lower()).strip("-")[:20].rstrip("-") or "market"


#: The node's account in the image; what the cloud starts as root becomes it.
NODE_UID = 10001
AS_NODE = (
    *("setpriv", f"--reuid={NODE_UID}", f"--regid={NODE_UID}"),
    *("--clear-groups", "--no-new-privs"),
    # Models are kept there; root's home is closed to it.
    *("env", "HOME=/tmp"),
)


def join_command(*, machine_id: str, market_url: str) -> tuple[str, ...]:
    """What the machine runs; the token is not in it, since others can read a command line."""
    return (
        *("python", "-m", "workers", "join", "--run", "--quick"),
        *("--url", market_url, "--name", machine_id, "--state-dir", "/tmp/finetender"),  # noqa: S108
    )


def list_secrets(join_secret: str) -> dict[str, str]:
    """Secrets in the environment of a rented machine's process."""
    hub = {"HF_TOKEN": settings.HF_TOKEN} if settings.HF_TOKEN else {}
    return {TOKEN_VARIABLE: join_secret, **hub}


def check_can_join(*, image: str, market_url: str) -> None:
    """Refuse to rent a machine that could never join.

    Raises
    ------
    BackendFault
        There is no image for it, or the market's address means something else there.
    """
    if not image:
        raise BackendFault(
            "Set TIERS_WORKER_IMAGE to an image built from docker/worker.Dockerfile "
            "(--target rented) that the "
            "cloud can pull."
        )
    host = urlsplit(market_url).hostname or ""
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost" or host.endswith(".localhost")
    if local:
        raise BackendFault(
            f"No machine elsewhere can reach {market_url}; set PUBLIC_URL to a public address."
        )
