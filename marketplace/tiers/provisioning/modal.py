"""Serverless machines of Modal: one sandbox each, found by its tags.

Written against modal 1.6.4. Modal has no call that tells its prices, so what is offered is a
setting. A sandbox's name is unique among the running ones of the market's app. So a second launch
of the same machine fails with an error that means "it is there".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from marketplace.common.errors import UserError
from marketplace.common.money import to_micros
from marketplace.fleet.models import Tier
from marketplace.tiers.provisioning import BackendFault, ListedMachine, MachineOffer
from marketplace.tiers.provisioning.cloud import WORKDIR, check_can_join, join_command, list_secrets

#: The longest Modal lets a sandbox live; the market ends it long before.
LIFETIME_S = 24 * 3600
#: Start-up of table 3 of the Allpass paper, seconds.
BOOT_S = 3.9
#: Tags: the market that a machine belongs to, and the machine.
MARKET_TAG = "finetender-market"
MACHINE_TAG = "finetender-machine"

T = TypeVar("T")


def parse_modal_offers(words: Sequence[str]) -> tuple[MachineOffer, ...]:
    """Offers out of ``GPU=dollars an hour``, as in ``A100=2.10``.

    Raises
    ------
    BackendFault
        A word reads otherwise.
    """
    offers = []
    for word in words:
        gpu, _, price = word.partition("=")
        try:
            micros = to_micros(price)
        except UserError:
            micros = 0
        if not gpu or not micros:
            raise BackendFault(
                f"TIERS_MODAL_PRICES has {word!r}; write GPU=dollars an hour, as in A100=2.10."
            )
        offers.append(MachineOffer(gpu, Tier.SERVERLESS, micros, BOOT_S))
    return tuple(offers)


@dataclass(frozen=True, slots=True)
class ModalBackend:
    #: Module ``modal``.
    modal: Any
    #: Of this market; see ``get_market_tag``.
    tag: str
    image: str
    offered: tuple[MachineOffer, ...]

    @property
    def name(self) -> str:
        return "modal"

    def offers(self) -> tuple[MachineOffer, ...]:
        return self.offered

    def launch(self, *, machine_id: str, offer: str, market_url: str, join_secret: str) -> None:
        check_can_join(image=self.image, market_url=market_url)
        if offer not in {one.name for one in self.offered}:
            raise BackendFault(f"The offer {offer!r} is gone.")

        def start() -> None:
            try:
                self.modal.Sandbox.create(
                    *join_command(machine_id=machine_id, market_url=market_url),
                    app=self._app(),
                    name=machine_id,
                    tags={MARKET_TAG: self.tag, MACHINE_TAG: machine_id},
                    # The image's own entrypoint would be put before the command.
                    image=self.modal.Image.from_registry(self.image).entrypoint([]),
                    workdir=WORKDIR,
                    secrets=[self.modal.Secret.from_dict(list_secrets(join_secret))],
                    gpu=offer,
                    timeout=LIFETIME_S,
                )
            except self.modal.exception.AlreadyExistsError:
                return

        self._call(start)

    def machines(self) -> tuple[ListedMachine, ...]:
        """Modal does not tell a container that starts from one that runs: all count as up."""
        return self._call(
            lambda: tuple(
                ListedMachine(sandbox.get_tags()[MACHINE_TAG], is_ready=True)
                for sandbox in self._sandboxes({MARKET_TAG: self.tag})
            )
        )

    def terminate(self, machine_id: str) -> None:
        def end() -> None:
            for sandbox in self._sandboxes({MARKET_TAG: self.tag, MACHINE_TAG: machine_id}):
                sandbox.terminate()

        self._call(end)

    def _app(self) -> Any:
        return self.modal.App.lookup(f"finetender-{self.tag}", create_if_missing=True)

    def _sandboxes(self, tags: dict[str, str]) -> list[Any]:
        return list(self.modal.Sandbox.list(app_id=self._app().app_id, tags=tags))

    def _call(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except self.modal.exception.Error as error:
            raise BackendFault(f"Modal: {error}") from error
