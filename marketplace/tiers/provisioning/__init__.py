"""Where machines come from, behind one small interface."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from django.conf import settings

from marketplace.common.errors import MarketFault


class BackendFault(MarketFault):
    """A backend did not do what it was asked; the next reconcile puts it right."""


@dataclass(frozen=True, slots=True)
class MachineOffer:
    """A kind of machine that can be rented now."""

    name: str
    #: ``marketplace.fleet.models.Tier``.
    tier: str
    price_micros_per_h: int
    #: Expected seconds from request to a node in the market, its self-test not included.
    boot_s: float


@dataclass(frozen=True, slots=True)
class ListedMachine:
    """A machine that its backend runs, and bills, now."""

    machine_id: str
    #: Whether it is up; a machine that is not still boots.
    is_ready: bool


class Backend(Protocol):
    """What every source of machines can do. Every call may be made twice."""

    @property
    def name(self) -> str: ...

    def offers(self) -> tuple[MachineOffer, ...]:
        """What can be rented now."""
        ...

    def launch(self, *, machine_id: str, offer: str, market_url: str, join_secret: str) -> None:
        """Start a machine; its node joins the market. The id names it from now on.

        Raises
        ------
        BackendFault
            Nothing was started.
        """
        ...

    def machines(self) -> tuple[ListedMachine, ...]:
        """Everything that runs here for this market, known to it or not."""
        ...

    def terminate(self, machine_id: str) -> None:
        """Begin to end a machine, or go on; one that is gone is no error."""
        ...


def _local() -> Backend:
    from marketplace.tiers.provisioning.local import LocalBackend, list_local_offers

    return LocalBackend(folder=settings.DATA_DIR / "machines", offers=list_local_offers())


@cache
def _skypilot() -> Backend:
    from marketplace.tiers.provisioning.cloud import get_market_tag, import_client
    from marketplace.tiers.provisioning.skypilot import SkyPilotBackend

    return SkyPilotBackend(
        sky=import_client("sky"),
        sdk=import_client("sky.client.sdk"),
        tag=get_market_tag(),
        image=settings.TIERS_WORKER_IMAGE,
        gpus=settings.TIERS_SKYPILOT_GPUS,
    )


@cache
def _modal() -> Backend:
    from marketplace.tiers.provisioning.cloud import get_market_tag, import_client
    from marketplace.tiers.provisioning.modal import ModalBackend, parse_modal_offers

    return ModalBackend(
        modal=import_client("modal"),
        tag=get_market_tag(),
        image=settings.TIERS_WORKER_IMAGE,
        offered=parse_modal_offers(settings.TIERS_MODAL_PRICES),
    )


#: The backend that runs machines as processes of this host.
ON_THIS_MACHINE = "local"
#: Makers of backends by name.
BACKENDS: dict[str, Callable[[], Backend]] = {
    ON_THIS_MACHINE: _local,
    "modal": _modal,
    "skypilot": _skypilot,
}


def get_backend(name: str) -> Backend:
    """The backend of a name.

    Raises
    ------
    BackendFault
        There is none; the message names those there are.
    """
    if name not in BACKENDS:
        raise BackendFault(f"No backend {name!r}; there are: {', '.join(sorted(BACKENDS))}.")
    return BACKENDS[name]()
