"""Serverful machines from any cloud SkyPilot knows, one SkyPilot cluster each.

Written against ``sky.client.sdk`` of skypilot 0.14.1. Its calls answer with a request of
SkyPilot's API server; launching and tearing down are left to go on there, since they
take minutes. A launch that has no cluster yet is found among the open requests, so
a machine is listed from the moment it was asked for. The cluster's name is the tag.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from marketplace.fleet.models import Tier
from marketplace.tiers.provisioning import BackendFault, ListedMachine, MachineOffer
from marketplace.tiers.provisioning.cloud import (
    AS_NODE,
    WORKDIR,
    check_can_join,
    join_command,
    list_secrets,
)

#: Clouds that resell other people's machines; all others count as conventional.
MARKETPLACES = frozenset(
    {"cudo", "fluidstack", "lambda", "paperspace", "primeintellect", "runpod", "shadeform", "vast"}
)
#: Start-up of table 3 of the Allpass paper, seconds.
BOOT_S = {Tier.MARKETPLACE: 36.0, Tier.CONVENTIONAL: 256.0}
#: Seconds for which prices are not asked again.
PRICES_KEPT_S = 300.0
LAUNCHING = "launch"
ENDING = "down"


@dataclass(slots=True)
class SkyPilotBackend:
    #: Modules ``sky`` and ``sky.client.sdk``.
    sky: Any
    sdk: Any
    #: Of this market; see ``get_market_tag``.
    tag: str
    image: str
    #: GPU types to rent, in SkyPilot's spelling.
    gpus: Sequence[str]
    clock: Callable[[], float] = time.monotonic
    _offers: tuple[MachineOffer, ...] = field(default=(), init=False)
    _asked_at: float | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        return "skypilot"

    def offers(self) -> tuple[MachineOffer, ...]:
        """One GPU of each wanted type in each enabled cloud, at that cloud's lowest price."""
        now = self.clock()
        if self._asked_at is None or now - self._asked_at > PRICES_KEPT_S:
            self._offers = self._prices()
            self._asked_at = now
        return self._offers

    def _prices(self) -> tuple[MachineOffer, ...]:
        clouds = [str(cloud).lower() for cloud in self._call_and_wait(self.sdk.enabled_clouds)]
        if not clouds:
            raise BackendFault("SkyPilot has no cloud enabled; run: sky check.")
        listed = self._call_and_wait(
            self.sdk.list_accelerators, gpus_only=True, quantity_filter=1, clouds=clouds
        )
        lowest: dict[tuple[str, str], Any] = {}
        for gpu in self.gpus:
            for one in listed.get(gpu, ()):
                key = (gpu, str(one.cloud).lower())
                # A price that is not a number is a machine that is not sold on demand.
                if math.isfinite(one.price) and (
                    key not in lowest or one.price < lowest[key].price
                ):
                    lowest[key] = one
        return tuple(_offer(gpu, cloud, one) for (gpu, cloud), one in sorted(lowest.items()))

    def launch(self, *, machine_id: str, offer: str, market_url: str, join_secret: str) -> None:
        check_can_join(image=self.image, market_url=market_url)
        if offer not in {one.name for one in self.offers()}:
            raise BackendFault(f"The offer {offer!r} is gone.")
        if machine_id in {one.machine_id for one in self.machines()}:
            return
        gpu, infra = offer.split("@", maxsplit=1)
        command = join_command(machine_id=machine_id, market_url=market_url)
        task = self._call(
            self.sky.Task,
            name=machine_id,
            # SkyPilot needs an image that runs as root; the node does not.
            run=f"cd {WORKDIR} && exec {shlex.join([*AS_NODE, *command])}",
            # Not in ``envs``: SkyPilot shows those to all who may see the cluster.
            secrets=list_secrets(join_secret),
            resources=self._call(
                self.sky.Resources,
                infra=infra,
                accelerators={gpu: 1},
                image_id=f"docker:{self.image}",
                labels={"finetender-market": self.tag},
            ),
        )
        self._call(self.sdk.launch, task, cluster_name=self._cluster(machine_id))

    def machines(self) -> tuple[ListedMachine, ...]:
        up = self.sky.ClusterStatus.UP
        # Asks the clouds themselves where machines can vanish by themselves.
        clusters = self._call_and_wait(self.sdk.status, refresh=self.sky.StatusRefreshMode.AUTO)
        ready = {one.name: one.status == up for one in clusters}
        for request in self._open_requests(LAUNCHING):
            ready.setdefault(request.cluster_name, False)
        prefix = self._cluster("")
        return tuple(
            ListedMachine(name.removeprefix(prefix), is_ready=is_up)
            for name, is_up in sorted(ready.items())
            if name.startswith(prefix)
        )

    def terminate(self, machine_id: str) -> None:
        cluster = self._cluster(machine_id)
        launching = [
            one.request_id for one in self._open_requests(LAUNCHING) if one.cluster_name == cluster
        ]
        if launching:
            self._call_and_wait(self.sdk.api_cancel, launching, silent=True)
        known = self._call_and_wait(self.sdk.status, cluster_names=[cluster])
        asked = any(one.cluster_name == cluster for one in self._open_requests(ENDING))
        if known and not asked:
            self._call(self.sdk.down, cluster)

    def _cluster(self, machine_id: str) -> str:
        return f"ft-{self.tag}-{machine_id}"

    def _open_requests(self, name: str) -> list[Any]:
        """Requests that the API server has not finished."""
        return [
            one
            for one in self._call(self.sdk.api_status)
            if one.name.removeprefix("sky.") == name and one.cluster_name
        ]

    def _call_and_wait(self, call: Callable[..., Any], *terms: Any, **more: Any) -> Any:
        return self._call(self.sdk.get, self._call(call, *terms, **more))

    def _call(self, call: Callable[..., Any], *terms: Any, **more: Any) -> Any:
        try:
            return call(*terms, **more)
        # Its exceptions share no class of their own.
        except Exception as error:
            raise BackendFault(f"SkyPilot: {error}") from error


def _offer(gpu: str, cloud: str, one: Any) -> MachineOffer:
    tier = Tier.MARKETPLACE if cloud in MARKETPLACES else Tier.CONVENTIONAL
    infra = f"{cloud}/{one.region}" if one.region else cloud
    return MachineOffer(f"{gpu}@{infra}", tier, math.ceil(one.price * 1_000_000), BOOT_S[tier])
