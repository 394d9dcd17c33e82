"""``manage.py tiers_set ZONE --serverless N --serverful N``: machines of the market's own."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from marketplace.accounts.operator_command import OperatorCommand
from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.fleet.models import Provider
from marketplace.fleet.selectors import get_open_zone
from marketplace.tiers.services import TierSettings, ensure_own_provider, set_zone_tiers

#: Options that are also fields of ``ZoneTiers``.
PAUSES = (
    ("checkpoint-s", "seconds a job pauses to write a checkpoint"),
    ("restore-s", "seconds from a ready machine to the next step"),
    ("probe-s", "seconds on serverless until a job's speed is known"),
    ("idle-s", "idle seconds after which a machine is given back"),
    ("delay-usd-per-h", "dollars that an hour less of delay is worth"),
)


class Command(OperatorCommand):
    help = "Let the market rent machines of its own in a zone, up to these counts."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("zone", help="name of the zone")
        parser.add_argument(
            "--provider",
            help="organisation that lists the machines' nodes (default: one of the market's own)",
        )
        parser.add_argument("--serverless", type=int, default=1, help="most serverless machines")
        parser.add_argument("--serverful", type=int, default=0, help="most other machines")
        parser.add_argument("--backend", default="local", help="local, skypilot")
        parser.add_argument(
            "--serverless-backend", default=None, help="local, modal (default: as --backend)"
        )
        for name, words in PAUSES:
            parser.add_argument(f"--{name}", type=float, help=f"{words}; left as it is by default")
        parser.add_argument(
            "--serverless-first",
            action="store_true",
            help="begin no job on a worker: every job that waits begins on serverless",
        )
        parser.add_argument(
            "--sell-offers",
            action="store_true",
            help="put what could be rented on sale; rent it when it is sold",
        )
        parser.add_argument("--off", action="store_true", help="rent no more")

    def handle(self, *_args: Any, **options: Any) -> None:
        try:
            set_zone_tiers(
                zone=get_open_zone(options["zone"]),
                provider=_provider(options["provider"]),
                settings=_read_settings(options),
            )
        except UserError as refusal:
            raise CommandError(refusal.message) from refusal
        state = "off" if options["off"] else "on"
        self.stdout.write(f"Tiers of zone {options['zone']}: {state}.")


def _read_settings(options: dict[str, Any]) -> TierSettings:
    names = [words.replace("-", "_") for words, _ in PAUSES]
    return TierSettings(
        serverless_cap=options["serverless"],
        serverful_cap=options["serverful"],
        backend=options["backend"],
        serverless_backend=options["serverless_backend"],
        is_on=not options["off"],
        starts_directly=not options["serverless_first"],
        sells_offers=options["sell_offers"],
        figures={name: options[name] for name in names if options[name] is not None},
    )


def _provider(name: str | None) -> Provider:
    if name is None:
        return ensure_own_provider(now=clock.now())
    providers = Provider.objects.filter(organisation__name=name)
    if providers.count() != 1:
        raise CommandError(f"Not exactly one provider is named {name!r}.")
    return providers.get()
