"""``manage.py zone_create NAME --base-model MODEL``: a new auction for a base model."""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import fields
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from marketplace.accounts.operator_command import OperatorCommand
from marketplace.common import clock
from marketplace.common.errors import UserError
from marketplace.fleet.zones import ZoneTerms, open_zone

_DTYPES = ("float32", "float16", "bfloat16")


class Command(OperatorCommand):
    help = "Open a zone: one auction for one base model and the nodes that keep it resident."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="small letters, digits and dashes, such as llama-8b")
        parser.add_argument(
            "--base-model", required=True, help="a hub id, a directory, or bundled:finetender-tiny"
        )
        parser.add_argument("--revision", help="of a model on the hub (default: the newest)")
        parser.add_argument("--slot-s", type=int, default=600, help="seconds per slot")
        parser.add_argument("--horizon-slots", type=int, default=144, help="slots on sale")
        parser.add_argument("--dtype", default="auto", choices=["auto", *_DTYPES])
        parser.add_argument("--four-bit", action="store_true", help="load the base in 4 bits")
        parser.add_argument(
            "--max-sequence-length", type=int, help="tokens (default: the model's, at most 4096)"
        )
        parser.add_argument(
            "--base-memory-gb", type=float, help="of the resident base (default: computed)"
        )
        parser.add_argument(
            "--shape", type=Path, help="what `finetender-node shape` printed of the model"
        )
        parser.add_argument("--jobs-per-node", type=int, default=4, help="sold at once on a node")
        parser.add_argument(
            "--beats-per-slot", type=int, help="times a slot for new prices (default: 2)"
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        # Each term has a flag of its name.
        terms = ZoneTerms(**{term.name: options[term.name] for term in fields(ZoneTerms)})
        try:
            zone = open_zone(terms=terms, now=clock.now())
        except UserError as refusal:
            raise CommandError(refusal.message) from refusal
        hours = zone.slot_s * zone.horizon_slots / 3600
        self.stdout.write(
            f"Zone {zone.name} is open: {zone.base_model_name}, {zone.base_memory_gb:.1f} GB "
            f"resident, rows up to {zone.max_sequence_length} tokens; slots of {zone.slot_s} s, "
            f"sold {hours:g} h ahead. Next: let providers join nodes to it."
        )
