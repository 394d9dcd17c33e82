"""Opening a zone for a base model, with what can be read from the model's own files."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import cast

from marketplace.common.errors import Conflict, UserError
from marketplace.fleet import base_models
from marketplace.fleet.memory import compute_base_model_gb
from marketplace.fleet.models import Zone
from marketplace.fleet.services import ZoneModel, ZoneSlots, ensure_zone
from marketplace.fleet.text_encoder import load_text_encoder
from workers.protocol.model_shape import find_context_length, is_four_bit

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
#: Rows longer than this take memory that few nodes have; an operator may say otherwise.
SEQUENCE_LENGTH_DEFAULT = 4096
#: Seconds; a slot is what a provider sells at least.
SLOT_LIMIT_S = 24 * 3600
HORIZON_LIMIT_SLOTS = 10_000


@dataclass(frozen=True, slots=True)
class ZoneTerms:
    """What an operator decides when a zone is opened; what is left out follows from the model."""

    name: str
    #: ``bundled:<name>``, a directory, or a Hugging Face hub id.
    base_model: str
    slot_s: int
    horizon_slots: int
    revision: str | None = None
    #: ``auto`` is the type the weights are stored in.
    dtype: str = "auto"
    four_bit: bool = False
    max_sequence_length: int | None = None
    base_memory_gb: float | None = None
    jobs_per_node: int = 4
    #: Times a slot that prices come into force; ``None``: as usual.
    beats_per_slot: int | None = None
    #: What ``finetender-node shape`` printed; without it the model's modules are read here.
    shape: Path | None = None


def open_zone(*, terms: ZoneTerms, now: datetime) -> Zone:
    """Open a zone: read the model's configuration and tokenizer, and put it on the market.

    Raises
    ------
    UserError
        ``invalid_zone``, ``unknown_base_model``, ``unknown_tokenizer`` or
        ``invalid_policy_setting``; nothing was made.
    Conflict
        ``zone_exists``: a zone keeps its terms, since its log and its nodes rest on them.
    """
    _check_terms(terms)
    if Zone.objects.filter(name=terms.name).exists():
        raise Conflict(
            "zone_exists",
            f"There is a zone {terms.name!r} already, and a zone keeps its terms. "
            "Choose another name.",
            param="name",
        )
    config = base_models.read_model_config(terms.base_model, terms.revision)
    # A model without a tokenizer would refuse its first bid; better now.
    encoder = load_text_encoder(base_models.find_tokenizer_files(terms.base_model, terms.revision))
    shape = base_models.read_model_shape(terms.base_model, terms.revision, file=terms.shape)
    if not shape.encoder and not encoder.suffix:
        raise _build_invalid_zone(
            "base_model",
            f"{terms.base_model} has no token that ends a text, so that no adapter would learn to "
            "stop. Name it as eos_token in its tokenizer_config.json, or as eos_token_id in its "
            "generation_config.json.",
        )
    stored = cast(Mapping[str, object], config.get("quantization_config") or {})
    four_bit = terms.four_bit or is_four_bit(stored)
    return ensure_zone(
        name=terms.name,
        base_model=ZoneModel(
            name=_shorten_model_name(terms.base_model),
            source=terms.base_model,
            memory_gb=terms.base_memory_gb
            or compute_base_model_gb(shape, config, dtype=terms.dtype, four_bit=four_bit),
            max_sequence_length=_resolve_sequence_length(config, terms.max_sequence_length),
            shape=shape,
        ),
        slots=ZoneSlots(
            length_s=terms.slot_s,
            horizon=terms.horizon_slots,
            epoch_at=now.replace(microsecond=0),
        ),
        base_model_revision=terms.revision,
        dtype=terms.dtype,
        four_bit=four_bit,
        jobs_per_node=terms.jobs_per_node,
        policy_settings=(
            {} if terms.beats_per_slot is None else {"beats_per_slot": terms.beats_per_slot}
        ),
        now=now,
    )


def _check_terms(terms: ZoneTerms) -> None:
    if not _NAME.fullmatch(terms.name):
        raise _build_invalid_zone(
            "name", "A zone's name is 1 to 40 small letters, digits and dashes, such as llama-8b."
        )
    if not 1 <= terms.slot_s <= SLOT_LIMIT_S:
        raise _build_invalid_zone("slot_s", f"A slot lasts from 1 to {SLOT_LIMIT_S} seconds.")
    if not 2 <= terms.horizon_slots <= HORIZON_LIMIT_SLOTS:
        raise _build_invalid_zone(
            "horizon_slots", f"A horizon has from 2 to {HORIZON_LIMIT_SLOTS} slots."
        )
    if terms.jobs_per_node < 1:
        raise _build_invalid_zone("jobs_per_node", "A node takes at least one job.")
    gb = terms.base_memory_gb
    if gb is not None and not (math.isfinite(gb) and gb > 0):
        raise _build_invalid_zone(
            "base_memory_gb", "The base model's memory is a number of GB above zero."
        )


def _resolve_sequence_length(config: Mapping[str, object], wanted: int | None) -> int:
    most = find_context_length(config)
    if wanted is None:
        return min(most or SEQUENCE_LENGTH_DEFAULT, SEQUENCE_LENGTH_DEFAULT)
    if wanted < 1 or (most is not None and wanted > most):
        raise _build_invalid_zone(
            "max_sequence_length",
            f"The model reads at most {most} tokens; rows may be from 1 to that long."
            if most
            else "Rows are at least one token long.",
        )
    return wanted


def _shorten_model_name(base_model: str) -> str:
    """The model's name without where it lies."""
    name = base_model.rstrip("/")
    return (name.rpartition("/")[2] if name.startswith("/") else name).removeprefix("bundled:")


def _build_invalid_zone(param: str, message: str) -> UserError:
    return UserError("invalid_zone", message, param=param)
