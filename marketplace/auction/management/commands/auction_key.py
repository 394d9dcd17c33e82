"""``manage.py auction_key [--rotate]``: the key that signs heads and receipts."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from marketplace.accounts.operator_command import OperatorCommand
from marketplace.auction.witnesses import keys
from marketplace.common import clock


class Command(OperatorCommand):
    help = "List the market's public keys; --rotate replaces the private key first."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--rotate", action="store_true", help="make a new key, end the old one")

    def handle(self, *_args: Any, **options: Any) -> None:
        if options["rotate"]:
            keys.rotate_signing_key(now=clock.now())
        else:
            keys.load_signing_key(now=clock.now())
        for key in keys.list_public_keys():
            state = "in use" if key.retired_at is None else f"until {key.retired_at.isoformat()}"
            self.stdout.write(f"{key.public_key} from {key.created_at.isoformat()}, {state}")
